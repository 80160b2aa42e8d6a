//! The methods of traits that are called over the wire, and the arguments that have no type of their own.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use taskd_runtime::job::ProcId;
use taskd_runtime::launch::{PrepareOptions, StartBatch};

/// Names of the methods.
pub(crate) mod method {
    pub(crate) const START: &str = "launcher.start";
    pub(crate) const STOP: &str = "launcher.stop";
    pub(crate) const LIST: &str = "launcher.list";
    pub(crate) const WATCH: &str = "launcher.watch";
    pub(crate) const ACKNOWLEDGE: &str = "launcher.acknowledge";
    pub(crate) const SEND_DIRECTIVES: &str = "launcher.send_directives";
    pub(crate) const PREPARE: &str = "launcher.prepare";
    pub(crate) const DETACH: &str = "launcher.detach";
    pub(crate) const BEGIN_SHUTDOWN: &str = "launcher.begin_shutdown";
}

/// Arguments of `launcher.stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StopArguments {
    pub(crate) procs: Vec<ProcId>,
    pub(crate) grace: Duration,
}

/// Arguments of `launcher.prepare`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrepareArguments {
    pub(crate) batch: StartBatch,
    #[serde(default)]
    in_loop: bool,
}

impl PrepareArguments {
    pub(crate) fn new(batch: StartBatch, options: &PrepareOptions) -> PrepareArguments {
        PrepareArguments { batch, in_loop: options.in_loop }
    }

    pub(crate) fn options(&self) -> PrepareOptions {
        PrepareOptions::new().with_in_loop(self.in_loop)
    }
}

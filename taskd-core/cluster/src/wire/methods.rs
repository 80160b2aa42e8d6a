//! The methods of traits that are called over the wire, and the arguments that have no type of their own.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use taskd_runtime::job::{CommandId, NodeId, ProcId, Rank};
use taskd_runtime::launch::{DirectiveBatch, PrepareOptions, StartBatch};

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
    /// The job has ended: the agent ends.
    pub(crate) const JOB_END: &str = "job.end";
    /// The host cannot take part in the job, for the reason in the argument: the agent ends.
    pub(crate) const REFUSE: &str = "host.refuse";
    /// Addresses at which a later manager may answer.
    pub(crate) const CANDIDATES: &str = "job.candidates";
    pub(crate) const BEGIN_SHUTDOWN: &str = "launcher.begin_shutdown";
    /// The facts of all sources of the host that the manager has not taken yet.
    pub(crate) const SOURCES_NEXT: &str = "sources.next";
    /// A probe, to the sources of the host that answer it.
    pub(crate) const SOURCES_COLLECT: &str = "sources.collect";
    /// Which other hosts this one reaches now.
    pub(crate) const LINKS_CHECK: &str = "links.check";
    /// The files with records that the host keeps.
    pub(crate) const RECORDS_LIST: &str = "records.list";
    /// A part of one of these files.
    pub(crate) const RECORDS_READ: &str = "records.read";
}

/// Arguments of `launcher.start`. Not `Debug`: they contain a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartArguments {
    /// Its world is empty if the call has a `shared` part: that is the world, the same for all hosts.
    pub(crate) batch: StartBatch,
    /// Address of the agent on the host of the rendezvous service; `None` on that host, and without such a service.
    #[serde(default)]
    pub(crate) rendezvous: Option<String>,
    /// Secret by which the job's ranks authenticate each other.
    #[serde(default)]
    pub(crate) secret: Option<String>,
    /// Address at which ranks of other hosts reach those of this host.
    #[serde(default)]
    pub(crate) address: Option<String>,
    /// By rank: the rank that holds the second copies of its in-memory checkpoints.
    #[serde(default)]
    pub(crate) copies: BTreeMap<Rank, Rank>,
}

/// Arguments of `launcher.send_directives`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirectiveArguments {
    pub(crate) id: CommandId,
    /// As in [`StartArguments`].
    pub(crate) batch: DirectiveBatch,
    /// As in [`StartArguments`].
    #[serde(default)]
    pub(crate) rendezvous: Option<String>,
}

/// Arguments of `links.check`. The answer is, for each of these hosts, why it is not reached; `None` if it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinksArguments {
    /// Addresses of the agents of other hosts.
    pub(crate) peers: BTreeMap<NodeId, String>,
    /// Time within which the check ends.
    pub(crate) within: Duration,
}

/// Answer to `links.check`.
pub(crate) type LinksAnswer = BTreeMap<NodeId, Option<String>>;

/// Arguments of `launcher.stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StopArguments {
    pub(crate) procs: Vec<ProcId>,
    pub(crate) grace: Duration,
}

/// Arguments of `launcher.prepare`. Not `Debug`: they contain a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrepareArguments {
    /// As in [`StartArguments`].
    pub(crate) batch: StartBatch,
    #[serde(default)]
    in_loop: bool,
    /// As in [`StartArguments`].
    #[serde(default)]
    pub(crate) rendezvous: Option<String>,
    /// As in [`StartArguments`].
    #[serde(default)]
    pub(crate) secret: Option<String>,
    /// As in [`StartArguments`].
    #[serde(default)]
    pub(crate) address: Option<String>,
    /// As in [`StartArguments`].
    #[serde(default)]
    pub(crate) copies: BTreeMap<Rank, Rank>,
}

impl PrepareArguments {
    pub(crate) fn new(arguments: StartArguments, options: &PrepareOptions) -> PrepareArguments {
        let StartArguments { batch, rendezvous, secret, address, copies } = arguments;
        PrepareArguments { batch, in_loop: options.in_loop, rendezvous, secret, address, copies }
    }

    pub(crate) fn options(&self) -> PrepareOptions {
        PrepareOptions::new().with_in_loop(self.in_loop)
    }
}

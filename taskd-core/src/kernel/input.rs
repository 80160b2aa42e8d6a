//! What goes into the kernel.

use super::order::Ordered;
use crate::detect::Fault;
use crate::job::{CommandId, Domain, JobSpec, Name};
use crate::launch::{Change, Listing};
use crate::recover::{Failure, Output};
use crate::trace::Observation;
use crate::trace::switches::Mode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// One thing that happened. Everything the kernel knows came in as one of these, so a log of them replays it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Input {
    /// The kernel starts: always its first input, once a start of the supervisor.
    Start(Box<Start>),
    /// Everything the launcher knows: at the start, and whenever its history had to be read anew.
    Listed(Listing),
    /// The launcher tells of a change.
    Changed(Change),
    /// Targets of a command have answered; one command may be answered in many parts.
    Answered {
        /// Which command.
        id: CommandId,
        /// What each of these targets answered.
        results: Vec<(Domain, Result<Output, Failure>)>,
    },
    /// Somebody asks for something.
    Requested(Request),
    /// Sources saw something.
    Observed(Vec<Observation>),
    /// The time of the kernel's own deadline has come.
    Deadline,
    /// The supervisor itself did not run for this long.
    Slept {
        /// In nanoseconds.
        nanos: u64,
    },
    /// An operator orders something.
    Ordered(Box<Ordered>),
    /// What the calendar says at this time: after each start, and when it went on otherwise than job time. For people alone.
    WallClock {
        /// In milliseconds of Unix time.
        unix_ms: u64,
    },
}

/// What a kernel is told when it starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// What the user asks for. A kernel that goes on with a job takes the policy from here, and keeps its world.
    pub spec: Arc<JobSpec>,
    /// How requests for the ranks' recorders are taken; `None`: the runtime has no control over them.
    #[serde(default)]
    pub trace: Option<Mode>,
    /// The service at which the launcher has ranks meet anew, where it has one
    /// ([`LauncherInfo::meets_at`](crate::launch::LauncherInfo::meets_at)).
    #[serde(default)]
    pub meets_at: Option<Name>,
}

/// What a host program or an operator asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Request {
    /// End the job: stop everything, then finish. Asked again with a shorter grace it hurries what is under way.
    Stop {
        /// For the report.
        reason: String,
        /// Time between SIGTERM and SIGKILL; the policy's when `None`.
        grace: Option<Duration>,
    },
    /// A fault that was found outside.
    Fault(Box<Fault>),
    /// A plugin of the shell failed: it panicked, or could not do its work.
    PluginFailed {
        /// Which.
        plugin: Name,
        /// How.
        what: String,
    },
}

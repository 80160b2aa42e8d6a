//! Protocol between guard and owner: frames of JSON on a Unix socket.
//!
//! This module encodes and decodes messages and takes no decision. A frame is its length (`u32`, little endian) and
//! that many bytes of JSON, so that a conversation can be read with `strace`. A peer that sends a frame beyond the
//! limit, or an invalid message, loses the connection.

use crate::job::{Incarnation, ProcId, Role};
use crate::launch::frames;
pub(crate) use crate::launch::frames::Frames;
use crate::launch::{GuardEnd, LaunchError, OnOwnerLoss, Phase};
use crate::redact::SecretNames;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Version of everything in this file. Guard and owner must have the same.
pub(crate) const PROTOCOL: u32 = 7;
/// Maximum length of a frame between guard and owner, in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a frame from a peer that was not accepted as owner, in bytes.
pub(crate) const STRANGER_FRAME_BYTES_MAX: usize = 4096;

/// Job id: 128 random bits in hexadecimal, which distinguish one job's processes from all others of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct JobId(pub(crate) String);

impl JobId {
    /// Returns true if the id has the right form. This is checked because the id decides which processes are killed.
    pub(crate) fn is_valid(&self) -> bool {
        self.0.len() == 32 && self.0.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
    }
}

/// Configuration of a new guard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GuardConfig {
    pub(crate) protocol: u32,
    pub(crate) job: JobId,
    /// The job's name, for display, and so that no job of another name takes the guard over.
    pub(crate) job_name: String,
    pub(crate) run_dir: PathBuf,
    pub(crate) owner_pid: u32,
    pub(crate) on_owner_loss: OnOwnerLoss,
    /// Limit of each log file in bytes; one older file of the same length is kept beside it.
    pub(crate) log_bytes_max: u64,
    /// Exits that an earlier guard of this job reported and that were not acknowledged.
    pub(crate) exits: Vec<ProcReport>,
    /// The latest incarnation of each role whose exit was acknowledged.
    pub(crate) over: Vec<(Role, Incarnation)>,
}

/// Message from owner to guard.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToGuard {
    /// Configuration of the guard: the first message on the socket that a new guard inherits.
    Init(Box<GuardConfig>),
    /// First message of a client that connects to a running guard. It changes nothing, since the client may have given
    /// up on the connection meanwhile.
    Hello { protocol: u32, takeover: bool, on_owner_loss: OnOwnerLoss, job_name: String },
    /// Second message of a client, after the welcome: it makes the client the owner and puts its request into effect.
    Confirm,
    /// A request; the answer has the same number.
    Call { id: u64, call: Call },
    /// Requests a copy of the listener for control links; the only frame on its own connection. The answer is one byte
    /// that carries the descriptor; then the connection ends.
    Borrow { protocol: u32 },
    /// The job has no supervisor any more: the guard stops all processes, and itself keeps running. Not answered.
    WindDown { grace: Duration },
    /// The owner was dropped: the guard stops all processes and ends. Not answered.
    Dropped { grace: Duration },
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Start(WireBatch),
    /// Keep standbys for processes like these, which ran here under an earlier guard, or may be moved here.
    Prepare {
        batch: WireBatch,
        /// True if the program of these processes has a step loop; without one, no standby is pre-warmed.
        in_loop: bool,
    },
    Stop {
        procs: Vec<ProcId>,
        grace: Duration,
    },
    Acknowledge {
        procs: Vec<ProcId>,
    },
    Counters,
    /// Kill all processes at this time of `CLOCK_BOOTTIME`, unless a later request changes it; `None`: keep them.
    Fence {
        at: Option<Duration>,
    },
    /// The guard stops all processes, ends, and leaves no record.
    Shutdown {
        grace: Duration,
    },
    /// The owner leaves; the guard has to keep everything for this time.
    Detach {
        keep: Duration,
    },
}

/// Processes to start together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WireBatch {
    /// Specifications that several orders share.
    pub(crate) specs: Vec<WireSpec>,
    pub(crate) orders: Vec<WireOrder>,
}

impl WireBatch {
    /// Returns the orders that may use standbys, if any.
    pub(crate) fn with_standbys(&self) -> Option<WireBatch> {
        let has = |order: &&WireOrder| self.specs.get(order.spec).is_some_and(|spec| spec.standby.is_some());
        let orders: Vec<WireOrder> = self.orders.iter().filter(has).cloned().collect();
        (!orders.is_empty()).then(|| WireBatch { specs: self.specs.clone(), orders })
    }
}

/// How processes are started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireSpec {
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Working directory; absolute.
    pub(crate) cwd: PathBuf,
    /// Added to the owner's nice value.
    pub(crate) nice: u8,
    /// The user's log file, for both output streams; absolute.
    #[serde(default)]
    pub(crate) log: Option<PathBuf>,
    /// Path of the socket at which the guard listens for the process; absolute.
    #[serde(default)]
    pub(crate) listen: Option<PathBuf>,
    /// Standbys that may be kept for these processes.
    #[serde(default)]
    pub(crate) standby: Option<WireStandby>,
    /// Names of secrets, whose values are left out of every command line that is logged or reported.
    #[serde(default)]
    pub(crate) secrets: SecretNames,
}

/// Origin of standbys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StandbyMode {
    /// Standbys are forked by a template process.
    Template,
    /// Each standby is started separately; [`WireStandby::ahead`] is their number.
    PreStarted,
}

/// Request for standbys: processes that wait to be assigned a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireStandby {
    pub(crate) mode: StandbyMode,
    /// Command line that starts the same interpreter in the same way, and does nothing.
    pub(crate) probe: Vec<String>,
    /// Number of leading arguments that are the same for all ranks, the program's name included.
    pub(crate) fixed: usize,
    /// The script file; `None` for a module or a command.
    pub(crate) script: Option<String>,
    /// Modules to import in advance: first the framework's, then the user's.
    pub(crate) framework: Vec<String>,
    pub(crate) imports: Vec<String>,
    /// Variables that differ from rank to rank.
    pub(crate) late: Vec<String>,
    /// Those of them that are the same for all ranks of a world, which a pre-warmed standby already has.
    #[serde(default)]
    pub(crate) shared: Vec<String>,
    /// Variables that have other values in a template than in a rank.
    pub(crate) held: BTreeMap<String, String>,
    /// Number of waiting standbys; one per rank if `None`.
    pub(crate) ahead: Option<u32>,
    /// Number of pre-warmed standbys, in addition to the waiting ones.
    pub(crate) parked: u32,
    /// Delay between a start and the making of standbys, in milliseconds.
    pub(crate) after_ms: u64,
}

impl WireStandby {
    /// Returns true if a standby gets this variable only when it is assigned a rank.
    pub(crate) fn is_late(&self, name: &str) -> bool {
        self.late.iter().any(|late| late == name) || self.held.contains_key(name)
    }
}

/// One process to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WireOrder {
    pub(crate) proc: ProcId,
    pub(crate) generation: u64,
    /// Index into [`WireBatch::specs`].
    pub(crate) spec: usize,
    /// Added to the specification's environment.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cpus: Option<Vec<u16>>,
}

/// Message from guard to owner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromGuard {
    /// The connection may become the owner's: after its confirmation, or at once for the owner that has started the
    /// guard. All processes follow as [`FromGuard::Proc`], then [`FromGuard::Synced`].
    Welcome { protocol: u32, job: JobId, guard_pid: u32 },
    /// The connection is refused and will be closed.
    Refused(Refusal),
    /// The current state of a process.
    Proc(Box<ProcReport>),
    /// The owner has received the state of all processes as of its welcome.
    Synced,
    /// The answer to a call.
    Answer { id: u64, answer: Result<Answer, LaunchError> },
    /// Another supervisor has become the owner, with this process id.
    TakenOver { by_pid: u32 },
    /// Number of standbys that can be assigned a rank now.
    Standbys(u32),
    /// The listener for control links was replaced, since its socket file was removed.
    DoorIsNew,
    /// Statement, in one sentence, about a safeguard that the job runs without.
    Notice(String),
    /// What ends the guard's processes if the guard is killed, in one sentence; the first message to the owner that has
    /// started it.
    Contained(String),
    /// The guard ends, and stops all processes. Their ends are reported after this message.
    Ending(GuardEnd),
}

/// Reason why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The guard has this protocol version.
    Protocol(u32),
    /// The guard has an owner already, with this process id.
    Owned { by_pid: u32 },
    /// The guard belongs to another job.
    OtherJob {
        /// Name of the other job.
        name: String,
    },
    /// Everything is being stopped; the guard ends within this time.
    Ending { gone_within: Duration },
    /// Reports of the processes of a start order, including those that ran before.
    Occupied,
    /// The guard could not start, for this reason.
    Failed(String),
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// The processes of a start, including those that ran before.
    Started(Vec<ProcReport>),
    Counters(super::GuardCounters),
}

/// State of one process, as known to the guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcReport {
    pub(crate) proc: ProcId,
    pub(crate) pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub(crate) start_time: u64,
    pub(crate) phase: Phase,
    /// Path of its page, followed by its recorder's memory, which can be opened until its exit is acknowledged.
    pub(crate) page: Option<PathBuf>,
}

/// Encodes a message as a frame.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    frames::encode(message, FRAME_BYTES_MAX)
}

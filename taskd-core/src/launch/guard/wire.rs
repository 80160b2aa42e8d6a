//! What guard and owner say to each other: frames of JSON on a Unix socket.
//!
//! It moves bytes and knows their shape; it decides nothing. A frame is its length (`u32`, little endian) and that many
//! bytes of JSON, so that a conversation can be read with `strace`. Whoever sends more than the bound, or what is not a
//! message, loses the connection.

use crate::job::{Incarnation, ProcId, Role};
use crate::launch::{GuardEnd, LaunchError, OnOwnerLoss, Phase};
use crate::secrets::SecretNames;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Version of everything in this file. Guard and owner must have the same.
pub(crate) const PROTOCOL: u32 = 5;
/// Longest frame between guard and owner, in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 16 << 20;
/// Longest frame of somebody who has not been accepted as owner.
pub(crate) const STRANGER_FRAME_BYTES_MAX: usize = 4096;

/// 128 random bits as hexadecimal: what tells one job's processes from all others of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct JobId(pub(crate) String);

impl JobId {
    /// Whether it can be one: what it is compared with decides which processes are killed.
    pub(crate) fn is_valid(&self) -> bool {
        self.0.len() == 32 && self.0.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'))
    }
}

/// What a guard is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GuardConfig {
    pub(crate) protocol: u32,
    pub(crate) job: JobId,
    /// The job's name, for people, and so that no job of another name takes it over.
    pub(crate) job_name: String,
    pub(crate) run_dir: PathBuf,
    pub(crate) owner_pid: u32,
    pub(crate) on_owner_loss: OnOwnerLoss,
    /// Bound of each log file in bytes; one older file of the same length is kept beside it.
    pub(crate) log_bytes_max: u64,
    /// Exits that an earlier guard of this job reported and that nobody has acknowledged.
    pub(crate) exits: Vec<ProcReport>,
    /// The latest incarnation of each role that is over and acknowledged.
    pub(crate) over: Vec<(Role, Incarnation)>,
}

/// From owner to guard.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToGuard {
    /// The first frame on the socket that a new guard is born with.
    Init(Box<GuardConfig>),
    /// The first frame of whoever connects to a running guard. Nothing changes by it: one that has given up meanwhile may have sent it.
    Hello { protocol: u32, takeover: bool, on_owner_loss: OnOwnerLoss, job_name: String },
    /// The second one, once it was welcomed: from here on it is the owner, and what it has asked for counts.
    Confirm,
    /// A request; answered under the same number.
    Call { id: u64, call: Call },
    /// The only frame on a connection of its own: a copy of the listener for control links is wanted. Answered with one byte
    /// that carries the descriptor; then the connection ends.
    Borrow { protocol: u32 },
    /// Nobody supervises the job any more: stop everything, and stay. Not answered.
    WindDown { grace: Duration },
    /// The owner is dropped: stop everything and end. Not answered.
    Dropped { grace: Duration },
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Start(WireBatch),
    /// Keep standbys for processes like these, which ran here before this guard did, or may come here.
    Prepare {
        batch: WireBatch,
        /// Whether their program has a step loop: without one it is not run ahead of a rank.
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
    /// Stop everything, end, and leave no record.
    Shutdown {
        grace: Duration,
    },
    /// The owner leaves and wants everything kept for so long.
    Detach {
        keep: Duration,
    },
}

/// Processes to start together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WireBatch {
    /// What several orders have in common, once.
    pub(crate) specs: Vec<WireSpec>,
    pub(crate) orders: Vec<WireOrder>,
}

impl WireBatch {
    /// What of it has standbys, if anything has.
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
    /// Absolute.
    pub(crate) cwd: PathBuf,
    /// Added to the owner's nice value.
    pub(crate) nice: u8,
    /// Absolute.
    #[serde(default)]
    pub(crate) log: Option<PathBuf>,
    /// Absolute.
    #[serde(default)]
    pub(crate) listen: Option<PathBuf>,
    /// What may be started ahead of need, to stand in for these processes.
    #[serde(default)]
    pub(crate) standby: Option<WireStandby>,
    /// Names of secrets: their values are left out of every command line that is logged or reported.
    #[serde(default)]
    pub(crate) secrets: SecretNames,
}

/// Where the processes that stand in come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StandbyMode {
    /// One process forks them.
    Template,
    /// Each is started, as many as [`WireStandby::ahead`] says.
    PreStarted,
}

/// Processes that wait to be told which rank they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireStandby {
    pub(crate) mode: StandbyMode,
    /// Starts the interpreter, in the same way and for nothing else.
    pub(crate) probe: Vec<String>,
    /// How many of the arguments all of them have in common, the program's name included.
    pub(crate) fixed: usize,
    /// The file that is run; `None` for a module or a command.
    pub(crate) script: Option<String>,
    /// What is imported ahead: the framework's modules, and then the user's.
    pub(crate) framework: Vec<String>,
    pub(crate) imports: Vec<String>,
    /// Variables that are each rank's own.
    pub(crate) late: Vec<String>,
    /// Those of them that are the same for all ranks of a world: who runs ahead of its rank has them.
    #[serde(default)]
    pub(crate) shared: Vec<String>,
    /// Variables that a template has in place of a rank's.
    pub(crate) held: BTreeMap<String, String>,
    /// How many are to wait; as many as there are ranks when `None`.
    pub(crate) ahead: Option<u32>,
    /// How many run the program ahead of their rank, beside those that wait.
    pub(crate) parked: u32,
    /// How long after a start they are begun, in milliseconds.
    pub(crate) after_ms: u64,
}

impl WireStandby {
    /// Whether a standby gets this variable only with its rank.
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
    /// Added to the spec's environment.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cpus: Option<Vec<u16>>,
}

/// From guard to owner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromGuard {
    /// The connection may be the owner's, which it is once that is confirmed, or at once where it has started the guard. Then all processes follow as
    /// [`FromGuard::Proc`], then [`FromGuard::Synced`].
    Welcome { protocol: u32, job: JobId, guard_pid: u32 },
    /// The connection is refused and will be closed.
    Refused(Refusal),
    /// What is known of a process now.
    Proc(Box<ProcReport>),
    /// The owner knows everything that the guard knew when it was welcomed.
    Synced,
    /// The answer to a call.
    Answer { id: u64, answer: Result<Answer, LaunchError> },
    /// Another owner has taken over.
    TakenOver { by_pid: u32 },
    /// The listener for control links is another one from now on: its socket file was removed.
    DoorIsNew,
    /// Something that the guard goes without, in one sentence.
    Notice(String),
    /// What ends the guard's processes if it is killed, in one sentence: the first that an owner is sent which has started it.
    Contained(String),
    /// The guard ends, and everything with it. What ends for that follows.
    Ending(GuardEnd),
}

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The guard speaks this version.
    Protocol(u32),
    /// This process is the owner.
    Owned { by_pid: u32 },
    /// The guard is another job's.
    OtherJob {
        /// Its name.
        name: String,
    },
    /// Everything is being stopped; after so long at most there will be no guard.
    Ending { gone_within: Duration },
    /// Another guard runs in this directory.
    Occupied,
    /// It could not start, and why.
    Failed(String),
}

/// What a call comes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// The processes of a start, those included that ran before.
    Started(Vec<ProcReport>),
    Counters(super::GuardCounters),
}

/// One process as the guard sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcReport {
    pub(crate) proc: ProcId,
    pub(crate) pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub(crate) start_time: u64,
    pub(crate) phase: Phase,
    /// Where its page, and its recorder's memory behind it, can be opened until its exit is acknowledged.
    pub(crate) page: Option<PathBuf>,
}

/// A message as a frame.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    let prefix = u32::try_from(length).ok().filter(|_| length <= FRAME_BYTES_MAX);
    let prefix = prefix.ok_or_else(|| io::Error::other(format!("a message of {length} bytes is too long")))?;
    frame[..4].copy_from_slice(&prefix.to_le_bytes());
    Ok(frame)
}

/// Takes a stream of bytes apart into frames.
#[derive(Debug)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
    /// How much of `buffer` was handed out.
    taken: usize,
    /// Longest frame that is accepted, in bytes.
    pub(crate) bytes_max: usize,
}

impl Frames {
    pub(crate) const fn new(bytes_max: usize) -> Frames {
        Frames { buffer: Vec::new(), taken: 0, bytes_max }
    }

    /// Adds what was received.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if one is there.
    ///
    /// # Errors
    /// For a frame beyond the bound or one that is not such a message; nothing after it can be trusted.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let rest = &self.buffer[self.taken..];
        let Some((prefix, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > self.bytes_max {
            return Err(io::Error::other(format!("a frame of {length} bytes is beyond {} bytes", self.bytes_max)));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(frame)?;
        self.taken += 4 + length;
        if self.taken == self.buffer.len() {
            self.buffer = Vec::new(); // a large batch must not stay in memory
            self.taken = 0;
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let messages = [ToGuard::Call { id: 7, call: Call::Counters }, ToGuard::Call { id: 8, call: Call::Counters }];
        let bytes: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        for cut in 0..bytes.len() {
            let mut frames = Frames::new(STRANGER_FRAME_BYTES_MAX);
            let mut ids = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                frames.push(part);
                while let Some(ToGuard::Call { id, .. }) = frames.next().unwrap() {
                    ids.push(id);
                }
            }
            assert_eq!(ids, [7, 8], "cut at {cut}");
        }
    }

    #[test]
    fn a_frame_beyond_the_bound_and_garbage_are_errors() {
        let mut frames = Frames::new(10);
        frames.push(&11u32.to_le_bytes());
        assert!(frames.next::<ToGuard>().is_err());
        let mut frames = Frames::new(10);
        frames.push(b"\x02\0\0\0{]");
        assert!(frames.next::<ToGuard>().is_err());
    }
}

//! The control link as its launcher reports it: the position of a training process, its messages and its replies.
//!
//! Texts and names come from the process, and are bounded by the launcher that receives them.

use super::{CheckpointShard, InMemoryCheckpoint, current_names};
use crate::job::{CommandId, ErrorReport, Generation, Name, ProcId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of figures (measurements) in one reply of a process to a directive. The launcher drops further
/// figures.
pub const FIGURES_MAX: usize = 32;

/// The position of a process in its training program, relative to its step loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LoopPosition {
    /// The process is anywhere before its step loop.
    #[serde(alias = "script")]
    BeforeLoop,
    /// The process is in its step loop.
    #[serde(alias = "loop")]
    InLoop,
    /// The process waits for [`Join`](super::Directive::Join) at the entry of its step loop. Its training objects are
    /// built and warmed up.
    Parked,
}

/// The state of a training process's control link: the connection over which it receives directives and sends
/// reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ControlLink {
    /// Generation (number) of the world that the process trains in.
    pub generation: Generation,
    /// Name of the process's training framework.
    pub framework: Name,
    /// The names of the [directives](super::Directive::name) that the process supports.
    #[serde(alias = "can", deserialize_with = "current_names")]
    pub capabilities: BTreeSet<Name>,
    /// Position of the process in its program: before its step loop, in it, or parked at its entry.
    #[serde(alias = "at")]
    pub position: LoopPosition,
    /// Size of the process's training state, in bytes. `None` until it is known.
    pub state_bytes: Option<u64>,
    /// Reason, in one sentence, why no recovery can keep this process running. `None` until the process's training
    /// framework finds one. If a reason is set, no strategy sends the process an [abort](super::Directive::Abort).
    #[serde(default)]
    #[serde(alias = "cannot")]
    pub unsupported_reason: Option<String>,
    /// Names of the parts of this process's training state that no other process holds, as far as its training
    /// framework has found out.
    #[serde(default)]
    pub sharded: Vec<String>,
    /// The newest checksum of the process's parameters and optimizer state. Equal checksums
    /// [prove](crate::state::Replicas) that ranks are replicas.
    #[serde(default)]
    pub digest: Option<Box<StateDigest>>,
}

impl ControlLink {
    /// Creates the state of a process's control link. The process supports no directive until `with_capabilities` sets
    /// some.
    pub fn new(generation: Generation, framework: impl Into<Name>, position: LoopPosition) -> ControlLink {
        ControlLink {
            generation,
            framework: framework.into(),
            capabilities: BTreeSet::new(),
            position,
            state_bytes: None,
            unsupported_reason: None,
            sharded: Vec::new(),
            digest: None,
        }
    }

    /// Sets the names of the directives that the process supports.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: BTreeSet<Name>) -> ControlLink {
        self.capabilities = capabilities;
        self
    }

    /// Sets the size of the process's training state in bytes, if known.
    #[must_use]
    pub fn with_state_bytes(mut self, bytes: impl Into<Option<u64>>) -> ControlLink {
        self.state_bytes = bytes.into();
        self
    }

    /// Sets the reason why no recovery can keep the process running, if there is a reason.
    #[must_use]
    pub fn with_unsupported_reason(mut self, reason: impl Into<Option<String>>) -> ControlLink {
        self.unsupported_reason = reason.into();
        self
    }

    /// Sets the names of the parts of the process's training state that no other process holds.
    #[must_use]
    pub fn with_sharded(mut self, parts: Vec<String>) -> ControlLink {
        self.sharded = parts;
        self
    }

    /// Sets the newest checksum of the process's parameters and optimizer state, if there is a checksum.
    #[must_use]
    pub fn with_digest(mut self, digest: impl Into<Option<Box<StateDigest>>>) -> ControlLink {
        self.digest = digest.into();
        self
    }
}

/// Maximum length of a digest, and of a group's name, in bytes.
const DIGEST_BYTES_MAX: usize = 128;

/// A checksum of a rank's parameters and optimizer state at the beginning of a step. Replicas have equal checksums;
/// buffers, random numbers and the position in the data, which may differ from rank to rank, are not included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateDigest {
    /// Index, from 1, of the step loop among all step loops of the training program. Two loops may use the same step
    /// numbers; the index distinguishes their steps.
    #[serde(rename = "loop")]
    pub loop_number: u64,
    /// Number of the training step that begins with the state of this checksum.
    pub step: u64,
    /// The checksum as text: equal texts mean equal state.
    pub digest: String,
    /// Name of the process group whose ranks the training framework itself keeps equal, such as the process group of a
    /// `DistributedDataParallel`. `None` if no single group holds all of this state. Ranks of one group report the same
    /// name.
    #[serde(default)]
    pub group: Option<String>,
    /// Time that the process took to compute the checksum, in microseconds.
    #[serde(default)]
    pub took_us: u64,
    /// True if the step before this checksum is the first of its kind in this step loop: it issued collectives that
    /// differ from those of all earlier steps. Replicas that older checksums proved may not be replicas after this
    /// step.
    #[serde(default)]
    pub first_of_kind: bool,
}

impl StateDigest {
    /// Returns true if the texts `digest` and `group` are within their length limits.
    #[doc(hidden)]
    pub fn is_sound(&self) -> bool {
        let fits = |text: &str| !text.is_empty() && text.len() <= DIGEST_BYTES_MAX;
        fits(&self.digest) && self.group.as_deref().is_none_or(fits)
    }
}

/// State of the control link between one training process and its launcher, as the launcher sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LinkStatus {
    /// The process at the other end of the control link.
    pub proc: ProcId,
    /// The state of the control link, if the link is open. `None`: the link is lost, or was closed; the process may
    /// continue to train, and its link may return.
    #[serde(alias = "linked")]
    pub link: Option<ControlLink>,
}

impl LinkStatus {
    /// Creates the status of the control link to a process; `link` is `None` if the link is lost or was closed.
    #[must_use]
    pub const fn new(proc: ProcId, link: Option<ControlLink>) -> LinkStatus {
        LinkStatus { proc, link }
    }
}

/// A report that a training process sent about itself on its control link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerEvent {
    /// The process that sent the report.
    pub proc: ProcId,
    /// Content of the report.
    #[serde(alias = "what")]
    pub message: WorkerMessage,
}

impl WorkerEvent {
    /// Creates the report of a process.
    #[must_use]
    pub const fn new(proc: ProcId, message: WorkerMessage) -> WorkerEvent {
        WorkerEvent { proc, message }
    }
}

/// The content of one report of a process about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WorkerMessage {
    /// Reply of the process to a directive that it received.
    #[serde(alias = "answer")]
    Reply {
        /// Id of the kernel command that contained the directive.
        id: CommandId,
        /// Result of the directive, or the reason for its failure in one sentence.
        result: Result<Box<DirectiveReply>, String>,
    },
    /// The process has survived the failure of a training step, and waits for directives.
    Failed(Box<StepFailure>),
    /// Report about a copy of the process's training state in memory. The process continues to train until the reply
    /// arrives: the directive [`CommitInMemory`](super::Directive::CommitInMemory).
    #[serde(alias = "memory")]
    InMemoryCheckpoint(InMemoryCheckpoint),
    /// The process has recorded the error that ends it, but has not ended yet: its exit handlers may hang. This may be
    /// reported several times.
    #[serde(alias = "recorded")]
    ErrorRecorded(Box<ErrorReport>),
}

/// Result that a training process returns after it has carried out a directive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DirectiveReply {
    /// Position of the process in its training; present only if the directive requests it, as `Abort` does.
    pub state: Option<WorkerState>,
    /// Measurements made while the process carried out the directive, for people to read. The key is the name of the
    /// measurement and ends with the unit, such as `joined_ms`. At most [`FIGURES_MAX`] entries.
    pub figures: BTreeMap<Name, f64>,
    /// Description of the checkpoint shard that the process wrote; present only in the reply to `WriteShard`.
    #[serde(default)]
    #[serde(alias = "part")]
    pub shard: Option<CheckpointShard>,
    /// Checksum of the process's training state after a [state sync](super::Directive::SyncState).
    #[serde(default)]
    pub digest: Option<StateDigest>,
}

impl DirectiveReply {
    /// Sets the position of the process in its training.
    #[must_use]
    pub fn with_state(mut self, state: impl Into<Option<WorkerState>>) -> DirectiveReply {
        self.state = state.into();
        self
    }

    /// Sets the measurements that the process made while it carried out the directive.
    #[must_use]
    pub fn with_figures(mut self, figures: BTreeMap<Name, f64>) -> DirectiveReply {
        self.figures = figures;
        self
    }

    /// Sets the description of the checkpoint shard that the process wrote.
    #[must_use]
    pub fn with_shard(mut self, shard: impl Into<Option<CheckpointShard>>) -> DirectiveReply {
        self.shard = shard.into();
        self
    }

    /// Sets the checksum of the process's training state after a state sync.
    #[must_use]
    pub fn with_digest(mut self, digest: impl Into<Option<StateDigest>>) -> DirectiveReply {
        self.digest = digest.into();
        self
    }
}

/// The position of a process in its training after an [abort](super::Directive::Abort).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerState {
    /// Number of the training step that the process is in, or would do next.
    pub step: u64,
    /// Number of the newest step whose changes to parameters and optimizer state are final. `None`: no step's changes
    /// are final yet.
    pub committed: Option<u64>,
    /// Position of `step` relative to its commit window, the time in which parameters and optimizer change.
    pub window: Window,
    /// Checksum over the names, shapes and types of the process's state. Replicas at one step have the same checksum,
    /// except where a part is [sharded](WorkerState::sharded).
    #[serde(default)]
    pub layout: String,
    /// Number of elements of each gradient bucket of the process, in order; empty if it has none.
    #[serde(default)]
    pub buckets: Vec<u64>,
    /// Size of the process's training state, in bytes.
    #[serde(default)]
    pub bytes: u64,
    /// Names of the parts of the process's training state of which no other process has a copy.
    #[serde(default)]
    pub sharded: Vec<String>,
}

/// Position of a step relative to its commit window, which lasts from the first optimizer step to the end of the step.
/// Parameters and optimizer change only within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// The step has not changed parameters and optimizer yet.
    Before,
    /// The step was aborted within the window: parameters and optimizer belong to no single step.
    Torn,
    /// The step is complete, and its changes to parameters and optimizer are final.
    Closed,
}

impl WorkerState {
    /// Returns true if parameters and optimizer belong to one step.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        !matches!(self.window, Window::Torn)
    }

    /// Returns the step that is trained next from this state.
    #[must_use]
    pub const fn next_step(&self) -> u64 {
        match (self.window, self.committed) {
            (Window::Closed, Some(committed)) => committed.saturating_add(1),
            _ => self.step,
        }
    }
}

/// A failure of a training step that the process has survived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepFailure {
    /// Generation (number) of the world in which the process trained.
    pub generation: Generation,
    /// Kind of the failure: of a collective, of the rank's own step, or an exception.
    pub kind: FailureKind,
    /// Number of the training step in which the failure happened, if known.
    pub step: Option<u64>,
    /// Description of the failure, in the words of the component that reported it.
    pub message: String,
    /// Name of the collective operation that failed, if the failure was one of a collective.
    #[serde(default)]
    pub op: Option<String>,
    /// Name of the process group of the failed collective operation, if known.
    #[serde(default)]
    pub group: Option<String>,
}

impl StepFailure {
    /// Creates a failure whose step, collective operation and process group are unknown.
    pub fn new(generation: Generation, kind: FailureKind, message: impl Into<String>) -> StepFailure {
        StepFailure { generation, kind, step: None, message: message.into(), op: None, group: None }
    }

    /// Sets the number of the training step in which the failure happened, if known.
    #[must_use]
    pub fn with_step(mut self, step: impl Into<Option<u64>>) -> StepFailure {
        self.step = step.into();
        self
    }

    /// Sets the name of the collective operation that failed, if the failure was one of a collective.
    #[must_use]
    pub fn with_op(mut self, op: impl Into<Option<String>>) -> StepFailure {
        self.op = op.into();
        self
    }

    /// Sets the name of the process group of the failed collective operation, if known.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<Option<String>>) -> StepFailure {
        self.group = group.into();
        self
    }
}

/// The kind of a training step's failure that the process has survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// Failure of a collective operation: a peer or a connection failed, or is about to fail.
    Collective,
    /// Failure of the rank's own step: for example, NaN values.
    Step,
    /// Exception in the step whose cause may be temporary: a memory error.
    Exception,
}

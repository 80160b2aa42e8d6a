//! Starts, stops and watches processes: the trait [`Launcher`], the local launcher with its guard, support for Python
//! ranks of every framework ([`python`]), and processes that another system has started.
//!
//! This module makes no decisions: each order names the process and its host.

mod activity;
mod change_log;
mod control_groups;
mod external;
mod fence;
#[doc(hidden)]
pub mod frames;
pub mod guard;
mod interval;
mod launcher;
mod lifeline_reader;
mod local;
mod multi_host;
mod oom;
mod ooms;
pub mod python;
mod stacks;

pub use crate::state::{
    CHECKPOINT_DIR_VARIABLE, Change, CheckpointManifest, CheckpointShard, ControlLink, DISABLED_DIRECTIVES_VARIABLE,
    Directive, DirectiveBatch, DirectiveReply, Endpoint, FIGURES_MAX, FailureKind, GuardEnd, GuardState, GuardStatus,
    IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, IN_MEMORY_CHECKPOINT_LATE_VARIABLE, InMemoryCheckpoint, InMemoryCheckpointId,
    JOIN_VARIABLE, LinkStatus, Listing, LoopPosition, NodeState, NodeStatus, Peer, Phase, Place, ProcStatus, Revision,
    StartBatch, StartOrder, StateDigest, StepFailure, Window, WorkerEvent, WorkerMessage, WorkerState,
};
pub use change_log::{ChangeLog, ChangeLogBounds, ChangeLogCounts};
pub use external::{
    ExternalCounts, ExternalError, ExternalProcs, ExternalProcsBuilder, ExternalStates, LogSteps, StepPattern,
};
pub use fence::{Fence, since_boot};
pub(crate) use guard::run_dir::proc_name as proc_dir_name;
#[cfg(any(test, feature = "test-util"))]
pub use launcher::MockLauncher;
pub use launcher::{LaunchError, Launcher, LauncherExt, LauncherInfo, PrepareOptions, Timeout};
pub use local::{
    GuardProgram, Heartbeats, LinkCounts, LocalCounters, LocalError, LocalLauncher, LocalLauncherBuilder, OnOwnerLoss,
    RecorderSource,
};
pub use multi_host::MultiHostLauncher;

//! Start, stop and watch processes: the trait [`Launcher`], the local launcher with its guard, what Python ranks of every
//! framework need ([`python`]), and processes that somebody else has started.
//!
//! It decides nothing: which process is to run where stands in the order.

mod activity;
mod change;
mod change_log;
mod control_groups;
mod direct;
mod fleet;
mod foreign;
pub mod guard;
mod launcher;
mod local;
mod oom;
mod ooms;
mod pages;
pub mod python;
mod ticks;

pub use change::{
    Change, GuardEnd, GuardState, GuardStatus, Listing, NodeState, NodeStatus, Phase, Place, ProcStatus, Revision,
    StartBatch, StartOrder,
};
pub use change_log::{ChangeLog, ChangeLogBounds, ChangeLogCounts};
pub use direct::{
    Answered, CANNOT_VARIABLE, DUMP_VARIABLE, DirectBatch, Directive, DumpManifest, DumpPart, Endpoint, FIGURES_MAX,
    FailureKind, InMemory, JOIN_VARIABLE, LinkStatus, Linked, MEMORY_EVERY_VARIABLE, MEMORY_LATE_VARIABLE, MemoryCopy,
    Peer, Point, Saying, StateDigest, StepFailure, Window, WorkerSaid, WorkerState,
};
pub use fleet::Fleet;
pub use foreign::{ForeignBuilder, ForeignCounts, ForeignError, ForeignProcs, ForeignStates, LogSteps, StepPattern};
pub(crate) use guard::run_dir::proc_name as proc_dir_name;
#[cfg(any(test, feature = "test-util"))]
pub use launcher::MockLauncher;
pub use launcher::{LaunchError, Launcher, LauncherExt, LauncherInfo, WithTimeout};
pub use local::{
    GuardProgram, Heartbeats, LinkCounts, LocalCounters, LocalError, LocalLauncher, LocalLauncherBuilder, OnOwnerLoss,
    Recordings,
};

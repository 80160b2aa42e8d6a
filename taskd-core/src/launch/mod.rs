//! Start, stop and watch processes: the trait [`Launcher`] and the local launcher with its guard.
//!
//! It decides nothing: which process is to run where stands in the order.

mod change;
mod change_log;
pub mod guard;
mod launcher;
mod local;

pub use change::{Change, Listing, NodeState, NodeStatus, Phase, Place, ProcStatus, Revision, StartBatch, StartOrder};
pub use change_log::{ChangeLog, ChangeLogBounds, ChangeLogCounts};
#[cfg(any(test, feature = "test-util"))]
pub use launcher::MockLauncher;
pub use launcher::{LaunchError, Launcher, LauncherExt, LauncherInfo, WithTimeout};
pub use local::{
    GuardProgram, Heartbeats, LocalCounters, LocalError, LocalLauncher, LocalLauncherBuilder, OnOwnerLoss,
};

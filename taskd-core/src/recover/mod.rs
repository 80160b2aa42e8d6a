//! What would mend a fault, and at what cost: the trait [`RecoveryStrategy`], proposals as data, the built-in ladder.
//!
//! Strategies are pure and have no state. They never start a process: a proposal is data that the kernel turns into
//! commands and the shell carries out.

use crate::job::Name;

mod coverage;
mod exit;
mod in_process;
pub(crate) mod placement;
mod proposal;
mod restart;
pub(crate) mod stages;
mod strategy;

pub use coverage::{Covered, CoveredBy, Loss, coverage};
pub use exit::ExitStrategy;
pub(crate) use in_process::unproven;
pub use in_process::{Dump, Grow, Recover, Retry, Shrink};
pub use proposal::{Action, Cost, Done, Failure, Incident, Need, Output, Proposal, Run, Stage};
pub use restart::Restart;
#[cfg(any(test, feature = "test-util"))]
pub use strategy::MockRecoveryStrategy;
pub use strategy::{Beforehand, Limited, Next, RecoveryStrategy, StrategyExt};
pub(crate) use strategy::{cannot, possible};

/// The strategy that saves a checkpoint of the survivors' state, and that an operator asks for by
/// [`Order::Dump`](crate::kernel::Order::Dump).
pub const DUMP: Name = Name::new("dump");

/// The strategy that goes on without the ranks that are lost.
pub const SHRINK: Name = Name::new("shrink");

/// The strategy that starts all ranks again.
pub const RESTART: Name = Name::new("restart");

/// The strategy that brings them back, which [`ShrunkDetector`](crate::detect::ShrunkDetector) advises.
pub const GROW: Name = Name::new("grow");

/// The recovery ladder of a usual job, from cheap to dear: `retry`, `recover-in-place`, `recover`, `shrink`, `grow`, `dump`,
/// `restart`, `dump-exit`, `exit`. All before restart, and dump-exit, refuse where the training program has no control link, and the latter where the job
/// names no directory for checkpoints ([`Policy::dump_dir`](crate::job::Policy::dump_dir)).
#[must_use]
pub fn defaults() -> Vec<Box<dyn RecoveryStrategy>> {
    vec![
        Retry::default().boxed(),
        Recover::in_place().boxed(),
        Recover::elsewhere().boxed(),
        Shrink::new().boxed(),
        Grow::new().boxed(),
        Dump::and_restart().boxed(),
        Restart::default().boxed(),
        Dump::and_exit().boxed(),
        ExitStrategy::new().boxed(),
    ]
}

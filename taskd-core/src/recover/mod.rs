//! What would mend a fault, and at what cost: the trait [`RecoveryStrategy`], proposals as data, the built-in ladder.
//!
//! Strategies are pure and have no state. They never start a process: a proposal is data that the kernel turns into
//! commands and the shell carries out.

use crate::job::Name;

mod exit;
pub(crate) mod placement;
mod proposal;
mod restart;
pub(crate) mod stages;
mod strategy;

pub use exit::ExitStrategy;
pub use proposal::{Action, Cost, Done, Failure, Incident, Need, Output, Proposal, Run, Stage};
pub use restart::Restart;
#[cfg(any(test, feature = "test-util"))]
pub use strategy::MockRecoveryStrategy;
pub use strategy::{Limited, Next, RecoveryStrategy, StrategyExt};

/// The strategy that saves a checkpoint of the survivors' state, and that an operator asks for by
/// [`Order::Dump`](crate::kernel::Order::Dump).
pub const DUMP: Name = Name::new("dump");

/// The recovery ladder of a usual job: `restart`, then `exit`.
#[must_use]
pub fn defaults() -> Vec<Box<dyn RecoveryStrategy>> {
    vec![Restart::default().boxed(), ExitStrategy::new().boxed()]
}

//! Recovery: the trait [`RecoveryStrategy`], proposals as data, and the built-in recovery ladder.
//!
//! Strategies are pure and stateless. They never start a process: a proposal is data that the kernel turns into
//! commands and the shell carries out.

mod coverage;
mod exit;
mod in_process;
mod proposal;
mod refusal;
mod restart;
pub(crate) mod stages;
mod strategy;

pub use crate::job::strategy::{DUMP, GROW, RESTART, SHRINK};
pub use coverage::{Covered, CoveredBy, Loss, coverage};
pub use exit::ExitStrategy;
#[doc(hidden)]
pub use in_process::unproven;
pub use in_process::{EmergencyCheckpoint, Grow, Recover, Retry, Shrink};
pub use proposal::{
    Action, CommandOutcome, Cost, FAULTS_PER_INCIDENT_MAX, Failure, Incident, PlanExecution, Proposal, Quorum, Stage,
    TargetReply,
};
pub use refusal::{RefusalError, RefusalKind};
pub use restart::Restart;
#[cfg(any(test, feature = "test-util"))]
pub use strategy::MockRecoveryStrategy;
pub use strategy::{Advance, JobProfile, Limit, RecoveryStrategy, RecoveryStrategyExt};
#[doc(hidden)]
pub use strategy::{cannot, possible};

/// Returns the default recovery strategies (the ladder), from cheap to expensive.
///
/// They are `retry`, `recover-in-place`, `recover`, `shrink`, `grow`, `dump`, `restart`, `dump-exit` and `exit`. All
/// strategies before `restart`, and `dump-exit`, refuse if the training program has no control link. `dump` and
/// `dump-exit` refuse if the job names no checkpoint directory
/// ([`Policy::checkpoint_dir`](crate::job::Policy::checkpoint_dir)).
#[must_use]
pub fn defaults() -> Vec<Box<dyn RecoveryStrategy>> {
    vec![
        Retry::default().boxed(),
        Recover::in_place().boxed(),
        Recover::elsewhere().boxed(),
        Shrink::new().boxed(),
        Grow::new().boxed(),
        EmergencyCheckpoint::then_restart().boxed(),
        Restart::default().boxed(),
        EmergencyCheckpoint::then_exit().boxed(),
        ExitStrategy::new().boxed(),
    ]
}

//! The kernel's safety checks by name, so that the simulation can show that it notices when one is missing.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One safety check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Check {
    /// No two recoveries whose domains overlap run at one time.
    DomainExclusion,
    /// What an older incarnation says is dropped.
    IncarnationFence,
    /// What is said of an older generation is dropped.
    GenerationFence,
    /// Recoveries never exceed the budget.
    Budget,
    /// The answer to a command of a cancelled plan is dropped.
    LateCompletionDrop,
    /// A deadline comes only after what arrived before it.
    DeadlineAfterObservations,
    /// A failure that a process has survived in an older world is dropped.
    StepFailureFence,
    /// Who has ended is not waited for to do what it was told.
    AnswerForTheDead,
}

impl Check {
    /// All of them.
    pub const ALL: [Check; 8] = [
        Check::DomainExclusion,
        Check::IncarnationFence,
        Check::GenerationFence,
        Check::Budget,
        Check::LateCompletionDrop,
        Check::DeadlineAfterObservations,
        Check::StepFailureFence,
        Check::AnswerForTheDead,
    ];

    /// A stable short name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Check::DomainExclusion => "domain-exclusion",
            Check::IncarnationFence => "incarnation-fence",
            Check::GenerationFence => "generation-fence",
            Check::Budget => "budget",
            Check::LateCompletionDrop => "late-completion-drop",
            Check::DeadlineAfterObservations => "deadline-after-observations",
            Check::StepFailureFence => "step-failure-fence",
            Check::AnswerForTheDead => "answer-for-the-dead",
        }
    }
}

/// Which checks are in force: all, except in a simulation that shows what one of them is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks(BTreeSet<Check>);

impl Checks {
    /// All checks but one.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn without(check: Check) -> Checks {
        Checks([check].into())
    }

    /// Whether a check is in force.
    #[must_use]
    pub fn has(&self, check: Check) -> bool {
        self.0.is_empty() || !self.0.contains(&check)
    }
}

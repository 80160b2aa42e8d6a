//! Names of the kernel's safety checks, so that the simulation can switch one off and show that it detects the effect.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A safety check of the decision kernel, which a simulation can switch off to show what happens without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Check {
    /// Two recoveries whose domains overlap never run at the same time.
    DomainExclusion,
    /// Messages of another incarnation (start of the same rank or service) than the latest known one are dropped.
    IncarnationFence,
    /// Observations of an older generation (an earlier set of ranks that trained together) are dropped.
    GenerationFence,
    /// The number of recoveries never exceeds the recovery budget.
    Budget,
    /// An answer to a command of a cancelled recovery is dropped.
    LateCompletionDrop,
    /// A deadline is handled only after the observations that arrived before it.
    DeadlineAfterObservations,
    /// The report of a failed training step is dropped if it is from an older generation (an earlier set of ranks that
    /// trained together).
    StepFailureFence,
    /// A directive to a process that has ended fails at once, instead of at its time limit.
    AnswerForTheDead,
}

impl Check {
    /// All safety checks of the kernel.
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

    /// Returns the stable short name of the check, such as `incarnation-fence`.
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

/// Selection of the decision kernel's safety checks that are switched on: all, except in a simulation that switches
/// one off to show its effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks(BTreeSet<Check>);

impl Checks {
    /// Returns a selection in which all safety checks except `check` are switched on.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn without(check: Check) -> Checks {
        Checks([check].into())
    }

    /// Returns true if this safety check is switched on.
    #[must_use]
    pub fn has(&self, check: Check) -> bool {
        self.0.is_empty() || !self.0.contains(&check)
    }
}

//! Counters of the kernel: everything that it dropped or bounded, and how often each decision branch was taken.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All variants of this enum, in the order of their declaration.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// Returns the stable short name of the variant (drop reason or decision branch), for tables and metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

counted! {
    /// Reason why the kernel dropped an item, or bound that it reached; the kernel counts each.
    DropReason {
        /// An observation or change of an older incarnation.
        OldIncarnation => "old-incarnation",
        /// A fault of a process that a newer one has replaced.
        OutdatedFault => "outdated-fault",
        /// An observation of an older generation.
        OldGeneration => "old-generation",
        /// A change that was reported before, or that would move a process backwards.
        RepeatedChange => "repeated-change",
        /// The answer to a command of a plan that is no longer carried out.
        LateAnswer => "late-answer",
        /// The answer to a command whose time limit had passed.
        TimedOutAnswer => "timed-out-answer",
        /// A second answer of one target.
        RepeatedAnswer => "repeated-answer",
        /// A fault that the incident already contains.
        RepeatedFault => "repeated-fault",
        /// Mere advice while a recovery is in progress. It would have cancelled the recovery, and the detector repeats
        /// it.
        AdviceMeanwhile => "advice-meanwhile",
        /// A fault that was found while the job was ending.
        FaultAtEnd => "fault-at-end",
        /// A detector whose deadline stayed in the past was held back.
        StubbornDeadline => "stubborn-deadline",
        /// Entries of an incident were dropped, because it reached its bound.
        IncidentBound => "incident-bound",
        /// The oldest closed incident was dropped from the report, because that reached its bound.
        ReportBound => "report-bound",
        /// A detector's probe was not sent, because too many were open.
        QuestionBound => "question-bound",
    }
}

counted! {
    /// A branch of the kernel's decision logic, which counts how often it was taken. The simulation checks that each is
    /// taken, and how often.
    Branch {
        /// A fault opened an incident.
        Opened => "opened",
        /// A fault joined an incident in its correlation window.
        Correlated => "correlated",
        /// A fault joined an incident because their domains overlap.
        Overlapped => "overlapped",
        /// A victim joined the newest open incident: something else failed first.
        Explained => "explained",
        /// A fault absorbed faults of its parts.
        Absorbed => "absorbed",
        /// A fault joined an incident whose recovery replaces the process anyway.
        Covered => "covered",
        /// An incident was closed because another recovery had replaced all that was blamed.
        Overtaken => "overtaken",
        /// A fault was reported again with better information.
        Refined => "refined",
        /// An incident was closed because its detector withdrew the fault.
        Cleared => "cleared",
        /// An incident does not concern the job: it was recorded, and nothing was done.
        Noted => "noted",
        /// A proposal was chosen because it was the cheapest.
        ChosenCheapest => "chosen-cheapest",
        /// A proposal was chosen on a detector's advice.
        ChosenAdvised => "chosen-advised",
        /// A chosen proposal had to wait for a recovery that affects the same domains.
        Excluded => "excluded",
        /// A decision waited for a report of a rank whose control link had just closed.
        AwaitedWord => "awaited-word",
        /// A strategy was not asked: it is not allowed.
        NotAllowed => "not-allowed",
        /// A strategy was not asked: it failed too often in this incident.
        TriedEnough => "tried-enough",
        /// A strategy refused.
        Refused => "refused",
        /// A proposal lost because the recovery budget is spent.
        BudgetSpent => "budget-spent",
        /// A recovery was free: it did not draw on the budget.
        FreeRetry => "free-retry",
        /// No strategy was left, and the job ends.
        LadderEnded => "ladder-ended",
        /// A run was cancelled by a new fault.
        Cancelled => "cancelled",
        /// A run was aborted because another one had put a newer world in force.
        Outrun => "outrun",
        /// A stage succeeded.
        StageDone => "stage-done",
        /// A stage failed: a target refused or was gone.
        StageFailed => "stage-failed",
        /// A stage failed: a target did not answer in time.
        StageTimedOut => "stage-timed-out",
        /// A strategy replaced the remaining stages.
        Replaced => "replaced",
        /// A strategy failed its run between stages.
        GaveUp => "gave-up",
        /// An incident was closed after a recovery.
        Recovered => "recovered",
        /// A probe for evidence was sent.
        Asked => "asked",
        /// A probe was not answered; silence counts as evidence.
        SilentEvidence => "silent-evidence",
        /// The supervisor slept, and deadlines were extended.
        Slept => "slept",
        /// A process has survived a failure of its step and waits.
        StepFailed => "step-failed",
        /// A process that is not wanted was found running, and is stopped.
        StrayStopped => "stray-stopped",
        /// A process that should exist was missing from a listing.
        Missing => "missing",
        /// The start of the job failed, and was turned into a fault.
        StartFailed => "start-failed",
        /// The job cannot be started at all.
        StartRefused => "start-refused",
        /// The job was asked to stop.
        StopRequested => "stop-requested",
        /// All ranks completed successfully.
        Completed => "completed",
        /// An operator's order was carried out.
        OrderTaken => "order-taken",
        /// An operator's order was refused.
        OrderDenied => "order-denied",
        /// An operator's request could not be carried out, and no other fault was open.
        WishDropped => "wish-dropped",
        /// A decision was held: the runtime only observes.
        HeldObserving => "held-observing",
        /// A decision was held: an operator has paused the runtime.
        HeldPaused => "held-paused",
        /// A decision was held: it waits for an operator's approval.
        HeldAsking => "held-asking",
        /// A held decision was approved.
        Approved => "approved",
        /// A held decision was declined.
        Declined => "declined",
        /// A host was taken out of the job.
        Cordoned => "cordoned",
        /// A process that another system had started was adopted.
        Adopted => "adopted",
        /// Another system recovered from an incident that this runtime only observed.
        MendedByOthers => "mended-by-others",
        /// A failure during a recovery, or soon after it, was charged to its strategy.
        Charged => "charged",
        /// A strategy was chosen although it was charged as often as it may fail: the job would have ended otherwise.
        ChargedTaken => "charged-taken",
    }
}

/// The counters of a decision kernel: how often it dropped items, reached bounds, and took each decision branch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counts {
    /// How often the decision kernel dropped an item, such as an observation or an answer, or reached a bound, by
    /// reason.
    pub drops: BTreeMap<DropReason, u64>,
    /// How often each branch of the decision logic was taken.
    pub branches: BTreeMap<Branch, u64>,
}

impl Counts {
    /// Adds the counters of another kernel to these.
    pub fn add(&mut self, other: &Counts) {
        other.drops.iter().for_each(|(what, n)| *self.drops.entry(*what).or_default() += n);
        other.branches.iter().for_each(|(which, n)| *self.branches.entry(*which).or_default() += n);
    }

    pub(crate) fn drop(&mut self, what: DropReason) {
        *self.drops.entry(what).or_default() += 1;
    }

    pub(crate) fn branch(&mut self, which: Branch) {
        *self.branches.entry(which).or_default() += 1;
    }
}

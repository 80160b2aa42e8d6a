//! What the kernel counts: everything that it dropped or bounded, and how often each decision branch was taken.

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
            /// All of them, in order.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// A stable short name, for tables and metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

counted! {
    /// Something that the kernel dropped, or a bound that it reached.
    Drop {
        /// An observation or change of an older incarnation.
        OldIncarnation => "old-incarnation",
        /// A fault of a process that a newer one has replaced.
        OutdatedFault => "outdated-fault",
        /// An observation of an older generation.
        OldGeneration => "old-generation",
        /// A change that was told before, or that would move a process backwards.
        RepeatedChange => "repeated-change",
        /// The answer to a command of a plan that is no longer carried out.
        LateAnswer => "late-answer",
        /// The answer to a command whose time limit was over.
        TimedOutAnswer => "timed-out-answer",
        /// A second answer of one target.
        RepeatedAnswer => "repeated-answer",
        /// A fault that the incident has already.
        RepeatedFault => "repeated-fault",
        /// Mere advice while something is mended: it would have broken the recovery off, and its detector gives it again.
        AdviceMeanwhile => "advice-meanwhile",
        /// A fault that was found while the job was being ended.
        FaultAtEnd => "fault-at-end",
        /// A detector whose deadline stayed in the past was held back.
        StubbornDeadline => "stubborn-deadline",
        /// An incident's oldest or newest entries went: it reached its bound.
        IncidentBound => "incident-bound",
        /// The oldest closed incident left the report: it reached its bound.
        ReportBound => "report-bound",
        /// A question to sources was not asked: too many were open.
        QuestionBound => "question-bound",
    }
}

counted! {
    /// A branch of the decision logic. The simulation shows that each is taken, and how often.
    Branch {
        /// A fault opened an incident.
        Opened => "opened",
        /// A fault joined an incident in its correlation window.
        Correlated => "correlated",
        /// A fault joined an incident because their domains overlap.
        Overlapped => "overlapped",
        /// A victim joined the newest open incident: something else failed first.
        Explained => "explained",
        /// A fault took in faults of its parts.
        Absorbed => "absorbed",
        /// A fault joined an incident whose recovery replaces its process anyway.
        Covered => "covered",
        /// An incident was closed because another recovery had replaced all that was blamed.
        Overtaken => "overtaken",
        /// A fault was told again with better knowledge.
        Refined => "refined",
        /// An incident was closed because its detector took the blame back.
        Cleared => "cleared",
        /// An incident does not concern the job: it was noted, and nothing was done.
        Noted => "noted",
        /// A proposal was chosen for being the cheapest.
        ChosenCheapest => "chosen-cheapest",
        /// A proposal was chosen on a detector's advice.
        ChosenAdvised => "chosen-advised",
        /// A chosen proposal waited for a recovery that touches the same domains.
        Excluded => "excluded",
        /// A decision waited for word of a rank whose control link had just gone.
        AwaitedWord => "awaited-word",
        /// A strategy was not asked: it is not allowed.
        NotAllowed => "not-allowed",
        /// A strategy was not asked: it failed too often in this incident.
        TriedEnough => "tried-enough",
        /// A strategy refused.
        Refused => "refused",
        /// A proposal lost because the recovery budget is spent.
        BudgetSpent => "budget-spent",
        /// A recovery did not draw on the budget.
        FreeRetry => "free-retry",
        /// No strategy was left: the job ends.
        LadderEnded => "ladder-ended",
        /// A run was cancelled by a new fault.
        Cancelled => "cancelled",
        /// A run was given up because another one had put a newer world in force.
        Outrun => "outrun",
        /// A stage ended well.
        StageDone => "stage-done",
        /// A stage failed: a target refused, or was gone.
        StageFailed => "stage-failed",
        /// A stage failed: a target did not answer in time.
        StageTimedOut => "stage-timed-out",
        /// A strategy put other stages in the place of the rest.
        Replaced => "replaced",
        /// A strategy gave up between stages.
        GaveUp => "gave-up",
        /// An incident was closed after a recovery.
        Recovered => "recovered",
        /// Evidence was asked for.
        Asked => "asked",
        /// Silence was evidence.
        SilentEvidence => "silent-evidence",
        /// The supervisor slept, and deadlines were armed anew.
        Slept => "slept",
        /// A process has survived a failure of its step, and waits.
        StepFailed => "step-failed",
        /// A process that nobody wants was found running, and is stopped.
        StrayStopped => "stray-stopped",
        /// A process that should be there was missing from a listing.
        Missing => "missing",
        /// The job did not start, and a fault was made of that.
        StartFailed => "start-failed",
        /// The job cannot be started at all.
        StartRefused => "start-refused",
        /// The job was asked to stop.
        StopRequested => "stop-requested",
        /// All ranks ended well.
        Completed => "completed",
        /// An operator's order was followed.
        OrderTaken => "order-taken",
        /// An operator's order was not followed.
        OrderDenied => "order-denied",
        /// An operator's wish came to nothing, and nothing else was amiss.
        WishDropped => "wish-dropped",
        /// A decision was held: the runtime only observes.
        HeldObserving => "held-observing",
        /// A decision was held: an operator has paused the runtime.
        HeldPaused => "held-paused",
        /// A decision was held for an operator's approval.
        HeldAsking => "held-asking",
        /// A held decision was approved.
        Approved => "approved",
        /// A held decision was declined.
        Declined => "declined",
        /// A host was taken out of the job.
        Cordoned => "cordoned",
        /// A process that something else had started was taken as it is.
        Adopted => "adopted",
        /// Something else has mended what was only observed.
        MendedByOthers => "mended-by-others",
        /// What failed in the middle of a recovery, or soon after it, was charged to its strategy.
        Charged => "charged",
        /// A strategy that was charged as often as it may fail was taken all the same: the job would have ended.
        ChargedTaken => "charged-taken",
    }
}

/// How often what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counts {
    /// Drops and bounds.
    pub drops: BTreeMap<Drop, u64>,
    /// Decision branches.
    pub branches: BTreeMap<Branch, u64>,
}

impl Counts {
    /// Adds what another kernel has counted.
    pub fn add(&mut self, other: &Counts) {
        other.drops.iter().for_each(|(what, n)| *self.drops.entry(*what).or_default() += n);
        other.branches.iter().for_each(|(which, n)| *self.branches.entry(*which).or_default() += n);
    }

    pub(crate) fn drop(&mut self, what: Drop) {
        *self.drops.entry(what).or_default() += 1;
    }

    pub(crate) fn branch(&mut self, which: Branch) {
        *self.branches.entry(which).or_default() += 1;
    }
}

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
        /// An observation, a change or a message of another incarnation than the latest known one of its rank or
        /// service.
        OldIncarnation => "old-incarnation",
        /// A fault of a process that a newer one has replaced, or of a rank that has left the world.
        OutdatedFault => "outdated-fault",
        /// An observation, or a report of a process about itself, of an older generation.
        OldGeneration => "old-generation",
        /// A change that was reported before, or that would move a process backwards.
        RepeatedChange => "repeated-change",
        /// The answer to a command of a recovery, or of the job's first start, that was cancelled.
        LateAnswer => "late-answer",
        /// The answer to a command whose time limit had passed.
        TimedOutAnswer => "timed-out-answer",
        /// A second answer of a target to the same command.
        RepeatedAnswer => "repeated-answer",
        /// A fault that the incident already contains.
        RepeatedFault => "repeated-fault",
        /// Mere advice ([`Fault::is_mere_advice`](crate::detect::Fault::is_mere_advice)) while an incident was open and
        /// not held. The advice would have cancelled the recovery, and the detector repeats it.
        AdviceMeanwhile => "advice-meanwhile",
        /// A fault that was found while the job was ending.
        FaultAtEnd => "fault-at-end",
        /// The deadline of a detector was ignored for one second, because `expire` had not moved it into the future.
        StubbornDeadline => "stubborn-deadline",
        /// A fault joined an incident that already kept
        /// [`FAULTS_PER_INCIDENT_MAX`](crate::recover::FAULTS_PER_INCIDENT_MAX) faults: it replaced another fault, or
        /// was not kept.
        IncidentBound => "incident-bound",
        /// The oldest closed incident was dropped, because the report already had
        /// [`INCIDENTS_REPORTED_MAX`](super::INCIDENTS_REPORTED_MAX) of them.
        ReportBound => "report-bound",
        /// A detector's probe was not sent, because [`QUESTIONS_MAX`](super::QUESTIONS_MAX) probes were waiting for
        /// replies.
        QuestionBound => "question-bound",
    }
}

counted! {
    /// A branch of the kernel's decision logic, which counts how often it was taken. The simulation checks that each is
    /// taken, and how often.
    Branch {
        /// A fault opened an incident.
        Opened => "opened",
        /// A fault joined an incident whose correlation window was open.
        Correlated => "correlated",
        /// A fault joined an incident because their domains overlap.
        Overlapped => "overlapped",
        /// A victim joined the newest open incident: something else failed first.
        Explained => "explained",
        /// A fault of a host, a device or a group replaced the faults of parts of this domain in its incident.
        Absorbed => "absorbed",
        /// A fault joined an incident whose recovery, in progress or held, already takes care of it, for example
        /// because the recovery replaces the process.
        Covered => "covered",
        /// An incident was closed because another recovery had replaced all that was blamed.
        Overtaken => "overtaken",
        /// A known fault was reported again, and the report replaced it, because it had more information.
        Refined => "refined",
        /// An incident was closed because a detector withdrew its faults.
        Cleared => "cleared",
        /// An incident was closed without a recovery, because all its faults are in plugins of the runtime.
        Noted => "noted",
        /// A proposal was chosen because it was the cheapest.
        ChosenCheapest => "chosen-cheapest",
        /// A proposal was chosen on a detector's advice.
        ChosenAdvised => "chosen-advised",
        /// A chosen proposal had to wait for a recovery that affects the same domains.
        Excluded => "excluded",
        /// A decision waited for a report of a rank that had just ended, or whose control link had just closed, or for a host
        /// that is out of sight or was lost and may return.
        AwaitedWord => "awaited-word",
        /// A strategy was not asked for a proposal, because the policy does not allow it.
        NotAllowed => "not-allowed",
        /// A strategy was not asked for a proposal, because it has failed too often in this incident.
        TriedEnough => "tried-enough",
        /// A strategy was asked for a proposal and refused, with a reason.
        Refused => "refused",
        /// A proposal was refused, because the recovery budget is spent.
        BudgetSpent => "budget-spent",
        /// A recovery was begun that did not draw on the budget, because it does not count as a restart.
        FreeRetry => "free-retry",
        /// No proposal was left for an incident. The job ends, unless it can continue without a recovery.
        LadderEnded => "ladder-ended",
        /// A recovery, or the job's first start, was cancelled, for example because of a new fault or because the job
        /// ends.
        Cancelled => "cancelled",
        /// A recovery was cancelled because another one had put a newer world in force.
        Outrun => "outrun",
        /// A stage of a recovery, or of the job's first start or end, succeeded.
        StageDone => "stage-done",
        /// A stage failed before its time limit, for example because a target refused or was gone.
        StageFailed => "stage-failed",
        /// A stage failed because a target did not answer in time.
        StageTimedOut => "stage-timed-out",
        /// A strategy replaced the remaining stages of its recovery.
        Replaced => "replaced",
        /// A strategy ended its recovery as failed between two stages.
        GaveUp => "gave-up",
        /// An incident was closed after a recovery.
        Recovered => "recovered",
        /// A detector's probe was sent.
        Asked => "asked",
        /// A domain did not answer a probe. The detector receives this silence as evidence.
        SilentEvidence => "silent-evidence",
        /// The supervisor did not run for a while, or a guard did not respond for a while, and deadlines were extended.
        Slept => "slept",
        /// A process has reported that it survived a failure of its step and waits.
        StepFailed => "step-failed",
        /// The kernel ordered the stop of a process that runs although the kernel does not want it to run.
        StrayStopped => "stray-stopped",
        /// A process that has not exited was missing from a listing, or a newer process that this kernel did not start
        /// was found in its place.
        Missing => "missing",
        /// The first start of the job failed, and the failure was turned into a fault.
        StartFailed => "start-failed",
        /// The job ended because the launcher refused its first start.
        StartRefused => "start-refused",
        /// A stop of the job was requested.
        StopRequested => "stop-requested",
        /// All ranks completed successfully.
        Completed => "completed",
        /// An operator's order was accepted.
        OrderTaken => "order-taken",
        /// An operator's order was refused.
        OrderDenied => "order-denied",
        /// An incident was closed without a recovery because no proposal was left, and the job continues: the incident
        /// is only an operator's request, or it has stopped no process.
        WishDropped => "wish-dropped",
        /// A decision was held, because the runtime only observes.
        HeldObserving => "held-observing",
        /// A decision was held, because an operator has paused the runtime.
        HeldPaused => "held-paused",
        /// A decision was held until an operator approves it.
        HeldAsking => "held-asking",
        /// A held decision was approved.
        Approved => "approved",
        /// A held decision was declined.
        Declined => "declined",
        /// A host was taken out of the job.
        Cordoned => "cordoned",
        /// In dry-run mode, a process that another system had started was recorded as the current one of its rank or
        /// service.
        Adopted => "adopted",
        /// The kernel took over the processes of a job that another supervisor had left without its log.
        Resumed => "resumed",
        /// Another system recovered from an incident that this runtime only observed.
        MendedByOthers => "mended-by-others",
        /// A failure during a recovery, or soon after it, was charged to its strategy.
        Charged => "charged",
        /// A strategy that was charged with as many failures as it may have was considered again, because the job would
        /// have ended otherwise.
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

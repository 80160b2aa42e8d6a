//! The kinds of faults.

use serde::{Deserialize, Serialize};

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident => $text:literal,)*) => {
        /// A kind of injected fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum FaultKind { $($(#[$doc])* $variant,)* }

        impl FaultKind {
            /// All of them, in order.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$variant),*];

            /// A stable short name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(FaultKind::$variant => $text,)* }
            }
        }
    };
}

kinds! {
    /// A rank ends: by an exit code, by a signal, with or without an error of its own.
    Crash => "crash",
    /// Two ranks end at once.
    CrashTogether => "crash-together",
    /// A rank ends, and its next process soon after.
    CrashAgain => "crash-again",
    /// The service that all ranks need ends.
    ServiceLost => "service-lost",
    /// A rank freezes: no heartbeat, no step.
    Hang => "hang",
    /// A rank freezes for so short a time that nobody may be blamed.
    Pause => "pause",
    /// A rank is busy: no heartbeat and no step for longer than silence may last, and its process runs. Nobody may be blamed.
    Busy => "busy",
    /// All ranks of a host wait for a processor for as long. Nobody may be blamed.
    HostOverloaded => "host-overloaded",
    /// A rank records its failure, and hangs in what it does at its exit; its heartbeat goes on.
    StuckAtExit => "stuck-at-exit",
    /// All ranks wait for each other for ever; their heartbeats go on.
    Deadlock => "deadlock",
    /// A rank is slow, and the job with it.
    Slow => "slow",
    /// A vendor's error makes a rank suspect: frozen in half of the cases; witnesses are late or silent.
    Suspicion => "suspicion",
    /// An operator blames a rank, sometimes one that has been replaced already.
    OperatorFault => "operator-fault",
    /// A host is out of sight for a while, and back or lost after it.
    HostOutOfSight => "host-out-of-sight",
    /// A host is gone with all that ran there.
    HostLeft => "host-left",
    /// The launcher refuses the next start.
    LauncherRefuses => "launcher-refuses",
    /// The launcher is out of reach at the next start.
    LauncherUnreachable => "launcher-unreachable",
    /// The launcher takes its time with the next start: the order may overtake its own stop.
    LauncherSlow => "launcher-slow",
    /// The launcher accepts the next start, and a process of it ends at once.
    StillBirth => "still-birth",
    /// The first rank of the next start finds its port taken.
    PortRace => "port-race",
    /// The launcher's history is lost and read anew.
    HistoryLost => "history-lost",
    /// A guard is gone: its processes with their exits, and the history.
    ProcessesLost => "processes-lost",
    /// A source says nothing for a while, then everything.
    SourceSilent => "source-silent",
    /// Heartbeats arrive just before their deadline, while the supervisor is busy.
    LateHeartbeat => "late-heartbeat",
    /// The supervisor does not run for a while.
    SupervisorAsleep => "supervisor-asleep",
    /// The supervisor is killed in the middle of its commands and goes on from its log.
    SupervisorKilled => "supervisor-killed",
    /// A detector panics.
    PluginPanic => "plugin-panic",
    /// A link goes down and is up again within the correlation window.
    LinkFlap => "link-flap",
    /// A collective fails on all ranks, and nobody has died: some say so, or all.
    CollectiveFails => "collective-fails",
    /// A rank says that its own step has failed, and lives.
    StepFails => "step-fails",
    /// Every rank is torn inside of its commit window by a fault.
    AllTorn => "all-torn",
    /// A control link is lost while the job trains, and comes back, or not.
    ControlLinkLost => "control-link-lost",
    /// A survivor ends while survivors are told what to do.
    SurvivorLost => "survivor-lost",
    /// A survivor freezes while survivors are told what to do.
    SurvivorFrozen => "survivor-frozen",
    /// A rank that was started to join the survivors ends before it has.
    NewcomerLost => "newcomer-lost",
    /// A rank that was started to join the survivors never comes to its step loop.
    NewcomerNeverParks => "newcomer-never-parks",
    /// A control link is lost while its process is told what to do, and comes back.
    LinkLostWhileTold => "link-lost-while-told",
    /// The same, and it never comes back.
    LinkCutWhileTold => "link-cut-while-told",
    /// The answer to a directive is lost with its link; the directive is given again.
    AnswerLost => "answer-lost",
    /// The answer to a directive comes late, sometimes too late.
    AnswerLate => "answer-late",
    /// A process answers once more what it was told in an older world, and says of that what had failed.
    AnswerStale => "answer-stale",
    /// A process refuses a directive.
    DirectiveRefused => "directive-refused",
    /// The supervisor is killed while survivors do what they were told.
    KilledWhileTelling => "killed-while-telling",
    /// An operator drains a host, whether there is room elsewhere or not, and mostly uses it again later.
    OrderDrain => "order-drain",
    /// An operator has some ranks started anew, or all of them.
    OrderRestart => "order-restart",
    /// An operator pauses the runtime for a while.
    OrderPause => "order-pause",
    /// An operator forbids a strategy for a while, or wants to be asked about it.
    OrderAllow => "order-allow",
    /// An operator orders something that has to be denied.
    OrderSlip => "order-slip",
    /// Somebody outside reports that a host or one of its devices is broken.
    HostBroken => "host-broken",
    /// An operator stops the job.
    OperatorStop => "operator-stop",
    /// The program fails at one step, each time.
    ProgramBroken => "program-broken",
    /// Ranks crash again and again.
    BudgetDrained => "budget-drained",
    /// A rank exits with the code that says "do not restart me".
    DoNotRestart => "do-not-restart",
    /// An operator forbids everything that could mend the job.
    AllForbidden => "all-forbidden",
}

impl FaultKind {
    /// Those that may strike while the job runs, as often as you like.
    const PASSING: &[FaultKind] = &[
        FaultKind::Crash,
        FaultKind::Crash,
        FaultKind::CrashTogether,
        FaultKind::CrashAgain,
        FaultKind::ServiceLost,
        FaultKind::Hang,
        FaultKind::Hang,
        FaultKind::Pause,
        FaultKind::Busy,
        FaultKind::HostOverloaded,
        FaultKind::StuckAtExit,
        FaultKind::Deadlock,
        FaultKind::Slow,
        FaultKind::Suspicion,
        FaultKind::OperatorFault,
        FaultKind::HostOutOfSight,
        FaultKind::HostLeft,
        FaultKind::LauncherRefuses,
        FaultKind::LauncherUnreachable,
        FaultKind::LauncherSlow,
        FaultKind::StillBirth,
        FaultKind::PortRace,
        FaultKind::HistoryLost,
        FaultKind::ProcessesLost,
        FaultKind::SourceSilent,
        FaultKind::LateHeartbeat,
        FaultKind::SupervisorAsleep,
        FaultKind::SupervisorKilled,
        FaultKind::PluginPanic,
        FaultKind::LinkFlap,
    ];

    /// Those that may befall ranks with control links.
    const LINKED: &[FaultKind] = &[
        FaultKind::CollectiveFails,
        FaultKind::CollectiveFails,
        FaultKind::CollectiveFails,
        FaultKind::StepFails,
        FaultKind::AllTorn,
        FaultKind::ControlLinkLost,
        FaultKind::ControlLinkLost,
        FaultKind::SurvivorLost,
        FaultKind::SurvivorLost,
        FaultKind::SurvivorFrozen,
        FaultKind::NewcomerLost,
        FaultKind::NewcomerNeverParks,
        FaultKind::LinkLostWhileTold,
        FaultKind::LinkCutWhileTold,
        FaultKind::AnswerLost,
        FaultKind::AnswerLate,
        FaultKind::AnswerStale,
        FaultKind::DirectiveRefused,
        FaultKind::KilledWhileTelling,
    ];

    /// What comes of operators and their tools. Some of these come on top of the others.
    pub(super) const ORDERED: &[FaultKind] = &[
        FaultKind::OrderDrain,
        FaultKind::OrderDrain,
        FaultKind::OrderRestart,
        FaultKind::OrderPause,
        FaultKind::OrderPause,
        FaultKind::OrderAllow,
        FaultKind::OrderAllow,
        FaultKind::OrderSlip,
        FaultKind::HostBroken,
        FaultKind::HostBroken,
    ];

    /// Those of the passing ones that may befall such a job: what a launcher may do to a start is missing where it is only
    /// observed, and nothing is started.
    pub(super) fn passing(observed: bool, has_service: bool, step_loop: bool) -> Vec<FaultKind> {
        let may = |kind: &&FaultKind| match kind {
            FaultKind::LauncherRefuses | FaultKind::LauncherUnreachable | FaultKind::LauncherSlow => !observed,
            FaultKind::ServiceLost => has_service,
            // What runs an observed job has a watchdog of its own; and who only watches reads no records.
            FaultKind::Busy | FaultKind::HostOverloaded | FaultKind::StuckAtExit => !observed,
            _ => true,
        };
        let linked = if step_loop { FaultKind::LINKED } else { &[] };
        FaultKind::PASSING.iter().filter(may).chain(linked).copied().collect()
    }

    /// Whether a process that it strikes is there and does not run.
    pub(in crate::sim) const fn is_freeze(self) -> bool {
        matches!(self, FaultKind::Hang | FaultKind::Suspicion | FaultKind::SurvivorFrozen | FaultKind::StuckAtExit)
    }

    /// Those for which there is nearly always something to strike.
    pub(super) const EASY: &[FaultKind] = &[
        FaultKind::HistoryLost,
        FaultKind::PluginPanic,
        FaultKind::LinkFlap,
        FaultKind::OperatorFault,
        FaultKind::Crash,
        FaultKind::CrashTogether,
    ];

    /// Those after which the job rightly ends.
    pub(super) const ENDING: &[FaultKind] = &[
        FaultKind::OperatorStop,
        FaultKind::ProgramBroken,
        FaultKind::BudgetDrained,
        FaultKind::DoNotRestart,
        FaultKind::AllForbidden,
    ];
}

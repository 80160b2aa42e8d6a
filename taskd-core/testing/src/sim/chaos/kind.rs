//! The kinds of faults.

use serde::{Deserialize, Serialize};

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident => $text:literal,)*) => {
        /// A kind of fault that the simulation injects into a job.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum FaultKind { $($(#[$doc])* $variant,)* }

        impl FaultKind {
            /// All kinds of faults, in the order in which they are declared.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$variant),*];

            /// Returns the kind's short name, such as `crash`, which does not change between versions.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(FaultKind::$variant => $text,)* }
            }
        }
    };
}

kinds! {
    /// A rank ends: by an exit code or a signal, with or without an error of its own.
    Crash => "crash",
    /// Two ranks end at once.
    CrashTogether => "crash-together",
    /// A rank ends, and so does its next process soon after.
    CrashAgain => "crash-again",
    /// The service that all ranks need ends.
    ServiceLost => "service-lost",
    /// A rank freezes: no heartbeat, no step.
    Hang => "hang",
    /// A rank freezes for so short a time that nothing may be blamed.
    Pause => "pause",
    /// A rank is busy: its process runs, but sends no heartbeat and completes no step for longer than the silence
    /// limit. It must not be blamed.
    Busy => "busy",
    /// All ranks of a host wait for a processor, for the same time. They must not be blamed.
    HostOverloaded => "host-overloaded",
    /// A rank records its failure, and hangs at its exit; its heartbeat continues.
    StuckAtExit => "stuck-at-exit",
    /// All ranks wait for each other forever; their heartbeats continue.
    Deadlock => "deadlock",
    /// A rank is slow, so that the whole job becomes slow.
    Slow => "slow",
    /// A vendor's error makes a rank suspect, which is frozen in half of the cases; witnesses are late or silent.
    Suspicion => "suspicion",
    /// An operator blames a rank, sometimes one that has been replaced already.
    OperatorFault => "operator-fault",
    /// A host is out of sight for a while, and then back or lost.
    HostOutOfSight => "host-out-of-sight",
    /// A host is lost with all processes on it.
    HostLeft => "host-left",
    /// The launcher refuses the next start.
    LauncherRefuses => "launcher-refuses",
    /// The launcher is out of reach at the next start.
    LauncherUnreachable => "launcher-unreachable",
    /// The launcher takes long for the next start: the order may be overtaken by its own stop.
    LauncherSlow => "launcher-slow",
    /// The launcher accepts the next start, and one of its processes ends at once.
    StillBirth => "still-birth",
    /// The first rank of the next start finds its port in use.
    PortRace => "port-race",
    /// The launcher's history is lost and read again.
    HistoryLost => "history-lost",
    /// A guard is lost, with its processes, their exits, and the history.
    ProcessesLost => "processes-lost",
    /// A source delivers nothing for a while, then everything.
    SourceSilent => "source-silent",
    /// Heartbeats arrive just before their deadline, while the supervisor is busy.
    LateHeartbeat => "late-heartbeat",
    /// The supervisor does not run for a while.
    SupervisorAsleep => "supervisor-asleep",
    /// The supervisor is killed while it carries out its commands, and continues from its log.
    SupervisorKilled => "supervisor-killed",
    /// A detector panics.
    PluginPanic => "plugin-panic",
    /// The network link of a rank is reported as down, and as up again within the correlation window.
    LinkFlap => "link-flap",
    /// A collective fails on all ranks, without the death of a process: some ranks report it, or all.
    CollectiveFails => "collective-fails",
    /// A rank reports that its own step has failed, and stays alive.
    StepFails => "step-fails",
    /// A fault tears every rank inside its commit window.
    AllTorn => "all-torn",
    /// A control link is lost while the job trains. In some cases it comes back.
    ControlLinkLost => "control-link-lost",
    /// A survivor ends while survivors carry out directives.
    SurvivorLost => "survivor-lost",
    /// A survivor freezes while survivors carry out directives.
    SurvivorFrozen => "survivor-frozen",
    /// A replacement that was started to join the survivors ends before it has joined.
    ReplacementLost => "newcomer-lost",
    /// A replacement that was started to join the survivors never reaches its step loop.
    ReplacementNeverParks => "newcomer-never-parks",
    /// A control link is lost while its process carries out a directive, and comes back.
    LinkLostWhileDirected => "link-lost-while-told",
    /// A control link is lost while its process carries out a directive, and never comes back.
    LinkCutWhileDirected => "link-cut-while-told",
    /// The reply to a directive is lost with its link; the directive is sent again.
    AnswerLost => "answer-lost",
    /// The reply to a directive is late, sometimes too late.
    AnswerLate => "answer-late",
    /// A process repeats its reply to a directive of an older world, and reports a failure of that world.
    AnswerStale => "answer-stale",
    /// A process refuses a directive.
    DirectiveRefused => "directive-refused",
    /// The supervisor is killed while survivors carry out its directives.
    KilledWhileTelling => "killed-while-telling",
    /// An operator drains a host, whether or not there is room elsewhere, and usually uncordons it later.
    OrderDrain => "order-drain",
    /// An operator restarts some ranks, or all of them.
    OrderRestart => "order-restart",
    /// An operator pauses the runtime for a while.
    OrderPause => "order-pause",
    /// An operator forbids a strategy for a while, or requires approval for it.
    OrderAllow => "order-allow",
    /// An operator gives an order that has to be denied.
    OrderSlip => "order-slip",
    /// An external report states that a host or one of its devices is broken.
    HostBroken => "host-broken",
    /// An operator stops the job.
    OperatorStop => "operator-stop",
    /// The program fails at one step, every time.
    ProgramBroken => "program-broken",
    /// Ranks crash repeatedly, until the recovery budget is spent.
    BudgetDrained => "budget-drained",
    /// A rank exits with the code that means "do not restart me".
    DoNotRestart => "do-not-restart",
    /// An operator forbids every strategy that could repair the job.
    AllForbidden => "all-forbidden",
}

impl FaultKind {
    /// Kinds that may be injected while the job runs, any number of times.
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

    /// Kinds for ranks with control links.
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
        FaultKind::ReplacementLost,
        FaultKind::ReplacementNeverParks,
        FaultKind::LinkLostWhileDirected,
        FaultKind::LinkCutWhileDirected,
        FaultKind::AnswerLost,
        FaultKind::AnswerLate,
        FaultKind::AnswerStale,
        FaultKind::DirectiveRefused,
        FaultKind::KilledWhileTelling,
    ];

    /// Orders and reports of operators and their tools. Some of these are injected in addition to the others.
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

    /// Returns the passing kinds that apply to such a job. Faults of a start are excluded if the job is only observed,
    /// because nothing is started.
    pub(super) fn passing(observed: bool, has_service: bool, step_loop: bool) -> Vec<FaultKind> {
        let may = |kind: &&FaultKind| match kind {
            FaultKind::LauncherRefuses | FaultKind::LauncherUnreachable | FaultKind::LauncherSlow => !observed,
            FaultKind::ServiceLost => has_service,
            // An observed job is run by a system with its own watchdog, and a mere observer reads no records.
            FaultKind::Busy | FaultKind::HostOverloaded | FaultKind::StuckAtExit => !observed,
            _ => true,
        };
        let linked = if step_loop { FaultKind::LINKED } else { &[] };
        FaultKind::PASSING.iter().filter(may).chain(linked).copied().collect()
    }

    /// Returns true if the affected process exists and does not run.
    pub(in crate::sim) const fn is_freeze(self) -> bool {
        matches!(self, FaultKind::Hang | FaultKind::Suspicion | FaultKind::SurvivorFrozen | FaultKind::StuckAtExit)
    }

    /// Kinds that nearly always find a victim.
    pub(super) const EASY: &[FaultKind] = &[
        FaultKind::HistoryLost,
        FaultKind::PluginPanic,
        FaultKind::LinkFlap,
        FaultKind::OperatorFault,
        FaultKind::Crash,
        FaultKind::CrashTogether,
    ];

    /// Kinds after which the job must end.
    pub(super) const ENDING: &[FaultKind] = &[
        FaultKind::OperatorStop,
        FaultKind::ProgramBroken,
        FaultKind::BudgetDrained,
        FaultKind::DoNotRestart,
        FaultKind::AllForbidden,
    ];
}

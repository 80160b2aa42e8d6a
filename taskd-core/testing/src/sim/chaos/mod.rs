//! Fault injection: the kinds of faults, their plan, and the effect of each on the world.
//!
//! This module injects faults and records them; `audit` judges the reactions.

mod deeds;
mod kind;
mod links;
mod machines;
mod orders;
mod plan;
mod processes;

pub(super) use deeds::{Charge, Deeds};
pub use kind::FaultKind;
pub(super) use links::{Armed, Trick};
pub(super) use plan::ChaosPlan;

use super::event::Event;
use super::launcher::Mood;
use super::world::World as Sim;
use crate::job::{Name, NodeId, OrderId, Permission, ProcId};
use crate::kernel::Order;
use std::collections::BTreeMap;
use std::time::Duration;

/// An injected event.
#[derive(Clone, Debug)]
pub(super) enum Strike {
    /// A planned fault, with the number of attempts that have found no victim.
    Planned(FaultKind, u32),
    /// A second crash of the same rank.
    Again(crate::job::Rank),
    /// A trick on a process that carries out a directive.
    Trick(Trick, ProcId),
}

/// The end of a condition.
#[derive(Clone, Debug)]
pub(super) enum Relief {
    /// A source that was silent delivers facts again.
    Speaks(usize),
    /// A host is reachable again, or is known to have left.
    Host { host: usize, left: bool },
    /// A frozen process continues.
    Thaw(ProcId),
    /// A slow process is as fast as the others again.
    Quick,
    /// Witnesses answer probes again.
    Witnesses,
    /// Kills the supervisor now, if it was to be killed at its next command but has given none.
    Doom,
    /// Cancels a trick that waited for a recovery which did not happen.
    Disarm,
    /// Cancels a planned misbehaviour of the launcher that no start has met.
    Well,
    /// A host that was drained, or reported as broken, may be used again.
    Readmit(NodeId),
    /// A pause is over.
    Resume,
    /// A strategy may act without approval again.
    Allow(Name),
    /// Repeats an order that should have been answered by now.
    Unanswered(OrderId),
    /// The operator checks which decisions wait for approval.
    Rounds,
}

/// Number of times that a fault without a victim is retried, one second apart, before another kind replaces it.
const TRIES_MAX: u32 = 8;

impl Sim<'_> {
    /// Injects a planned fault, or postpones it if it has no victim.
    pub(super) fn strike(&mut self, strike: Strike) {
        let (kind, tries) = match strike {
            Strike::Again(rank) => return self.crash_rank(rank),
            Strike::Trick(trick, proc) => return self.plays(trick, &proc),
            Strike::Planned(kind, tries) => (kind, tries),
        };
        if self.finished.is_some() {
            return;
        }
        if self.strikes(kind) {
            self.log.note(self.now, || kind.as_str().to_owned());
            self.deeds.count(kind);
        } else if tries < TRIES_MAX {
            self.queue.push(self.now + Duration::from_secs(1), Event::Strike(Strike::Planned(kind, tries + 1)));
        } else {
            let is_new = |kind: &&FaultKind| !self.deeds.struck.contains_key(kind) && !self.plan.contains(**kind);
            let instead = FaultKind::EASY.iter().find(is_new).unwrap_or(&FaultKind::PluginPanic);
            self.strike(Strike::Planned(*instead, 0));
        }
    }

    /// Injects a fault of this kind. Returns false if there is no victim now.
    fn strikes(&mut self, kind: FaultKind) -> bool {
        let struck = match kind {
            FaultKind::Crash => self.crash(1),
            FaultKind::CrashTogether => self.crash(2),
            FaultKind::ServiceLost => self.service_lost(),
            FaultKind::CrashAgain => self.crash_again(),
            FaultKind::Hang => self.hang(),
            FaultKind::Pause => self.pause(),
            FaultKind::Busy => self.busy(),
            FaultKind::HostOverloaded => self.host_overloaded(),
            FaultKind::StuckAtExit => self.stuck_at_exit(),
            FaultKind::Deadlock => self.deadlock(),
            FaultKind::Slow => self.slow(),
            FaultKind::Suspicion => self.suspicion(),
            FaultKind::OperatorFault => self.operator_fault(),
            FaultKind::HostOutOfSight => self.host_out_of_sight(),
            FaultKind::HostLeft => self.host_left(),
            FaultKind::LauncherRefuses => self.launcher(Mood::Refuses),
            FaultKind::LauncherUnreachable => self.launcher(Mood::Unreachable),
            FaultKind::LauncherSlow => self.launcher_slow(),
            FaultKind::StillBirth => self.launcher(Mood::StillBirth),
            FaultKind::PortRace => self.launcher(Mood::PortTaken),
            FaultKind::HistoryLost => self.history_lost(),
            FaultKind::ProcessesLost => self.processes_lost(),
            FaultKind::SourceSilent => self.source_silent(),
            FaultKind::LateHeartbeat => self.late_heartbeat(),
            FaultKind::SupervisorAsleep => self.supervisor_asleep(),
            FaultKind::SupervisorKilled => self.supervisor_killed(),
            FaultKind::PluginPanic => self.plugin_panic(),
            FaultKind::LinkFlap => self.link_flap(),
            FaultKind::CollectiveFails => self.collective_fails(),
            FaultKind::StepFails => self.step_fails(),
            FaultKind::AllTorn => self.all_torn(),
            FaultKind::ControlLinkLost => self.control_link_lost(),
            FaultKind::SurvivorLost => self.arm(Trick::Dies),
            FaultKind::SurvivorFrozen => self.arm(Trick::Freezes),
            FaultKind::ReplacementLost => self.arm(Trick::ReplacementDies),
            FaultKind::ReplacementNeverParks => self.arm(Trick::NeverParks),
            FaultKind::LinkLostWhileDirected => self.arm(Trick::LinkLost),
            FaultKind::LinkCutWhileDirected => self.arm(Trick::LinkCut),
            FaultKind::AnswerLost => self.arm(Trick::AnswerLost),
            FaultKind::AnswerLate => self.arm(Trick::AnswerLate),
            FaultKind::AnswerStale => self.arm(Trick::Stale),
            FaultKind::DirectiveRefused => self.arm(Trick::Refuses),
            FaultKind::KilledWhileTelling => self.arm(Trick::Killed),
            FaultKind::OrderDrain => self.order_drain(),
            FaultKind::OrderRestart => self.order_restart(),
            FaultKind::OrderPause => self.order_pause(),
            FaultKind::OrderAllow => self.order_allow(),
            FaultKind::OrderSlip => self.order_slip(),
            FaultKind::HostBroken => self.host_broken(),
            FaultKind::OperatorStop => self.operator_stop(),
            FaultKind::ProgramBroken => self.program_broken(),
            FaultKind::BudgetDrained => self.budget_drained(),
            FaultKind::DoNotRestart => self.do_not_restart(),
            FaultKind::AllForbidden => self.all_forbidden(),
        };
        if struck {
            self.deeds.pending -= 1;
        }
        struck
    }

    pub(super) fn relieve(&mut self, relief: Relief) {
        if !matches!(relief, Relief::Rounds | Relief::Unanswered(_)) {
            self.log.note(self.now, || format!("{relief:?}"));
        }
        match relief {
            Relief::Speaks(host) => self.releases(host, self.now),
            Relief::Host { host, left } => self.host_resolved(host, left),
            Relief::Thaw(proc) => self.thaw(&proc),
            Relief::Quick => self.quick_again(),
            Relief::Witnesses => self.mute_witnesses = false,
            Relief::Doom => {
                if self.supervisor.doomed {
                    self.kill_supervisor();
                }
            }
            Relief::Disarm => self.disarm(),
            Relief::Well => self.mood = Mood::Well,
            Relief::Readmit(node) => self.order(Order::Uncordon { node }),
            Relief::Resume => self.resume(),
            Relief::Allow(name) => {
                self.order(Order::Allow { strategies: BTreeMap::from([(name, Permission::Auto)]) });
            }
            Relief::Unanswered(id) => self.order_again(id),
            Relief::Rounds => self.makes_rounds(),
        }
    }

    /// Injects the faults that were planned for this step of the job.
    pub(super) fn after_step(&mut self, step: u64) {
        while let Some(kind) = self.plan.due(step) {
            let at = self.now + self.dice.ms(0, 300);
            self.queue.push(at, Event::Strike(Strike::Planned(kind, 0)));
        }
        if self.deeds.draining && step.is_multiple_of(3) {
            self.crash(1);
        }
    }

    /// While a frozen rank has its grace period, may crash another one, so that a second recovery overtakes the first.
    pub(super) fn stop_takes_time(&mut self, procs: &[ProcId], grace: Duration) {
        let some_frozen = procs.iter().any(|p| self.training.seat(p).is_some_and(|s| s.frozen));
        if !some_frozen || !self.dice.chance(500) {
            return;
        }
        let mut others = self.training.running();
        others.retain(|p| !procs.contains(p));
        if let Some(rank) = self.dice.pick(&others).and_then(|p| p.role.rank()) {
            let after = u64::try_from(grace.as_millis()).unwrap_or(0);
            let at = self.now + self.dice.ms(1, after);
            self.queue.push(at, Event::Strike(Strike::Again(rank)));
        }
    }

    /// Called when a recovery acts: injects a fault that was planned for the middle of a recovery.
    pub(super) fn recovery_acts(&mut self) {
        if self.supervisor.life > 0
            && self.training.gangs_formed() > 0
            && self.dice.chance(600)
            && let Some(kind) = self.plan.due_in_recovery()
        {
            let at = self.now + self.dice.ms(0, self.scene.boot_ms_max + 1_500);
            self.queue.push(at, Event::Strike(Strike::Planned(kind, 0)));
        }
    }
}

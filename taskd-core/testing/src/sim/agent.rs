//! The system that runs a job that is only observed, like torchrun: it starts all ranks, and when one has failed, it
//! stops the others and restarts all.
//!
//! The agent has no information about the supervisor, and the supervisor none about the agent.

use super::event::Event;
use super::fleet::Process;
use super::launcher::{Mood, follow_up};
use super::world::World as Sim;
use crate::job::{Counted, Exit, JobTime, ProcId, Role, Termination};
use crate::launch::{NodeState, Place, StartBatch, StartOrder};
use std::sync::Arc;
use std::time::Duration;

/// Time without a step after which the ranks' own watchdog ends a job.
const WATCHDOG: Duration = Duration::from_secs(60);

/// The state of the agent.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// True while it waits for the end of stopped processes.
    stopping: bool,
    /// Time of its last start of the ranks.
    started: JobTime,
}

impl Sim<'_> {
    /// Lets the agent check its processes, and schedules its next check.
    pub(super) fn agent_looks(&mut self) {
        if !self.scene.observed {
            return; // the job is run by the supervisor
        }
        let at = self.now + self.dice.ms(200, 3_000);
        self.queue.push(at, Event::Agent);
        let exists = |(proc, process): (&ProcId, &Process)| (!process.phase.is_exited()).then(|| proc.clone());
        let alive: Vec<ProcId> = self.fleet.procs.iter().filter_map(exists).collect();
        let has_failed = |proc: ProcId| {
            let exited = self.fleet.procs.get(&proc).filter(|p| p.phase.is_exited());
            exited.and_then(|p| p.phase.termination()).is_some_and(|how| !how.is_success())
        };
        let world = &self.training.world;
        let failed = world.members().keys().filter_map(|rank| world.proc(*rank)).any(has_failed);
        if self.fleet.procs.is_empty() || (failed && alive.is_empty()) {
            self.agent_starts();
        } else if failed && !self.agent.stopping {
            self.agent_stops(alive);
        } else if !failed && !alive.is_empty() {
            self.watchdog_looks(alive);
        }
    }

    fn agent_stops(&mut self, procs: Vec<ProcId>) {
        self.agent.stopping = true;
        let grace = self.scene.spec.policy.termination_grace_period;
        self.queue.push(self.now, Event::Stop { procs, grace });
    }

    /// Starts all ranks on their previous hosts, or on any other.
    fn agent_starts(&mut self) {
        if !self.fleet.hosts.iter().any(|h| h.state == NodeState::Ready) {
            return; // at the next check
        }
        let world = match self.fleet.procs.is_empty() {
            true => Arc::clone(&self.training.world),
            false => Arc::new(self.training.world.successor(Counted::Yes, |members| {
                members.values_mut().for_each(|member| member.incarnation = member.incarnation.next());
            })),
        };
        let orders = world.members().iter().map(|(rank, member)| {
            let node = member.node.as_ref().filter(|node| {
                self.fleet.host_index(node).is_some_and(|h| self.fleet.hosts[h].state == NodeState::Ready)
            });
            StartOrder::new(
                ProcId { role: Role::Rank(*rank), incarnation: member.incarnation },
                node.cloned().map_or(Place::anywhere(), Place::On),
                Arc::clone(&self.scene.spec.worker),
            )
        });
        let batch = StartBatch::new(Arc::clone(&world), orders.collect());
        self.agent = Agent { stopping: false, started: self.now };
        self.recovery_acts();
        self.reports_what_is_past(&batch);
        let mood = std::mem::replace(&mut self.mood, Mood::Well);
        self.admit(&batch, mood);
    }

    /// Ends ranks that have waited for each other for too long, each at its own time. Frozen ranks cannot end.
    fn watchdog_looks(&mut self, alive: Vec<ProcId>) {
        if self.now.since(self.training.last_step.max(self.agent.started)) < WATCHDOG {
            return;
        }
        let waiting: Vec<ProcId> =
            alive.iter().filter(|p| self.training.seat(p).is_some_and(|s| s.running && !s.frozen)).cloned().collect();
        if waiting.is_empty() {
            return self.agent_stops(alive);
        }
        for proc in waiting {
            let step = Some(self.step_reached());
            let error = follow_up("watchdog", "a collective has timed out").with_step(step);
            let mut exit = Exit::new(Termination::Code(1));
            exit.error = Some(Box::new(error));
            let at = self.now + self.dice.ms(0, 3_000);
            self.queue.push(at, Event::Ends { proc, exit: Box::new(exit) });
        }
    }
}

//! Faults of hosts, launcher, sources and the supervisor itself.

use super::super::event::Event;
use super::super::launcher::Mood;
use super::super::supervisor::Away;
use super::super::world::World as Sim;
use super::{FaultKind, Relief};
use crate::job::{Exit, Termination};
use crate::launch::{Change, NodeState, Phase};
use std::time::Duration;

impl Sim<'_> {
    /// Returns a visible host on which a process runs.
    pub(super) fn busy_host(&mut self) -> Option<usize> {
        let busy = |h: &usize| {
            let seats = &self.training.seats;
            self.fleet.hosts[*h].state == NodeState::Ready && seats.iter().any(|s| s.running && s.host == *h)
        };
        let hosts: Vec<usize> = (0..self.fleet.hosts.len()).filter(busy).collect();
        self.dice.pick(&hosts).copied()
    }

    /// Returns the ready hosts on which no process runs or is to run.
    pub(super) fn idle_hosts(&self) -> Vec<usize> {
        let is_idle = |h: &usize| {
            let id = &self.fleet.hosts[*h].id;
            let seats = crate::state::placement::current(self.supervisor.kernel.view());
            self.fleet.hosts[*h].state == NodeState::Ready
                && !self.training.seats.iter().any(|seat| seat.running && seat.host == *h)
                && !seats.values().any(|seat| seat.node.as_ref() == Some(id))
        };
        (0..self.fleet.hosts.len()).filter(is_idle).collect()
    }

    pub(super) fn host_out_of_sight(&mut self) -> bool {
        let Some(host) = self.busy_host().filter(|_| self.may_lose_a_host()) else { return false };
        let away = self.dice.ms(500, 25_000);
        if !self.may_be_quiet_for(away) {
            return false;
        }
        let left = away > Duration::from_secs(5) && self.dice.chance(300);
        if away + self.heartbeat_gap() >= self.unnoticed() {
            for proc in self.fleet.alive_on(host) {
                self.deeds.guilty(&proc, self.now);
            }
        }
        self.set_host(host, NodeState::OutOfSight);
        self.queue.push(self.now + away, Event::Relief(Relief::Host { host, left }));
        true
    }

    /// Returns true if enough hosts remain for the whole job, and no other recovery has failed (losing a host may make
    /// the next start fail).
    pub(super) fn may_lose_a_host(&self) -> bool {
        if self.audit.has_failed_attempts() {
            return false;
        }
        let ready = (0..self.fleet.hosts.len()).filter(|h| self.is_usable(*h)).count();
        ready.saturating_sub(1) * self.scene.slots as usize >= self.scene.ranks() as usize
    }

    pub(super) fn host_left(&mut self) -> bool {
        let Some(host) = self.busy_host().filter(|_| self.may_lose_a_host()) else { return false };
        self.lose_host(host);
        true
    }

    pub(super) fn host_resolved(&mut self, host: usize, left: bool) {
        if self.fleet.hosts[host].state != NodeState::OutOfSight {
            return;
        }
        if left {
            return self.lose_host(host);
        }
        self.set_host(host, NodeState::Ready);
        self.back_in_sight(host);
    }

    fn lose_host(&mut self, host: usize) {
        let first = self.dice.chance(500);
        self.fleet.hosts[host].held = None;
        self.fleet.hosts[host].state = NodeState::Left;
        if first {
            self.set_host(host, NodeState::Left);
        }
        for proc in self.fleet.alive_on(host) {
            self.accuse(FaultKind::HostLeft, &proc);
            self.ends_for_good(&proc);
        }
        self.back_in_sight(host); // including the exits that were not visible while it was out of sight
        self.set_host(host, NodeState::Left);
    }

    fn ends_for_good(&mut self, proc: &crate::job::ProcId) {
        if let Some(process) = self.fleet.procs.get_mut(proc) {
            process.phase = Phase::Exited(Box::new(Exit::new(Termination::Unknown)));
        }
        self.report_proc(proc);
        self.loop_ends(proc);
        self.leaves_seat(proc, false);
    }

    fn set_host(&mut self, host: usize, state: NodeState) {
        self.fleet.hosts[host].state = state;
        self.deeds.guilty_hosts.insert(self.fleet.hosts[host].id.clone());
        let status = self.fleet.node_status(host);
        self.report(Change::Node(status));
    }

    /// Sets the launcher's mood for the next start, which is soon.
    pub(super) fn launcher(&mut self, mood: Mood) -> bool {
        if self.mood != Mood::Well || self.audit.has_failed_attempts() || !self.crash(1) {
            return false; // one failing recovery at a time: a job may only end if that is planned
        }
        self.mood = mood;
        self.queue.push(self.now + Duration::from_secs(20), Event::Relief(Relief::Well));
        true
    }

    /// May make the job's first start find the launcher out of reach, or too slow.
    pub(in crate::sim) fn first_start_may_fail(&mut self) {
        if self.mood != Mood::Well || !self.dice.chance(60) {
            return;
        }
        let too_late = self.scene.spec.policy.start_timeout + self.dice.ms(1_000, 30_000);
        let (mood, kind) = match self.dice.chance(500) {
            true => (Mood::Unreachable, FaultKind::LauncherUnreachable),
            false => (Mood::Slow(too_late), FaultKind::LauncherSlow),
        };
        self.mood = mood;
        self.deeds.count(kind);
    }

    pub(super) fn launcher_slow(&mut self) -> bool {
        let patience = u64::try_from(self.scene.spec.policy.start_timeout.as_millis()).unwrap_or(u64::MAX);
        let delay = self.dice.ms(200, patience + 12_000);
        self.launcher(Mood::Slow(delay))
    }

    pub(super) fn history_lost(&mut self) -> bool {
        self.wire.cut();
        let at = self.now + self.dice.ms(50, 3_000);
        self.queue.push(at, Event::Listed { life: self.supervisor.life });
        true
    }

    pub(super) fn processes_lost(&mut self) -> bool {
        let Some(host) = self.busy_host() else { return false };
        for proc in self.fleet.alive_on(host) {
            self.accuse(FaultKind::ProcessesLost, &proc);
            if let Some(process) = self.fleet.procs.get_mut(&proc) {
                process.phase = Phase::Exited(Box::new(Exit::new(Termination::Unknown)));
                (process.forgotten, process.lost) = (true, true);
            }
            self.loop_ends(&proc);
            self.leaves_seat(&proc, false);
        }
        self.history_lost()
    }

    pub(super) fn source_silent(&mut self) -> bool {
        let Some(host) = self.busy_host().filter(|h| self.fleet.hosts[*h].held.is_none()) else { return false };
        let time = self.unnoticed().mul_f64(0.9);
        if !self.may_be_quiet_for(time) {
            return false;
        }
        self.fleet.hosts[host].held = Some(Vec::new());
        let over = self.now + time;
        self.queue.push(over, Event::Relief(Relief::Speaks(host)));
        true
    }

    /// Lets a host's heartbeats arrive just before their deadline, while the supervisor handles them only after it.
    pub(super) fn late_heartbeat(&mut self) -> bool {
        if self.supervisor.away != Away::No {
            return false;
        }
        let host = self.busy_host().filter(|h| self.fleet.hosts[*h].held.is_none());
        // The first heartbeat of a rank that begins a moment later would come too late.
        let begins = |host: usize| self.training.seats.iter().any(|seat| seat.host == host && !seat.running);
        let Some(host) = host.filter(|host| !begins(*host)) else { return false };
        if !self.may_be_quiet_for(self.config.silence_within) {
            return false;
        }
        self.beat_now(host);
        self.fleet.hosts[host].held = Some(Vec::new());
        let deadline = self.facts_tail + self.config.silence_within;
        let arrive = deadline.before(self.dice.ms(2, 30));
        self.queue.push(arrive.before(Duration::from_millis(20)), Event::Nap { life: self.supervisor.life });
        self.queue.push(arrive, Event::Relief(Relief::Speaks(host)));
        true
    }

    /// Makes the supervisor busy for a time too short to count as a sleep.
    pub(in crate::sim) fn nap(&mut self) {
        if self.supervisor.away == Away::No {
            self.supervisor.away = Away::Asleep(self.now);
            let at = self.now + self.dice.ms(60, 400);
            self.queue.push(at, Event::Wake { life: self.supervisor.life });
        }
    }

    pub(super) fn supervisor_asleep(&mut self) -> bool {
        if self.supervisor.away != Away::No {
            return false;
        }
        self.supervisor.away = Away::Asleep(self.now);
        let at = self.now + self.dice.ms(1_100, 40_000);
        self.queue.push(at, Event::Wake { life: self.supervisor.life });
        true
    }

    pub(super) fn supervisor_killed(&mut self) -> bool {
        if self.supervisor.away != Away::No {
            return false;
        }
        self.supervisor.doomed = true;
        self.queue.push(self.now + Duration::from_secs(2), Event::Relief(Relief::Doom));
        true
    }
}

//! Faults of the simulation: which, when and for how long follows from the seed.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use turmoil::Sim;

use crate::cluster::{Cluster, HOSTS, VOTERS, Weather, host};
use crate::run::LATENCY_MAX;

/// What is wrong now, and until when.
pub(crate) struct Faults {
    dice: StdRng,
    /// Kind of fault that this seed prefers: the number by which [`Faults::inject`] selects it.
    focus: u32,
    /// Ends of cuts and holds, by pair of hosts.
    links: BTreeMap<(usize, usize), (Duration, Link)>,
    /// Ends of the absence of processes.
    down: BTreeMap<usize, Duration>,
    /// Ends of slow disks.
    slow: BTreeMap<usize, Duration>,
    storm_until: Option<Duration>,
    /// Faults that follow others.
    planned: Vec<(Duration, Fault)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    Cut,
    Held,
}

/// A fault of a sequence; each has its length.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// The links of a host to the other voters are cut.
    CutFromVoters(usize, Duration),
    /// The link between two hosts is cut.
    Cut(usize, usize, Duration),
    SlowDisk(usize, Duration, Duration),
    Crash(usize, Duration),
    Lose(usize, Duration),
    KillRank,
    /// Many messages come twice.
    Repeats(Duration),
    /// A rank of a host is killed.
    KillRankOn(usize),
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Faults {
    pub(crate) fn new(mut dice: StdRng) -> Faults {
        let focus = dice.random_range(0..100);
        let (links, down, slow) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Faults { dice, focus, links, down, slow, storm_until: None, planned: Vec::new() }
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        ms(self.dice.random_range(range))
    }

    /// Begins one more fault, or a sequence of them. Returns the time until the next.
    pub(crate) fn inject(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, now: Duration) -> Duration {
        let victim = self.dice.random_range(0..HOSTS);
        let kind = if self.dice.random_bool(0.3) { self.focus } else { self.dice.random_range(0..100) };
        match kind {
            0..12 => self.cut_some(sim, cluster, victim),
            12..27 => self.isolate(sim, cluster, victim),
            27..35 => self.hold(sim, cluster, victim),
            35..47 => {
                let length = self.millis(20..4000);
                self.begin(sim, cluster, Fault::Crash(victim, length));
            }
            47..58 => {
                let length = self.millis(200..6000);
                self.begin(sim, cluster, Fault::Lose(victim, length));
            }
            58..72 => self.begin(sim, cluster, Fault::KillRank),
            72..78 => {
                let (length, longest) = (self.millis(500..6000), self.millis(20..600));
                self.begin(sim, cluster, Fault::SlowDisk(victim, length, longest));
            }
            78..84 => self.storm(sim, cluster, now),
            84..93 => self.forget(cluster, now),
            _ => self.depose(cluster, now),
        }
        self.millis(50..1500)
    }

    /// One voter is behind; then another forgets what it has stored, and the leader is cut off: the two that are left must
    /// not agree on an old record.
    fn forget(&mut self, cluster: &Cluster, now: Duration) {
        let Some(leader) = manager(cluster).filter(|_| self.planned.is_empty()) else { return };
        let first = self.dice.random_range(1..VOTERS);
        let (other, behind) = ((leader + first) % VOTERS, (leader + VOTERS - first) % VOTERS);
        note(cluster, now, format!("{behind} is behind, {other} forgets, {leader} is cut off"));
        let at = |millis| now + ms(millis);
        let mut plan =
            vec![(at(0), Fault::Cut(behind, leader, ms(1500))), (at(0), Fault::Cut(behind, other, ms(1400)))];
        plan.push((at(700), Fault::KillRank));
        if self.dice.random_bool(0.5) {
            plan.push((at(400), Fault::SlowDisk(other, ms(900), ms(900))));
            plan.push((at(1200), Fault::Crash(other, ms(50))));
        } else {
            plan.push((at(1200), Fault::Lose(other, ms(150))));
        }
        plan.push((at(1250), Fault::CutFromVoters(leader, ms(6000))));
        self.planned = plan;
    }

    /// The manager cannot reach the other voters, but the agents; later the agents lose its successor for a while.
    fn depose(&mut self, cluster: &Cluster, now: Duration) {
        let Some(leader) = manager(cluster).filter(|_| self.planned.is_empty()) else { return };
        note(cluster, now, format!("{leader} is cut off from the voters only"));
        let at = |millis| now + ms(millis);
        let mut plan = vec![(now, Fault::CutFromVoters(leader, ms(9000)))];
        for agent in VOTERS..HOSTS {
            for voter in (0..VOTERS).filter(|voter| *voter != leader) {
                plan.push((at(4500), Fault::Cut(agent, voter, ms(2500))));
            }
        }
        self.planned = plan;
    }

    /// Cuts a host's manager from the other voters for the rest of the simulation. Returns false if there is none.
    pub(crate) fn depose_for_good(&mut self, sim: &mut Sim<'_>, cluster: &Cluster) -> bool {
        let Some(leader) = manager(cluster) else { return false };
        self.begin(sim, cluster, Fault::CutFromVoters(leader, ms(1_000_000)));
        true
    }

    pub(crate) fn begin(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, fault: Fault) {
        let now = sim.elapsed();
        match fault {
            Fault::CutFromVoters(from, length) => {
                note(cluster, now, format!("cut {from} from the voters for {length:?}"));
                (0..VOTERS).filter(|voter| *voter != from).for_each(|voter| self.cut(sim, (from, voter), now + length));
            }
            Fault::Cut(from, to, length) => {
                note(cluster, now, format!("cut {from} <-> {to} for {length:?}"));
                self.cut(sim, (from, to), now + length);
            }
            Fault::SlowDisk(victim, length, longest) => {
                note(cluster, now, format!("writes of {victim} take up to {longest:?} for {length:?}"));
                cluster.lock().machines[victim].disk_max = longest;
                self.slow.insert(victim, now + length);
            }
            Fault::Crash(victim, length) => self.crash(sim, cluster, victim, length),
            Fault::Lose(victim, length) => self.lose(sim, cluster, victim, length),
            Fault::Repeats(length) => {
                note(cluster, now, format!("messages come twice for {length:?}"));
                cluster.lock().weather = Weather { repeats: 0.3, ..Weather::default() };
                self.storm_until = Some(now + length);
            }
            Fault::KillRank => self.kill_rank(cluster, now, |_| true),
            Fault::KillRankOn(index) => self.kill_rank(cluster, now, |host| host == index),
        }
    }

    fn cut(&mut self, sim: &Sim<'_>, (a, b): (usize, usize), until: Duration) {
        self.repair(sim, pair(a, b));
        sim.partition(host(a), host(b));
        self.links.insert(pair(a, b), (until, Link::Cut));
    }

    fn cut_some(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, from: usize) {
        let to = (from + self.dice.random_range(1..HOSTS)) % HOSTS;
        if self.links.contains_key(&pair(from, to)) {
            return;
        }
        let length = self.millis(100..5000);
        if self.dice.random_bool(0.5) {
            return self.begin(sim, cluster, Fault::Cut(from, to, length));
        }
        note(cluster, sim.elapsed(), format!("cut {from} -> {to} for {length:?}"));
        sim.partition_oneway(host(from), host(to));
        self.links.insert(pair(from, to), (sim.elapsed() + length, Link::Cut));
    }

    /// Cuts a host, or two, from all others.
    fn isolate(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, victim: usize) {
        let until = sim.elapsed() + self.millis(300..8000);
        let with = self.dice.random_bool(0.3).then(|| (victim + self.dice.random_range(1..HOSTS)) % HOSTS);
        note(cluster, sim.elapsed(), format!("isolate {victim} {with:?} until {until:.1?}"));
        for inside in [Some(victim), with].into_iter().flatten() {
            for outside in (0..HOSTS).filter(|other| *other != victim && Some(*other) != with) {
                self.cut(sim, (inside, outside), until);
            }
        }
    }

    /// Keeps the messages of links, and delivers them later.
    fn hold(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, from: usize) {
        let until = sim.elapsed() + self.millis(100..4000);
        for to in (0..HOSTS).filter(|to| *to != from) {
            if !self.links.contains_key(&pair(from, to)) && self.dice.random_bool(0.7) {
                sim.hold(host(from), host(to));
                self.links.insert(pair(from, to), (until, Link::Held));
            }
        }
        note(cluster, sim.elapsed(), format!("hold messages of {from} until {until:.1?}"));
    }

    /// Kills the process of a host; the ranks stay.
    fn crash(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, victim: usize, length: Duration) {
        if self.down.contains_key(&victim) {
            return;
        }
        note(cluster, sim.elapsed(), format!("kill the process of {victim} for {length:?}"));
        sim.crash(host(victim));
        self.down.insert(victim, sim.elapsed() + length);
    }

    /// The power of a host fails: its links first, then its processes, with all that is in its memory.
    fn lose(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, victim: usize, length: Duration) {
        // A majority that loses its stores loses the record: no job survives that.
        if self.down.contains_key(&victim) || victim < VOTERS && !cluster.unadmitted().is_empty() {
            return;
        }
        let until = sim.elapsed() + length;
        note(cluster, sim.elapsed(), format!("power of {victim} fails for {length:?}"));
        (0..HOSTS).filter(|other| *other != victim).for_each(|other| self.cut(sim, (victim, other), until));
        sim.crash(host(victim));
        self.down.insert(victim, until);
        let mut state = cluster.lock();
        let procs: Vec<_> = state.machines[victim].procs.keys().cloned().collect();
        state.ledger.killed.extend(procs);
        state.ledger.count("hosts_lost");
        state.machines[victim].lose(victim);
        if victim < VOTERS {
            state.machines[victim].needs_admission = true;
            // Its directory is on a temporary file system.
            let _ = std::fs::remove_dir_all(cluster.dir.path().join(host(victim)));
        }
    }

    /// Kills a rank of one of these hosts.
    fn kill_rank(&mut self, cluster: &Cluster, now: Duration, of: impl Fn(usize) -> bool) {
        let mut state = cluster.lock();
        let machines = state.machines.iter().enumerate();
        let machines = machines.filter(|(index, _)| of(*index));
        let live: Vec<_> = machines.flat_map(|(i, m)| m.procs.keys().map(move |proc| (i, proc.clone()))).collect();
        if live.is_empty() {
            return;
        }
        let (index, proc) = live[self.dice.random_range(0..live.len())].clone();
        state.ledger.note(now, format!("kill {proc} on {index}"));
        state.ledger.count("ranks_killed");
        state.machines[index].end(&proc);
        state.ledger.killed.push(proc);
    }

    fn storm(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, now: Duration) {
        let until = now + self.millis(500..5000);
        let weather = Weather {
            repeats: self.dice.random_range(0.0..0.3),
            delays: self.dice.random_range(0.0..0.3),
            loses: self.dice.random_range(0.0..0.05),
        };
        sim.set_max_message_latency(self.millis(20..150));
        note(cluster, now, format!("storm until {until:.1?}"));
        cluster.lock().weather = weather;
        self.storm_until = Some(until);
    }

    fn repair(&mut self, sim: &Sim<'_>, pair: (usize, usize)) {
        match self.links.remove(&pair) {
            Some((_, Link::Cut)) => sim.repair(host(pair.0), host(pair.1)),
            Some((_, Link::Held)) => sim.release(host(pair.0), host(pair.1)),
            None => {}
        }
    }

    /// Ends the faults that are over at `now`, and begins those that follow; ends all of them if it is `None`.
    pub(crate) fn turn(&mut self, sim: &mut Sim<'_>, cluster: &Cluster, now: Option<Duration>) {
        let over = |until: &Duration| now.is_none_or(|now| *until <= now);
        let links: Vec<_> = self.links.iter().filter(|(_, (until, _))| over(until)).map(|(pair, _)| *pair).collect();
        links.into_iter().for_each(|link| self.repair(sim, link));
        let down: Vec<_> = self.down.iter().filter(|(_, until)| over(until)).map(|(index, _)| *index).collect();
        for index in down {
            self.down.remove(&index);
            note(cluster, sim.elapsed(), format!("the process of {index} starts"));
            sim.bounce(host(index));
        }
        let slow: Vec<_> = self.slow.iter().filter(|(_, until)| over(until)).map(|(index, _)| *index).collect();
        for index in slow {
            self.slow.remove(&index);
            cluster.lock().machines[index].disk_max = ms(3);
        }
        if self.storm_until.take_if(|until| over(until)).is_some() {
            cluster.lock().weather = Weather::default();
            sim.set_max_message_latency(LATENCY_MAX);
        }
        let (due, later) = std::mem::take(&mut self.planned).into_iter().partition(|(at, _)| over(at));
        self.planned = if now.is_some() { later } else { Vec::new() };
        let due: Vec<(Duration, Fault)> = if now.is_some() { due } else { Vec::new() };
        due.into_iter().for_each(|(_, fault)| self.begin(sim, cluster, fault));
    }
}

/// Returns the host of the manager of the greatest epoch.
pub(crate) fn manager(cluster: &Cluster) -> Option<usize> {
    let state = cluster.lock();
    let (_, name) = state.ledger.manager()?;
    (0..HOSTS).find(|index| host(*index) == *name)
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

fn note(cluster: &Cluster, now: Duration, what: String) {
    let mut state = cluster.lock();
    state.ledger.count("faults");
    state.ledger.note(now, what);
}

//! One simulation: a start, a phase with faults, and phases in which the job must heal.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskd_cluster::Checks;
use taskd_cluster::consensus::Epoch;
use taskd_cluster::security::SecurityContext;
use turmoil::{Builder, Sim};

use crate::cluster::{Cluster, HOSTS, RANKS, host};
use crate::directed::Directed;
use crate::faults::Faults;
use crate::ledger::Property;
use crate::process;

/// Length of one step. It is shorter than every latency.
const STEP: Duration = Duration::from_millis(5);
const LATENCY_MIN: Duration = Duration::from_millis(6);
pub(crate) const LATENCY_MAX: Duration = Duration::from_millis(12);
/// Time within which the first world runs.
const START_WITHIN: Duration = Duration::from_secs(60);
/// Time within which the job heals when the last fault has ended.
const HEAL_WITHIN: Duration = Duration::from_secs(40);
/// Time for which the job must then stay as it is.
const STEADY: Duration = Duration::from_secs(2);
/// Length of the phase with faults, in milliseconds.
const CHAOS_MS: std::ops::Range<u64> = 10_000..25_000;
/// Capacity of queues of the simulated network, in messages.
const QUEUE: usize = 8192;

thread_local! {
    /// First panic of this thread, in any task.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the panics of a simulation's tasks, which nothing else shows, in place of printing them.
pub(crate) fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        PANIC.with_borrow_mut(|panic| _ = panic.get_or_insert(text));
    }));
}

/// What one simulation showed.
pub(crate) struct Shown {
    pub(crate) seed: u64,
    pub(crate) violation: Option<(Property, String)>,
    /// Time from the end of the faults to a healthy job.
    pub(crate) healed: Duration,
    /// Time from the cut between the manager and the other voters to a healthy job under another manager.
    pub(crate) replaced: Option<Duration>,
    /// Length of the simulation.
    pub(crate) simulated: Duration,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) notes: Vec<String>,
}

/// Simulates one job.
pub(crate) fn simulate(seed: u64, checks: Checks, security: &SecurityContext) -> Shown {
    taskd_cluster::simulate_boot_time(|| turmoil::sim_elapsed().unwrap_or_default());
    let cluster = Cluster::new(seed, checks);
    let mut sim = Builder::new()
        .tick_duration(STEP)
        .min_message_latency(LATENCY_MIN)
        .max_message_latency(LATENCY_MAX)
        .simulation_duration(Duration::from_secs(3600))
        .tcp_capacity(QUEUE)
        .rng_seed(seed)
        .enable_random_order()
        .build();
    for index in 0..HOSTS {
        let (cluster, security) = (Arc::clone(&cluster), security.clone());
        sim.host(host(index), move || process::run(Arc::clone(&cluster), security.clone(), index));
    }
    let mut run = Run { sim, cluster: &cluster };
    // The phases stop at the first violation, which is in the ledger.
    let (healed, replaced) = run.phases(seed).unwrap_or_default();
    let simulated = run.sim.elapsed();
    drop(run);
    let state = cluster.lock();
    Shown {
        seed,
        violation: state.ledger.violation.clone(),
        healed,
        replaced,
        simulated,
        counts: state.ledger.counts.clone(),
        notes: state.ledger.notes().cloned().collect(),
    }
}

/// A simulation that runs.
struct Run<'a> {
    sim: Sim<'a>,
    cluster: &'a Cluster,
}

impl Run<'_> {
    /// Runs all phases. Returns the times in which the job healed; `None` after a violation.
    fn phases(&mut self, seed: u64) -> Option<(Duration, Option<Duration>)> {
        let mut dice = StdRng::seed_from_u64(seed);
        self.start()?;
        let mut faults = Faults::new(StdRng::seed_from_u64(dice.random()));
        self.directed(&mut faults)?;
        let end = self.sim.elapsed() + Duration::from_millis(dice.random_range(CHAOS_MS));
        let mut next = self.sim.elapsed();
        while self.sim.elapsed() < end {
            self.step()?;
            let now = self.sim.elapsed();
            faults.turn(&mut self.sim, self.cluster, Some(now));
            if now >= next {
                next = now + faults.inject(&mut self.sim, self.cluster, now);
            }
        }
        faults.turn(&mut self.sim, self.cluster, None);
        let healed = self.heal("all faults have ended", true)?;
        // With long leases, it takes longer than is to be shown.
        let is_long = self.cluster.directed == Directed::Return;
        if is_long || dice.random_bool(0.5) || !faults.depose_for_good(&mut self.sim, self.cluster) {
            return Some((healed, None));
        }
        let replaced = self.heal("the manager is cut off from the other voters", false)?;
        Some((healed, Some(replaced)))
    }

    /// Runs the directed phase of a seed, and until the job is healthy again.
    fn directed(&mut self, faults: &mut Faults) -> Option<()> {
        let phase = self.cluster.directed.begin(self.cluster, self.sim.elapsed());
        let Some(mut phase) = phase else { return Some(()) };
        while phase.go_on(faults, &mut self.sim, self.cluster) {
            self.step()?;
            let now = self.sim.elapsed();
            faults.turn(&mut self.sim, self.cluster, Some(now));
        }
        faults.turn(&mut self.sim, self.cluster, None);
        self.heal("the directed phase is over", true).map(drop)
    }

    /// Runs until the job is healthy, serves, and stays so; under a new manager if the old one is not `kept`. Returns the
    /// time until it was.
    fn heal(&mut self, since: &str, kept: bool) -> Option<Duration> {
        let (begun, before) = (self.sim.elapsed(), epoch(self.cluster));
        self.note(since);
        let mut healthy_since = None;
        loop {
            let now = self.sim.elapsed();
            let is_well = is_healthy(self.cluster) && (kept || epoch(self.cluster) != before);
            let since_when = *healthy_since.get_or_insert(now);
            if !is_well {
                healthy_since = None;
            } else if now - since_when >= STEADY && self.cluster.lock().ledger.served > since_when {
                self.note("the job is healthy");
                return Some(since_when - begun);
            }
            if now > begun + HEAL_WITHIN {
                let state = state_of(self.cluster);
                self.violate(format!("{since}, and the job has not healed within {HEAL_WITHIN:?}: {state}"));
                return None;
            }
            self.step()?;
        }
    }

    /// Runs one step. Returns `None` after a violation.
    fn step(&mut self) -> Option<()> {
        self.cluster.set_now(self.sim.elapsed());
        if let Err(error) = self.sim.step() {
            self.violate(format!("a process has ended: {error}"));
            return None;
        }
        if let Some(panic) = PANIC.take() {
            self.violate(format!("a task has panicked: {panic}"));
        }
        self.cluster.set_now(self.sim.elapsed());
        self.cluster.reap();
        (!self.has_ended()).then_some(())
    }

    /// Runs until the first world runs. Returns `None` if it does not in time.
    fn start(&mut self) -> Option<()> {
        while !is_healthy(self.cluster) {
            if self.sim.elapsed() >= START_WITHIN {
                self.violate(format!("the job has not started within {START_WITHIN:?}: {}", state_of(self.cluster)));
                return None;
            }
            self.step()?;
        }
        Some(())
    }

    /// Returns true after a violation. Without a check, one of the consensus engine does not end the simulation: it is to
    /// show what the hosts make of it.
    fn has_ended(&self) -> bool {
        let goes_on = if self.cluster.checks == Checks::default() { None } else { Some(Property::Engine) };
        self.cluster.lock().ledger.violation.as_ref().is_some_and(|(property, _)| Some(*property) != goes_on)
    }

    fn violate(&self, what: String) {
        self.cluster.lock().ledger.violate(self.sim.elapsed(), Property::Progress, what);
    }

    fn note(&self, what: &str) {
        self.cluster.lock().ledger.note(self.sim.elapsed(), what.to_owned());
    }
}

fn epoch(cluster: &Cluster) -> Option<Epoch> {
    cluster.lock().ledger.manager().map(|(epoch, _)| epoch)
}

/// Returns true if the ranks of the newest world run, and no others, no fault is lost, and all voters vote.
fn is_healthy(cluster: &Cluster) -> bool {
    let state = cluster.lock();
    let Some(world) = state.ledger.newest() else { return false };
    let live: Vec<_> = state.machines.iter().flat_map(|machine| machine.procs.keys().cloned()).collect();
    let all = world.members().keys().filter_map(|rank| world.proc(*rank)).all(|proc| live.contains(&proc));
    let complete = world.size() == RANKS && all && live.len() == RANKS as usize;
    let voters = state.machines.iter().all(|machine| !machine.needs_admission);
    complete && voters && state.ledger.lost_faults().is_empty()
}

fn state_of(cluster: &Cluster) -> String {
    let state = cluster.lock();
    let machines = state.machines.iter().map(|machine| {
        let procs: Vec<String> = machine.procs.keys().map(ToString::to_string).collect();
        let waits = if machine.needs_admission { ", not admitted" } else { "" };
        format!("\n  {}: runs {procs:?}{waits}; {}", machine.name, machine.voter)
    });
    let machines: String = machines.collect();
    let world = state.ledger.newest().map(|world| format!("{} {:?}", world.generation(), world.members()));
    let lost = state.ledger.lost_faults();
    format!("newest world {world:?}, lost {lost:?}, served at {:?}{machines}", state.ledger.served)
}

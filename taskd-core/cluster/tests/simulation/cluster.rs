//! What outlives the processes of the simulation: machines with their ranks, disks and clocks, the weather, and the
//! ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskd_cluster::{Checks, ClusterSettings};
use taskd_runtime::job::{Exit, NodeId, ProcId, Termination};
use taskd_runtime::launch::{Change, ChangeLog, NodeState, NodeStatus, Phase, ProcStatus};

use crate::directed::Directed;
use crate::ledger::Ledger;

/// Hosts that have a voter.
pub(crate) const VOTERS: usize = 3;
/// Hosts of the job.
pub(crate) const HOSTS: usize = 5;
/// Ranks of the job: two hosts are spare.
pub(crate) const RANKS: u32 = 3;
/// Bound of the differences of the clocks' rates: far more than real clocks have.
pub(crate) const CLOCK_RATE_PPM: u32 = 50_000;

/// One job in one simulation.
pub(crate) struct Cluster {
    pub(crate) checks: Checks,
    pub(crate) directed: Directed,
    /// The first of the hosts on which the ranks start.
    first_host: usize,
    pub(crate) dir: tempfile::TempDir,
    state: Mutex<State>,
    /// Time of the simulation at the begin of the step, in nanoseconds.
    now: AtomicU64,
}

pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) machines: Vec<Machine>,
    pub(crate) weather: Weather,
    pub(crate) dice: StdRng,
}

/// How unreliable messages are.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weather {
    /// Probability that a message comes twice.
    pub(crate) repeats: f64,
    /// Probability that a message of the Raft engine comes late.
    pub(crate) delays: f64,
    /// Probability that a message of a session is lost.
    pub(crate) loses: f64,
}

/// One machine.
pub(crate) struct Machine {
    pub(crate) name: NodeId,
    /// Number of its boot.
    pub(crate) boot: u64,
    /// By how much its clock is slower than the others.
    pub(crate) slow_ppm: u32,
    /// Longest time of a write.
    pub(crate) disk_max: Duration,
    /// True if its voter was lost with its store and has not been admitted again.
    pub(crate) needs_admission: bool,
    /// State of its voter, for the report of a violation.
    pub(crate) voter: String,
    pub(crate) log: Arc<ChangeLog>,
    /// Time at which its guard kills all ranks.
    pub(crate) fence: Option<Duration>,
    pub(crate) procs: BTreeMap<ProcId, Proc>,
}

/// A process of a rank that has not ended.
pub(crate) struct Proc {
    pub(crate) dies_at: Option<Duration>,
}

impl Machine {
    fn new(index: usize, slow_ppm: u32) -> Machine {
        let name = NodeId(host(index).into());
        let log = Machine::history(&name, index as u64 * 1000);
        Machine {
            name,
            boot: 1,
            slow_ppm,
            disk_max: Duration::from_millis(3),
            needs_admission: false,
            voter: String::new(),
            log,
            fence: None,
            procs: BTreeMap::new(),
        }
    }

    fn history(name: &NodeId, epoch: u64) -> Arc<ChangeLog> {
        let log = ChangeLog::new(epoch);
        log.push(Change::Node(NodeStatus::new(name.clone(), NodeState::Ready, RANKS)));
        Arc::new(log)
    }

    pub(crate) fn status(&self, proc: &ProcId, phase: Phase) -> ProcStatus {
        ProcStatus::new(proc.clone(), format!("boot-{}", self.boot), phase).with_node(self.name.clone())
    }

    /// Ends a process now.
    pub(crate) fn end(&mut self, proc: &ProcId) {
        if self.procs.remove(proc).is_some() {
            let exit = Exit::new(Termination::Signal { number: 9, core_dumped: false });
            self.log.push(Change::Proc(self.status(proc, Phase::Exited(Box::new(exit)))));
        }
    }

    /// All ranks end unobserved, and the machine forgets what it knew.
    pub(crate) fn lose(&mut self, index: usize) {
        self.procs.clear();
        self.fence = None;
        self.boot += 1;
        self.log = Machine::history(&self.name, index as u64 * 1000 + self.boot);
    }
}

/// Returns the name of a host.
pub(crate) fn host(index: usize) -> String {
    format!("h{index}")
}

impl Cluster {
    pub(crate) fn new(seed: u64, checks: Checks) -> Arc<Cluster> {
        let mut dice = StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let machines = (0..HOSTS).map(|index| {
            let slow = if dice.random_bool(0.5) { dice.random_range(0..=CLOCK_RATE_PPM) } else { 0 };
            Machine::new(index, slow)
        });
        let machines = machines.collect();
        let (directed, spare) = (Directed::of(seed), HOSTS - RANKS as usize);
        let first_host = if directed == Directed::Repeat { dice.random_range(0..=spare) } else { spare };
        let shm = std::path::Path::new("/dev/shm");
        let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
        let weather = Weather::default();
        let state = State { ledger: Ledger::default(), machines, weather, dice };
        Arc::new(Cluster {
            checks,
            directed,
            first_host,
            dir: dir.expect("a directory for the voters"),
            state: Mutex::new(state),
            now: AtomicU64::new(0),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the settings of agents and managers.
    pub(crate) fn settings(&self) -> ClusterSettings {
        let mut settings = ClusterSettings::default().with_checks(self.checks);
        settings.clock_rate_ppm = CLOCK_RATE_PPM;
        match self.directed {
            // The ranks outlive an election.
            Directed::Return => settings.with_lease(Duration::from_secs(4)),
            _ => settings,
        }
    }

    /// Returns the hosts on which the ranks start, of all hosts, under the manager of a host.
    pub(crate) fn first_hosts(&self, manager: usize, all: Vec<NodeId>) -> Vec<NodeId> {
        let by_index = |index: usize| host(index).into();
        match self.directed {
            // A manager without the other voters has all ranks.
            Directed::Minority => [manager].into_iter().chain(VOTERS..HOSTS).map(|i| NodeId(by_index(i))).collect(),
            _ => all.into_iter().skip(self.first_host).take(RANKS as usize).collect(),
        }
    }

    /// Returns the time of the simulation.
    pub(crate) fn now(&self) -> Duration {
        let begun = Duration::from_nanos(self.now.load(Ordering::Relaxed));
        turmoil::sim_elapsed().unwrap_or(begun).max(begun)
    }

    pub(crate) fn set_now(&self, now: Duration) {
        self.now.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Removes the processes that have ended.
    pub(crate) fn reap(&self) {
        let (now, mut state) = (self.now(), self.lock());
        let stop_within = self.settings().stop_within;
        let State { machines, dice, ledger, .. } = &mut *state;
        for machine in machines {
            if machine.fence.is_some_and(|at| at <= now) {
                for proc in machine.procs.values_mut().filter(|proc| proc.dies_at.is_none()) {
                    proc.dies_at = Some(now + stop_time(dice, stop_within));
                }
            }
            let over = |proc: &Proc| proc.dies_at.is_some_and(|at| at <= now);
            let over: Vec<ProcId> =
                machine.procs.iter().filter(|(_, proc)| over(proc)).map(|(proc, _)| proc.clone()).collect();
            for proc in over {
                ledger.note(now, format!("{proc} on {} ends", machine.name));
                machine.end(&proc);
            }
        }
    }

    /// Returns when a repeated message comes again, if this one is repeated.
    pub(crate) fn repeats(&self) -> Option<Duration> {
        let mut state = self.lock();
        let rate = state.weather.repeats;
        state.dice.random_bool(rate).then(|| Duration::from_millis(state.dice.random_range(0..400)))
    }

    /// Returns by how much a message is late, if it is.
    pub(crate) fn delays(&self) -> Option<Duration> {
        let mut state = self.lock();
        let rate = state.weather.delays;
        state.dice.random_bool(rate).then(|| Duration::from_millis(state.dice.random_range(0..300)))
    }

    /// Returns true if a message of a session is lost.
    pub(crate) fn loses(&self) -> bool {
        let mut state = self.lock();
        let rate = state.weather.loses;
        state.dice.random_bool(rate)
    }

    /// Returns the hosts that are voters' and wait for their admission.
    pub(crate) fn unadmitted(&self) -> BTreeSet<usize> {
        let state = self.lock();
        let waits = state.machines.iter().enumerate().filter(|(_, machine)| machine.needs_admission);
        waits.map(|(index, _)| index).collect()
    }
}

/// Returns how long a process takes to end after the order to: less than its time limit, by more than a step of the
/// simulation.
pub(crate) fn stop_time(dice: &mut StdRng, limit: Duration) -> Duration {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).saturating_sub(40);
    Duration::from_millis(dice.random_range(0..=limit))
}

//! Faults from outside: the target, the signal and the moment of each, as a seed chooses, and the signals themselves.

use super::RANKS;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use taskd_core::job::{Rank, Role};
use taskd_core::launch::{Launcher, Phase, ProcStatus};
use taskd_mindspore::SCHEDULER;

/// Longest time from the start of a generation to a fault that occurs during the start.
const IN_START_MS: u64 = 9_000;
/// Most steps from the first step of a generation to a fault.
const STEPS_AFTER: u64 = 30;

/// When a fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// When the job has reached this step.
    Step(u64),
    /// This many steps after the first step of the next generation.
    StepsAfter(u64),
    /// This time after the next generation's processes were started, whatever they have reached by then.
    InStart(Duration),
}

/// One fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The target.
    pub role: Role,
    /// The signal: SIGKILL or SIGSTOP.
    pub signal: Signal,
    /// When it is sent.
    pub moment: Moment,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.what(), self.role)
    }
}

impl Fault {
    /// Returns the name of the signal: `SIGKILL` or `SIGSTOP`.
    #[must_use]
    pub const fn what(&self) -> &'static str {
        if matches!(self.signal, Signal::STOP) { "SIGSTOP" } else { "SIGKILL" }
    }

    /// Sends the signal; returns false if there is no such process.
    pub async fn strike(&self, launcher: &impl Launcher) -> bool {
        let Ok(listing) = launcher.list().await else { return false };
        let runs = |p: &&ProcStatus| p.proc.role == self.role && p.phase == Phase::Running;
        let pid = listing.procs.iter().find(runs).and_then(|p| i32::try_from(p.pid?).ok()).and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, self.signal).is_ok())
    }
}

/// The faults of a run, in order.
#[derive(Clone, Debug)]
pub struct Plan(pub VecDeque<Fault>);

impl Plan {
    /// Returns a plan without faults.
    #[must_use]
    pub const fn quiet() -> Plan {
        Plan(VecDeque::new())
    }

    /// Returns a plan in which a worker is killed at a third of the steps, and the scheduler at two thirds.
    #[must_use]
    pub fn worker_then_scheduler(seed: u64, steps: u64) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed);
        let victim = Role::Rank(Rank(rng.random_range(0..RANKS)));
        let mut moment = |from: u64, to: u64| Moment::Step(steps * rng.random_range(from..to) / 100);
        let kill = |role, moment| Fault { role, signal: Signal::KILL, moment };
        let first = moment(25, 40);
        Plan([kill(victim, first), kill(Role::Service(SCHEDULER), moment(60, 75))].into())
    }

    /// Returns `count` random faults: on average one in three during a start, one in four a SIGSTOP, one in four of the
    /// scheduler.
    #[must_use]
    pub fn random(seed: u64, count: u32) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed);
        let fault = |_| Fault {
            role: match rng.random_range(0..=RANKS) {
                RANKS => Role::Service(SCHEDULER),
                rank => Role::Rank(Rank(rank)),
            },
            signal: if rng.random_range(0..4) == 0 { Signal::STOP } else { Signal::KILL },
            moment: match rng.random_range(0..3) {
                0 => Moment::InStart(Duration::from_millis(rng.random_range(0..IN_START_MS))),
                _ => Moment::StepsAfter(rng.random_range(1..STEPS_AFTER)),
            },
        };
        Plan((0..count).map(fault).collect())
    }
}

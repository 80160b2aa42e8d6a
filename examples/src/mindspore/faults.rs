//! Faults from outside: which process is hit, how, and when, as a seed chooses; and the signals themselves.

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

/// Longest time from a generation's beginning to a fault that is to strike in its start.
const IN_START_MS: u64 = 9_000;
/// Most steps from the first step of a generation to a fault.
const STEPS_AFTER: u64 = 30;

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// When the job has come to this step.
    Step(u64),
    /// So many steps after the job has first stepped again.
    StepsAfter(u64),
    /// So long after the processes were started, wherever they are by then.
    InStart(Duration),
}

/// One fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The target.
    pub role: Role,
    /// SIGKILL, or SIGSTOP.
    pub signal: Signal,
    /// When.
    pub moment: Moment,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.what(), self.role)
    }
}

impl Fault {
    /// `SIGKILL`.
    #[must_use]
    pub const fn what(&self) -> &'static str {
        if matches!(self.signal, Signal::STOP) { "SIGSTOP" } else { "SIGKILL" }
    }

    /// Sends it; `false` where there is no such process.
    pub async fn strike(&self, launcher: &impl Launcher) -> bool {
        let Ok(listing) = launcher.list().await else { return false };
        let runs = |p: &&ProcStatus| p.proc.role == self.role && p.phase == Phase::Running;
        let pid = listing.procs.iter().find(runs).and_then(|p| i32::try_from(p.pid?).ok()).and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, self.signal).is_ok())
    }
}

/// Which faults strike, in order.
#[derive(Clone, Debug)]
pub struct Plan(pub VecDeque<Fault>);

impl Plan {
    /// None.
    #[must_use]
    pub const fn quiet() -> Plan {
        Plan(VecDeque::new())
    }

    /// A worker is killed at a third of the way, the scheduler at two thirds.
    #[must_use]
    pub fn worker_then_scheduler(seed: u64, steps: u64) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed);
        let victim = Role::Rank(Rank(rng.random_range(0..RANKS)));
        let mut moment = |from: u64, to: u64| Moment::Step(steps * rng.random_range(from..to) / 100);
        let kill = |role, moment| Fault { role, signal: Signal::KILL, moment };
        let first = moment(25, 40);
        Plan([kill(victim, first), kill(Role::Service(SCHEDULER), moment(60, 75))].into())
    }

    /// So many of any kind: every third one in a start, every fourth one a SIGSTOP, every fourth one the scheduler, on
    /// average.
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

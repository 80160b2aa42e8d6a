//! What is done to which rank, as a seed chooses.

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

/// Steps between two faults, at least; a seed adds up to as many.
const STEPS_BETWEEN: u64 = 25;

/// What is done to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: it is there and does not run.
    Stop,
    /// SIGKILL to the job's store, in the place of a rank.
    Store,
}

/// One fault.
#[derive(Clone, Copy, Debug)]
pub struct Strike {
    /// Which rank is hit; `None`: the job's store.
    pub rank: Option<u32>,
    /// With what.
    pub signal: Signal,
    /// So many steps after the job has gone on.
    pub after_steps: u64,
    /// And so long after that: anywhere in a step.
    pub after_ms: u64,
}

impl Fault {
    /// So many of them.
    #[must_use]
    pub fn plan(self, seed: u64, count: u32, ranks: u32) -> Vec<Strike> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut one = |_| Strike {
            rank: Some(rng.random_range(0..ranks)).filter(|_| self != Fault::Store),
            signal: if self == Fault::Stop { Signal::STOP } else { Signal::KILL },
            after_steps: rng.random_range(STEPS_BETWEEN..2 * STEPS_BETWEEN),
            after_ms: rng.random_range(0..30),
        };
        (0..count).map(&mut one).collect()
    }
}

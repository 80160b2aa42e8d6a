//! The faults of a run: their kinds and their ranks, as a seed chooses.

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

/// Minimum number of steps between two faults; the seed adds up to as many.
const STEPS_BETWEEN: u64 = 25;

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: the process exists, but does not run.
    Stop,
    /// The rank's program raises MemoryError in a step.
    Exception,
    /// The rank's connections fail in the backward pass, while the first bucket is reduced.
    Collective,
    /// Packets between the rank and the next one are dropped, without FIN or RST: the operation's time limit detects
    /// this.
    Cut,
    /// One gradient is not a number, before it is averaged over all ranks: the script checks for that and raises.
    Nan,
    /// SIGKILL to the job's store instead of a rank.
    Store,
}

/// The rank that is hit. Positions in the ring of gloo's operations are counted from rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Victim {
    /// Any rank, chosen by the seed.
    Seed,
    /// Rank 0.
    Zero,
    /// The next rank after rank 0.
    Neighbour,
    /// The rank farthest from rank 0.
    Opposite,
}

impl Victim {
    fn rank(self, ranks: u32, rng: &mut StdRng) -> u32 {
        match self {
            Victim::Seed => rng.random_range(0..ranks),
            Victim::Zero => 0,
            Victim::Neighbour => 1,
            Victim::Opposite => ranks / 2,
        }
    }
}

/// One fault.
#[derive(Clone, Copy, Debug)]
pub struct Strike {
    /// The kind of fault.
    pub fault: Fault,
    /// The rank that is hit; `None`: the job's store.
    pub rank: Option<u32>,
    /// Steps from the job's last recovery to the fault.
    pub after_steps: u64,
    /// Milliseconds after that step: any moment within the next one.
    pub after_ms: u64,
}

impl Fault {
    /// Returns `count` faults.
    #[must_use]
    pub fn plan(self, victim: Victim, seed: u64, count: u32, ranks: u32) -> Vec<Strike> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut one = |_| Strike {
            fault: self,
            rank: Some(victim.rank(ranks, &mut rng)).filter(|_| self != Fault::Store),
            after_steps: rng.random_range(STEPS_BETWEEN..2 * STEPS_BETWEEN),
            after_ms: rng.random_range(0..30),
        };
        (0..count).map(&mut one).collect()
    }

    /// Returns the signal that causes the fault, if a signal does.
    #[must_use]
    pub fn signal(self) -> Option<Signal> {
        match self {
            Fault::Kill | Fault::Store => Some(Signal::KILL),
            Fault::Stop => Some(Signal::STOP),
            _ => None,
        }
    }

    /// Returns the fault's name in the script, if the script causes it.
    #[must_use]
    pub fn in_script(self) -> Option<&'static str> {
        match self {
            Fault::Exception => Some("exception"),
            Fault::Collective => Some("collective"),
            Fault::Nan => Some("nan"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_has_its_place_in_the_ring_and_a_seed_reaches_all_of_them() {
        let ranks = |victim| {
            let plan = Fault::Kill.plan(victim, 7, 64, 4);
            plan.iter().filter_map(|strike| strike.rank).collect::<std::collections::BTreeSet<u32>>()
        };
        assert_eq!(ranks(Victim::Zero), [0].into());
        assert_eq!(ranks(Victim::Neighbour), [1].into());
        assert_eq!(ranks(Victim::Opposite), [2].into());
        assert_eq!(ranks(Victim::Seed), [0, 1, 2, 3].into());
        assert!(Fault::Store.plan(Victim::Seed, 7, 3, 4).iter().all(|strike| strike.rank.is_none()));
    }
}

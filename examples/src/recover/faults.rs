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
    /// SIGSTOP: the process exists, but does not run.
    Stop,
    /// Its program raises MemoryError in a step.
    Exception,
    /// Its connections fail in the backward pass, while the first bucket is reduced.
    Collective,
    /// Packets between it and the next rank are dropped, without FIN or RST: the operation's time limit detects this.
    Cut,
    /// One gradient is not a number, before it is averaged over all ranks: the script checks that and raises.
    Nan,
    /// SIGKILL to the job's store instead of a rank.
    Store,
}

/// Which rank it is done to. In the ring that gloo's operations go round, positions are counted from rank 0.
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
    /// What is done.
    pub fault: Fault,
    /// Which rank is hit; `None`: the job's store.
    pub rank: Option<u32>,
    /// So many steps after the job has gone on.
    pub after_steps: u64,
    /// And so long after that: anywhere in a step.
    pub after_ms: u64,
}

impl Fault {
    /// So many of them.
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

    /// The signal that does it, where a signal does.
    #[must_use]
    pub fn signal(self) -> Option<Signal> {
        match self {
            Fault::Kill | Fault::Store => Some(Signal::KILL),
            Fault::Stop => Some(Signal::STOP),
            _ => None,
        }
    }

    /// What the script calls it, where the script does it to itself.
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

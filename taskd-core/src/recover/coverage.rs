//! Which losses of a job are covered by what, as far as that is known before anything has failed.
//!
//! It promises nothing and decides nothing: what ranks find out later (state that is sharded, groups that cannot be left) they say
//! themselves, and each recovery looks at what is there.

use super::in_process::replica_sets;
use super::{Beforehand, DUMP, RecoveryStrategy, SHRINK};
use crate::job::{Name, NodeId, Permission, Rank, World};
use std::collections::BTreeSet;
use std::fmt;

/// Strategies that take a lost rank's state from a replica.
const FROM_A_REPLICA: [Name; 3] = [Name::new("recover-in-place"), Name::new("recover"), SHRINK];

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// One rank.
    Rank,
    /// A host, with its ranks and what they had in memory.
    Host,
    /// A rank and all others that hold the same state.
    Replicas,
    /// All ranks.
    All,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Rank => "one rank",
            Loss::Host => "a host",
            Loss::Replicas => "a rank and all its replicas",
            Loss::All => "all ranks",
        })
    }
}

/// What training goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CoveredBy {
    /// The state of a replica: the step in flight is lost.
    Replica,
    /// A checkpoint that those who live save ([`Policy::dump_dir`](crate::job::Policy::dump_dir)): the step in flight is lost.
    Dump,
    /// Copies in memory, of every so many steps ([`Policy::memory`](crate::job::Policy::memory)).
    Memory {
        /// How many.
        every: u64,
    },
    /// Nothing of taskd's: the program's own checkpoints, or its start where it saves none.
    Program,
}

impl fmt::Display for CoveredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoveredBy::Replica => f.write_str("a replica's state"),
            CoveredBy::Dump => f.write_str("a checkpoint that the others save"),
            CoveredBy::Memory { every } => write!(f, "the copies in memory of every {every} steps"),
            CoveredBy::Program => f.write_str("the program's own checkpoints"),
        }
    }
}

/// One kind of loss, and what covers it: `one rank: a replica's state, else the program's own checkpoints`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Covered {
    /// What is lost.
    pub loss: Loss,
    /// What training goes on from, the best first. The program's own checkpoints come last, always.
    pub by: Vec<CoveredBy>,
}

impl fmt::Display for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by: Vec<String> = self.by.iter().map(ToString::to_string).collect();
        let only = if by.len() == 1 { "only " } else { "" };
        write!(f, "{}: {only}{}", self.loss, by.join(", else "))
    }
}

/// What covers which loss of such a job with these strategies, by what they may do and [can](RecoveryStrategy::cannot).
///
/// It holds for programs that have a step loop of taskd's and load what was saved; others have their own checkpoints alone.
/// Replicas are what the job's groups say: its data-parallel ones, or all ranks where it names none. It says what holds for every rank
/// and every host, and nothing of hosts where the launcher chooses among several ([`JobSpec::nodes`](crate::job::JobSpec::nodes)).
///
/// ```
/// use std::num::NonZeroU64;
/// use std::sync::Arc;
/// use taskd_core::job::{JobSpec, MemoryCheckpoints, WorkerSpec};
/// use taskd_core::recover::{self, Beforehand, coverage};
///
/// let mut spec = JobSpec::new("job", 4, WorkerSpec::new(["train"]));
/// spec.policy.memory = NonZeroU64::new(100).map(MemoryCheckpoints::every);
/// let covered = coverage(&recover::defaults(), &Beforehand::of(Arc::new(spec)).with_hosts(1));
/// let lines: Vec<String> = covered.iter().map(ToString::to_string).collect();
/// assert_eq!(lines, [
///     "one rank: a replica's state, else the copies in memory of every 100 steps, else the program's own checkpoints",
///     "a host: only the program's own checkpoints",
///     "a rank and all its replicas: the copies in memory of every 100 steps, else the program's own checkpoints",
///     "all ranks: the copies in memory of every 100 steps, else the program's own checkpoints",
/// ]);
/// ```
#[must_use]
pub fn coverage(strategies: &[Box<dyn RecoveryStrategy>], job: &Beforehand) -> Vec<Covered> {
    let policy = &job.spec.policy;
    let works = |name: &Name| {
        let there = strategies.iter().find(|strategy| strategy.name() == *name);
        policy.permission(name) != Permission::Never && there.is_some_and(|strategy| strategy.cannot(job).is_none())
    };
    let world = job.spec.first_world();
    let sets = replica_sets(&world, false);
    let have_replicas = sets.iter().all(|set| set.len() > 1);
    let replica = (have_replicas && FROM_A_REPLICA.iter().any(works)).then_some(CoveredBy::Replica);
    let dump = (have_replicas && works(&DUMP)).then_some(CoveredBy::Dump);
    let memory = policy.memory.map(|copies| CoveredBy::Memory { every: copies.every.get() });
    let covered = |loss: Loss| {
        let lives = match loss {
            Loss::Rank => true,
            Loss::Host => outlives_a_host(job, &world, &sets)?,
            Loss::Replicas | Loss::All => false,
        };
        let by_others = [replica, dump].into_iter().flatten().filter(|_| lives);
        let own = memory.filter(|_| loss != Loss::Host); // its memory goes with it
        Some(Covered { loss, by: by_others.chain(own).chain([CoveredBy::Program]).collect() })
    };
    [Loss::Rank, Loss::Host, Loss::Replicas, Loss::All].into_iter().filter_map(covered).collect()
}

/// Whether each rank has a replica on another host. `None`: the launcher chooses who sits where, and two may share one.
fn outlives_a_host(job: &Beforehand, world: &World, sets: &[BTreeSet<Rank>]) -> Option<bool> {
    if job.hosts == Some(1) {
        return Some(false);
    }
    let host = |rank: &Rank| world.members().get(rank)?.node.as_ref();
    let hosts = |set: &BTreeSet<Rank>| set.iter().map(host).collect::<Option<BTreeSet<&NodeId>>>();
    let numbers: Option<Vec<usize>> = sets.iter().map(|set| hosts(set).map(|hosts| hosts.len())).collect();
    Some(numbers?.iter().all(|number| *number > 1))
}

#[cfg(test)]
mod tests;

//! Which kinds of loss are covered by which source of state, as far as known before anything has failed.
//!
//! This is information, not a guarantee: what ranks find out later (sharded state, groups that cannot be left) they
//! report themselves, and each recovery checks the actual state.

use super::in_process::replica_sets;
use super::{DUMP, JobProfile, RecoveryStrategy, SHRINK};
use crate::job::strategy::{RECOVER, RECOVER_IN_PLACE};
use crate::job::{Name, NodeId, Permission, Rank, World};
use std::collections::BTreeSet;
use std::fmt;

/// Strategies that take a lost rank's state from a replica.
const FROM_A_REPLICA: [Name; 3] = [RECOVER_IN_PLACE, RECOVER, SHRINK];

/// A kind of loss of training state, named by the set of ranks whose processes and state are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// One rank is lost.
    Rank,
    /// A host is lost, with its ranks and their memory.
    Host,
    /// A rank and all other ranks that hold the same state are lost.
    Replicas,
    /// All ranks are lost.
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

/// Source of the state from which training continues after ranks or hosts were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CoveredBy {
    /// The state of a replica, a rank that holds the same state: only the step in progress is lost.
    Replica,
    /// A checkpoint that the surviving ranks save after the loss: only the step in progress is lost.
    ///
    /// See [`Policy::checkpoint_dir`](crate::job::Policy::checkpoint_dir).
    Dump,
    /// In-memory checkpoints, made at a fixed interval of steps.
    ///
    /// See [`Policy::in_memory_checkpoints`](crate::job::Policy::in_memory_checkpoints).
    Memory {
        /// Interval between two in-memory checkpoints, in steps.
        every: u64,
    },
    /// The training program's own checkpoints; taskd contributes no state. If the program saves none, training starts
    /// from the beginning.
    Program,
}

impl fmt::Display for CoveredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoveredBy::Replica => f.write_str("a replica's state"),
            CoveredBy::Dump => f.write_str("a checkpoint saved by the other ranks"),
            CoveredBy::Memory { every } => write!(f, "the copies in memory of every {every} steps"),
            CoveredBy::Program => f.write_str("the program's own checkpoints"),
        }
    }
}

/// A kind of loss and the sources of state that cover it. Its text is, for example, `one rank: a replica's state,
/// else the program's own checkpoints`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Covered {
    /// The kind of loss of training state.
    pub loss: Loss,
    /// Sources of state to continue from, best first. The program's own checkpoints are always the last.
    pub by: Vec<CoveredBy>,
}

impl fmt::Display for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by: Vec<String> = self.by.iter().map(ToString::to_string).collect();
        let only = if by.len() == 1 { "only " } else { "" };
        write!(f, "{}: {only}{}", self.loss, by.join(", else "))
    }
}

/// Returns, for each kind of loss, the sources of state from which a job with these strategies can continue.
///
/// A source counts if its strategy is permitted and has no
/// [`unsupported_reason`](RecoveryStrategy::unsupported_reason). The result holds for programs that use taskd's
/// step loop and load the state that was saved; other programs have only their own checkpoints. The ranks of a
/// data-parallel group are replicas of each other, or all ranks if the job names no such group. An entry holds for
/// every rank or host. There is no entry for a lost host if the launcher chooses among several hosts
/// ([`JobSpec::nodes`](crate::job::JobSpec::nodes)).
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use std::num::NonZeroU64;
/// use std::sync::Arc;
/// use taskd_core::job::{JobSpec, InMemoryCheckpoints, WorkerSpec};
/// use taskd_core::recover::{self, JobProfile, coverage};
///
/// let mut spec = JobSpec::new("job", 4, WorkerSpec::new(["train"]));
/// spec.policy.in_memory_checkpoints = NonZeroU64::new(100).map(InMemoryCheckpoints::every);
/// let covered = coverage(&recover::defaults(), &JobProfile::of(Arc::new(spec)).with_hosts(1));
/// let lines: Vec<String> = covered.iter().map(ToString::to_string).collect();
/// assert_eq!(lines, [
///     "one rank: a replica's state, else the copies in memory of every 100 steps, else the program's own checkpoints",
///     "a host: only the program's own checkpoints",
///     "a rank and all its replicas: the copies in memory of every 100 steps, else the program's own checkpoints",
///     "all ranks: the copies in memory of every 100 steps, else the program's own checkpoints",
/// ]);
/// ```
#[must_use]
pub fn coverage(strategies: &[Box<dyn RecoveryStrategy>], job: &JobProfile) -> Vec<Covered> {
    let policy = &job.spec.policy;
    let works = |name: &Name| {
        let there = strategies.iter().find(|strategy| strategy.name() == *name);
        policy.permission(name) != Permission::Never
            && there.is_some_and(|strategy| strategy.unsupported_reason(job).is_none())
    };
    let world = job.spec.first_world();
    let sets = replica_sets(&world, false);
    let have_replicas = sets.iter().all(|set| set.len() > 1);
    let replica = (have_replicas && FROM_A_REPLICA.iter().any(works)).then_some(CoveredBy::Replica);
    let dump = (have_replicas && works(&DUMP)).then_some(CoveredBy::Dump);
    let memory = policy.in_memory_checkpoints.map(|copies| CoveredBy::Memory { every: copies.every.get() });
    let covered = |loss: Loss| {
        let lives = match loss {
            Loss::Rank => true,
            Loss::Host => outlives_a_host(job, &world, &sets)?,
            Loss::Replicas | Loss::All => false,
        };
        let by_others = [replica, dump].into_iter().flatten().filter(|_| lives);
        // The memory of a host is lost with the host; ranks on another one hold second copies.
        let own = memory.filter(|_| loss != Loss::Host || job.hosts.is_some_and(|hosts| hosts > 1));
        Some(Covered { loss, by: by_others.chain(own).chain([CoveredBy::Program]).collect() })
    };
    [Loss::Rank, Loss::Host, Loss::Replicas, Loss::All].into_iter().filter_map(covered).collect()
}

/// Returns true if each rank has a replica on another host. `None` if the launcher chooses the hosts, so that two
/// replicas may share one.
fn outlives_a_host(job: &JobProfile, world: &World, sets: &[BTreeSet<Rank>]) -> Option<bool> {
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

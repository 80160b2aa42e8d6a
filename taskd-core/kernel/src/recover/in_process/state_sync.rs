//! Plans a state sync: the step for all ranks, and which rank copies from which.
//!
//! Pure computation over the states that the survivors reported; it sends nothing.

use super::replicas::{check_layouts, no_copy};
use super::state_sources::Givers;
use crate::job::{Rank, World};
use crate::state::{Window, WorkerState};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of replicas that send state to one rank: more add little, and each must be asked to send.
pub(super) const SOURCES_MAX: usize = 4;

/// Minimum size of a state, in bytes, that is copied from several replicas on other hosts. For a smaller state, the
/// time saved does not outweigh the cost of asking each of them.
pub(super) const PARTS_MIN_BYTES: u64 = 64 << 20;

/// The part of one rank in a state sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Ranks to copy from, a part from each; empty if the rank has the state itself.
    pub(super) from: Vec<Rank>,
    pub(super) to: Vec<Rank>,
    pub(super) put_back: bool,
    /// The gradient buckets of the rank's replicas, if they have any.
    pub(super) buckets: Option<Vec<u64>>,
}

/// The parts of all ranks in a state sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repairs {
    /// The step that is trained next.
    pub(super) step: u64,
    pub(super) places: BTreeMap<Rank, Place>,
}

/// Plans the state sync. The newest step that a complete replica can train next wins: ranks behind it, torn ranks and
/// new ranks copy from a replica that has it. A rank that copies nothing is not compared with others.
///
/// `sets`: ranks that are proven to hold the same state.
///
/// # Errors
/// The reason why there is no such step, in one sentence.
pub(super) fn plan(
    states: &BTreeMap<Rank, WorkerState>,
    replacements: &BTreeSet<Rank>,
    sets: &[BTreeSet<Rank>],
    world: &World,
) -> Result<Repairs, String> {
    let whole = states.iter().filter(|(rank, state)| state.is_whole() && !replacements.contains(*rank));
    let step = whole.map(|(_, state)| state.next_step()).max();
    let step =
        step.ok_or("every replica was interrupted in its commit window: no rank has the state of one step in memory")?;
    let mut places: BTreeMap<Rank, Place> = BTreeMap::new();
    for set in sets {
        let has_it = |state: &&WorkerState| state.is_whole() && state.next_step() == step;
        let state_of = |rank: &Rank| states.get(rank).filter(|_| !replacements.contains(rank)).filter(has_it);
        let members = set.iter().copied().filter(|rank| world.members().contains_key(rank));
        let (have, lack): (Vec<Rank>, Vec<Rank>) = members.partition(|rank| state_of(rank).is_some());
        let sources = have.iter().filter_map(|rank| Some((*rank, state_of(rank)?))).collect();
        let buckets = buckets_of(&sources);
        for (rank, state) in &sources {
            let put_back = state.window == Window::Before;
            places.insert(*rank, Place { put_back, buckets: buckets.clone(), ..Place::default() });
        }
        for (rank, from) in copies(step, &sources, &lack, states, world)? {
            for source in &from {
                places.entry(*source).or_default().to.push(rank);
            }
            places.insert(rank, Place { from, buckets: buckets.clone(), ..Place::default() });
        }
    }
    Ok(Repairs { step, places })
}

/// Returns, for each rank of a set of replicas that lacks the state of the step, the ranks to copy from. A large state
/// is copied to another host from several ranks, a part from each.
fn copies(
    step: u64,
    sources: &BTreeMap<Rank, &WorkerState>,
    lack: &[Rank],
    states: &BTreeMap<Rank, WorkerState>,
    world: &World,
) -> Result<Vec<(Rank, Vec<Rank>)>, String> {
    let Some(first) = lack.first() else { return Ok(Vec::new()) };
    let concerned = lack.iter().filter_map(|rank| states.get(rank)).chain(sources.values().copied());
    if let Some(what) = concerned.flat_map(|state| &state.sharded).next() {
        return Err(no_copy(what, *first));
    }
    if sources.is_empty() {
        return Err(format!("no replica of {first} has the state of step {step}"));
    }
    check_layouts(sources.iter().map(|(rank, state)| (rank, *state)))?;
    let is_large = sources.values().any(|state| state.bytes >= PARTS_MIN_BYTES);
    let most = if is_large { SOURCES_MAX } else { 1 };
    let mut givers = Givers::new(sources.keys().copied(), world);
    Ok(lack.iter().map(|rank| (*rank, givers.to(*rank, most))).collect())
}

/// Returns the gradient buckets of the replicas: the longest list that any of them has built.
fn buckets_of(sources: &BTreeMap<Rank, &WorkerState>) -> Option<Vec<u64>> {
    let known = sources.values().map(|state| &state.buckets);
    known.filter(|buckets| !buckets.is_empty()).max_by_key(|buckets| buckets.len()).cloned()
}

#[cfg(test)]
mod tests;

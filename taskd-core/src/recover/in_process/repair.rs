//! To which step everybody is brought, and who copies from whom: from what each survivor says of where it stands.
//!
//! Pure arithmetic over their answers; it tells nobody.

use super::givers::Givers;
use super::replicas::{check_layouts, no_copy};
use crate::job::{Rank, World};
use crate::launch::{Window, WorkerState};
use std::collections::{BTreeMap, BTreeSet};

/// How many replicas give to one rank at most: more have little to add, and each of them has to tell of its state.
pub(super) const SOURCES_MAX: usize = 4;

/// The least state, in bytes, that comes from several replicas, to another host: of less, each saves nothing that it does not take to ask it.
pub(super) const PARTS_MIN_BYTES: u64 = 64 << 20;

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Of whom it copies, of each a part; nobody, where it has the state itself.
    pub(super) from: Vec<Rank>,
    pub(super) to: Vec<Rank>,
    pub(super) put_back: bool,
    /// The gradient buckets of its replicas, where they have some.
    pub(super) buckets: Option<Vec<u64>>,
}

/// What everybody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repairs {
    /// The step that is trained next.
    pub(super) step: u64,
    pub(super) places: BTreeMap<Rank, Place>,
}

/// The newest step that a whole replica can train next wins: those behind it, torn ones and newcomers copy from a replica
/// that is there. What nobody copies is compared with nothing. `sets`: ranks that are proven to hold the same state.
///
/// # Errors
/// Why there is no such step: in one sentence.
pub(super) fn plan(
    states: &BTreeMap<Rank, WorkerState>,
    newcomers: &BTreeSet<Rank>,
    sets: &[BTreeSet<Rank>],
    world: &World,
) -> Result<Repairs, String> {
    let whole = states.iter().filter(|(rank, state)| state.is_whole() && !newcomers.contains(*rank));
    let step = whole.map(|(_, state)| state.next_step()).max();
    let step = step.ok_or("every replica was torn inside of its commit window: no state in memory is of one step")?;
    let mut places: BTreeMap<Rank, Place> = BTreeMap::new();
    for set in sets {
        let has_it = |state: &&WorkerState| state.is_whole() && state.next_step() == step;
        let state_of = |rank: &Rank| states.get(rank).filter(|_| !newcomers.contains(rank)).filter(has_it);
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

/// From whom those of a set of replicas copy who lack the state of the step. To another host several give a part each of a large
/// state.
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

/// The gradient buckets of replicas: of those who have made the most of them.
fn buckets_of(sources: &BTreeMap<Rank, &WorkerState>) -> Option<Vec<u64>> {
    let known = sources.values().map(|state| &state.buckets);
    known.filter(|buckets| !buckets.is_empty()).max_by_key(|buckets| buckets.len()).cloned()
}

#[cfg(test)]
mod tests;

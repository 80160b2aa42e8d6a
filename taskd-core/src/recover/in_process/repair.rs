//! To which step everybody is brought, and who copies from whom: from what each survivor says of where it stands.
//!
//! Pure arithmetic over their answers; it tells nobody.

use super::replicas::{check_layouts, no_copy, replica_sets};
use crate::job::{Rank, World};
use crate::launch::{Window, WorkerState};
use std::collections::{BTreeMap, BTreeSet};

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) from: Option<Rank>,
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
/// that is there. Sources are taken in turn, so that none gives to all. What nobody copies is compared with nothing.
///
/// # Errors
/// Why there is no such step: in one sentence.
pub(super) fn plan(
    states: &BTreeMap<Rank, WorkerState>,
    newcomers: &BTreeSet<Rank>,
    world: &World,
) -> Result<Repairs, String> {
    let whole = states.iter().filter(|(rank, state)| state.is_whole() && !newcomers.contains(*rank));
    let step = whole.map(|(_, state)| state.next_step()).max();
    let step = step.ok_or("every replica was torn inside of its commit window: no state in memory is of one step")?;
    let mut places: BTreeMap<Rank, Place> = BTreeMap::new();
    for set in replica_sets(world, false) {
        let has_it = |state: &&WorkerState| state.is_whole() && state.next_step() == step;
        let state_of = |rank: &Rank| states.get(rank).filter(|_| !newcomers.contains(rank)).filter(has_it);
        let members = set.into_iter().filter(|rank| world.members().contains_key(rank));
        let (have, lack): (Vec<Rank>, Vec<Rank>) = members.partition(|rank| state_of(rank).is_some());
        let sources = have.iter().filter_map(|rank| Some((*rank, state_of(rank)?))).collect();
        let buckets = buckets_of(&sources);
        for (rank, state) in &sources {
            let put_back = state.window == Window::Before;
            places.insert(*rank, Place { put_back, buckets: buckets.clone(), ..Place::default() });
        }
        let copied = copies(step, &sources, &lack, states)?;
        for (rank, source) in copied {
            places.entry(source).or_default().to.push(rank);
            places.insert(rank, Place { from: Some(source), buckets: buckets.clone(), ..Place::default() });
        }
    }
    Ok(Repairs { step, places })
}

/// From whom those of a set of replicas copy who lack the state of the step.
fn copies(
    step: u64,
    sources: &BTreeMap<Rank, &WorkerState>,
    lack: &[Rank],
    states: &BTreeMap<Rank, WorkerState>,
) -> Result<Vec<(Rank, Rank)>, String> {
    let Some(first) = lack.first() else { return Ok(Vec::new()) };
    let concerned = lack.iter().filter_map(|rank| states.get(rank)).chain(sources.values().copied());
    if let Some(what) = concerned.flat_map(|state| &state.sharded).next() {
        return Err(no_copy(what, *first));
    }
    check_layouts(sources.iter().map(|(rank, state)| (rank, *state)))?;
    let mut given: BTreeMap<Rank, usize> = sources.keys().map(|rank| (*rank, 0)).collect();
    let mut copied = Vec::new();
    for rank in lack {
        let source = given.iter_mut().min_by_key(|(source, given)| (**given, **source));
        let (source, given) = source.ok_or_else(|| format!("no replica of {rank} has the state of step {step}"))?;
        *given += 1;
        copied.push((*rank, *source));
    }
    Ok(copied)
}

/// The gradient buckets of replicas: of those who have made the most of them.
fn buckets_of(sources: &BTreeMap<Rank, &WorkerState>) -> Option<Vec<u64>> {
    let known = sources.values().map(|state| &state.buckets);
    known.filter(|buckets| !buckets.is_empty()).max_by_key(|buckets| buckets.len()).cloned()
}

#[cfg(test)]
mod tests;

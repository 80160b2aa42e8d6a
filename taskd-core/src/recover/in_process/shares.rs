//! Which step is saved, and who writes which part of it: from what each survivor says of where it stands.
//!
//! Pure arithmetic over their answers; it tells nobody.

use super::repair::check_layouts;
use crate::job::{GroupKind, JobSpec, Rank, World};
use crate::launch::WorkerState;
use std::collections::{BTreeMap, BTreeSet};

/// A part of a state, of as many parts as its replicas write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) part: u32,
    pub(super) of: u32,
}

/// What is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// The step that is trained next from it.
    pub(super) step: u64,
    /// Ranks that hold the same state.
    pub(super) sets: Vec<BTreeSet<Rank>>,
    /// Who writes what.
    pub(super) writers: BTreeMap<Rank, Share>,
}

/// The newest step of which the state of every rank is there, in the rank itself or in a replica. All who have it write: each
/// has what no replica has as well, such as its random numbers.
///
/// # Errors
/// Why there is no such step: in one sentence.
pub(super) fn plan(states: &BTreeMap<Rank, WorkerState>, world: &World) -> Result<Shares, String> {
    let is_sharded = states.values().any(|state| !state.sharded.is_empty());
    let sets = replica_sets(world, is_sharded);
    let whole = |set: &BTreeSet<Rank>, step: Option<u64>| {
        let of_set = states.iter().filter(|(rank, state)| set.contains(*rank) && state.is_whole());
        of_set.filter(|(_, s)| step.is_none_or(|step| s.next_step() == step)).map(|(rank, _)| *rank).collect::<Vec<_>>()
    };
    if let Some(set) = sets.iter().find(|set| whole(set, None).is_empty()) {
        return Err(nobody_has(set, states));
    }
    let steps: BTreeSet<u64> = states.values().filter(|s| s.is_whole()).map(WorkerState::next_step).collect();
    let step = steps.into_iter().rfind(|step| sets.iter().all(|set| !whole(set, Some(*step)).is_empty()));
    let step = step.ok_or("those who live are at different steps: no step's state is there of all ranks")?;
    let mut writers = BTreeMap::new();
    for set in &sets {
        let ranks = whole(set, Some(step));
        let of_set = ranks.iter().filter_map(|rank| Some((*rank, states.get(rank)?.clone()))).collect();
        check_layouts(&of_set)?;
        let of = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        writers.extend(ranks.into_iter().zip(0..).map(|(rank, part)| (rank, Share { part, of })));
    }
    Ok(Shares { step, sets, writers })
}

/// Ranks that hold the same parameters and optimizer: the data-parallel groups; all of them, where the job names none; each
/// for itself, where no rank has a copy of another's state. Absent ones too: who starts from what is saved is everybody.
pub(in crate::recover) fn replica_sets(world: &World, is_sharded: bool) -> Vec<BTreeSet<Rank>> {
    let all = || world.places().map(|(rank, _)| rank);
    if is_sharded {
        return all().map(|rank| [rank].into()).collect();
    }
    let dp = world.groups().iter().filter(|(id, _)| id.kind == GroupKind::Dp);
    let mut sets: Vec<BTreeSet<Rank>> = dp.map(|(_, ranks)| ranks.iter().copied().collect()).collect();
    if sets.is_empty() {
        return vec![all().collect()];
    }
    let grouped: BTreeSet<Rank> = sets.iter().flatten().copied().collect();
    sets.extend(all().filter(|rank| !grouped.contains(rank)).map(|rank| [rank].into()));
    sets
}

/// Whether some rank of such a job has another that holds the same state, as far as its groups say.
pub(super) fn has_replicas(spec: &JobSpec) -> bool {
    let mut dp = spec.groups.iter().filter(|(id, _)| id.kind == GroupKind::Dp).map(|(_, ranks)| ranks.len()).peekable();
    if dp.peek().is_none() { spec.ranks > 1 } else { dp.any(|members| members > 1) }
}

fn nobody_has(set: &BTreeSet<Rank>, states: &BTreeMap<Rank, WorkerState>) -> String {
    let ranks = set.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let sharded = states.values().flat_map(|state| &state.sharded).next();
    match (sharded, set.iter().any(|rank| states.contains_key(rank))) {
        (_, true) => format!("every replica of {ranks} was torn inside of its commit window"),
        (Some(name), false) => format!("{name} is sharded, and what {ranks} held of it is lost with it"),
        (None, false) => format!("no replica of {ranks} is left"),
    }
}

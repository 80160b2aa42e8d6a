//! Computes which step is saved and which rank writes which shard of it, from the states that the survivors reported.
//!
//! Pure computation; it sends nothing.

use super::replicas::check_layouts;
use crate::job::Rank;
use crate::state::WorkerState;
use std::collections::{BTreeMap, BTreeSet};

/// One shard of a state, out of as many shards as there are replicas that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) part: u32,
    pub(super) of: u32,
}

/// The shards of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// The step that is trained next from this checkpoint.
    pub(super) step: u64,
    /// Sets of ranks that hold the same state.
    pub(super) sets: Vec<BTreeSet<Rank>>,
    /// The shard of each rank that writes.
    pub(super) writers: BTreeMap<Rank, Share>,
}

/// Picks the newest step for which the state of every rank is available, in the rank itself or in a replica. All ranks
/// that have it write: each also holds state that no replica has, such as its random number state.
///
/// `sets`: ranks that hold the same state, and each rank alone whose state no other holds.
///
/// # Errors
/// The reason why there is no such step, in one sentence.
pub(super) fn plan(states: &BTreeMap<Rank, WorkerState>, sets: Vec<BTreeSet<Rank>>) -> Result<Shares, String> {
    let whole = |set: &BTreeSet<Rank>, step: Option<u64>| {
        let of_set = states.iter().filter(|(rank, state)| set.contains(*rank) && state.is_whole());
        of_set.filter(|(_, s)| step.is_none_or(|step| s.next_step() == step)).map(|(rank, _)| *rank).collect::<Vec<_>>()
    };
    if let Some(set) = sets.iter().find(|set| whole(set, None).is_empty()) {
        return Err(nobody_has(set, states));
    }
    let steps: BTreeSet<u64> = states.values().filter(|s| s.is_whole()).map(WorkerState::next_step).collect();
    let step = steps.into_iter().rfind(|step| sets.iter().all(|set| !whole(set, Some(*step)).is_empty()));
    let step = step.ok_or("the surviving ranks are at different steps: no step has the state of all ranks")?;
    let mut writers = BTreeMap::new();
    for set in &sets {
        let ranks = whole(set, Some(step));
        check_layouts(ranks.iter().filter_map(|rank| states.get_key_value(rank)))?;
        let of = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        writers.extend(ranks.into_iter().zip(0..).map(|(rank, part)| (rank, Share { part, of })));
    }
    Ok(Shares { step, sets, writers })
}

fn nobody_has(set: &BTreeSet<Rank>, states: &BTreeMap<Rank, WorkerState>) -> String {
    let ranks = set.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let sharded = states.values().flat_map(|state| &state.sharded).next();
    match (sharded, set.iter().any(|rank| states.contains_key(rank))) {
        (_, true) => format!("every replica of {ranks} was interrupted in its commit window"),
        (Some(name), false) => format!("{name} is sharded, and the shard of {ranks} is lost"),
        (None, false) => format!("no replica of {ranks} is left"),
    }
}

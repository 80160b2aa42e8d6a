//! Determines which ranks hold the same state, so that one can send it to another, and the reason when none does.
//!
//! Ranks are replicas if the job's groups do not rule it out *and* equal checksums prove it
//! ([`Replicas`](crate::state::Replicas)). Pure computation; it chooses no source.

use crate::job::{GroupKind, JobSpec, Rank, Role, World};
use crate::state::{View, WorkerState};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the sets of ranks that are declared to hold the same parameters and optimizer state.
///
/// These are the data-parallel groups; all ranks, if the job names no such group; each rank alone, if the state is
/// sharded. Absent ranks are included, because a start from a checkpoint starts all ranks.
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

/// Returns the same sets, restricted to what checksums prove: a rank without a proof is a set of its own.
pub(super) fn proven_sets(view: &View, is_sharded: bool) -> Vec<BTreeSet<Rank>> {
    replica_sets(&view.world, is_sharded).iter().flat_map(|set| view.replicas.split(set)).collect()
}

/// Returns two ranks of one set with different checksums, if there are any. A rank without a checksum is not compared.
pub(super) fn that_differ(sets: &[BTreeSet<Rank>], digests: &BTreeMap<Rank, &str>) -> Option<(Rank, Rank)> {
    sets.iter().find_map(|set| {
        let mut known = set.iter().filter_map(|rank| Some((rank, digests.get(rank)?)));
        let (first, digest) = known.next()?;
        known.find(|(_, other)| *other != digest).map(|(other, _)| (*first, *other))
    })
}

/// Returns the reason why some rank has no proven replica (another rank that provably holds the same state),
/// although the job's groups declare one.
#[doc(hidden)]
pub fn unproven(view: &View) -> Option<String> {
    let declared = replica_sets(&view.world, false);
    let several = declared.iter().filter(|set| set.len() > 1);
    let alone = several.flat_map(|set| view.replicas.split(set)).find(|set| set.len() == 1)?;
    alone.first().map(|rank| view.replicas.why_alone(*rank))
}

/// Returns true if, according to the job's groups, some rank has another that holds the same state.
pub(super) fn has_replicas(spec: &JobSpec) -> bool {
    let mut dp = spec.groups.iter().filter(|(id, _)| id.kind == GroupKind::Dp).map(|(_, ranks)| ranks.len()).peekable();
    if dp.peek().is_none() { spec.ranks > 1 } else { dp.any(|members| members > 1) }
}

/// Checks that replicas have states of the same layout. A rank with a shard that no other rank has is no replica and
/// must not be passed here.
///
/// # Errors
/// The two ranks that differ.
pub(super) fn check_layouts<'a>(states: impl IntoIterator<Item = (&'a Rank, &'a WorkerState)>) -> Result<(), String> {
    let mut known = states.into_iter().filter(|(_, state)| !state.layout.is_empty());
    let Some((first, state)) = known.next() else { return Ok(()) };
    match known.find(|(_, other)| other.layout != state.layout) {
        Some((other, _)) => Err(format!(
            "the states of {first} and {other} differ in names, shapes or types: they are not replicas of each other"
        )),
        None => Ok(()),
    }
}

/// Checks that the survivors could provide the state that the new ranks lack, as far as known so far.
///
/// A replica of each new rank has to survive, and must not have reported state that only one rank holds.
///
/// # Errors
/// A rank of whose state there is no copy, and the reason.
pub(super) fn can_give(kept: &BTreeSet<Rank>, coming: &BTreeSet<Rank>, view: &View) -> Result<(), String> {
    for set in replica_sets(&view.world, false) {
        let Some(rank) = set.intersection(coming).next() else { continue };
        if set.is_disjoint(kept) {
            return Err(format!("no replica of {rank} is left"));
        }
        if let Some(what) = reported_sharded(set.intersection(kept), view) {
            return Err(no_copy(what, *rank));
        }
        for proven in view.replicas.split(&set) {
            match proven.intersection(coming).next() {
                Some(rank) if proven.len() == 1 => return Err(view.replicas.why_alone(*rank)),
                Some(rank) if proven.is_disjoint(kept) => return Err(format!("no replica of {rank} is left")),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns the name of an object that one of these ranks has reported as sharded (without a copy on another rank).
pub(super) fn reported_sharded<'a>(ranks: impl IntoIterator<Item = &'a Rank>, view: &View) -> Option<&str> {
    let links = ranks.into_iter().filter_map(|rank| view.proc(&Role::Rank(*rank))?.link.as_ref());
    links.flat_map(|link| &link.sharded).map(String::as_str).next()
}

/// Returns the reason why no other rank has a copy of `what`, followed by the consequence `so`.
pub(super) fn is_alone(what: &str, so: &str) -> String {
    format!("{what} is sharded over the ranks, or was created inside the step loop: {so}")
}

/// Returns the reason why a rank cannot get the state that it lacks.
pub(super) fn no_copy(what: &str, rank: Rank) -> String {
    is_alone(what, &format!("no other rank has a copy of the part of {rank}"))
}

#[cfg(test)]
mod tests;

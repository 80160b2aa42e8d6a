//! Which ranks hold the same state: from whom one could be given what it lacks, and why from nobody.
//!
//! Ranks are replicas where the job's groups do not say otherwise *and* equal checksums prove it ([`Replicas`](crate::kernel::Replicas)).
//! Pure arithmetic; it chooses no source.

use crate::job::{GroupKind, JobSpec, Rank, Role, World};
use crate::kernel::View;
use crate::launch::WorkerState;
use std::collections::{BTreeMap, BTreeSet};

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

/// The same, as far as checksums prove it: a rank without a proof is a set of its own.
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

/// Why some rank of the world has no proven replica, if one has none though the job's groups do not rule it out.
pub(crate) fn unproven(view: &View) -> Option<String> {
    let declared = replica_sets(&view.world, false);
    let several = declared.iter().filter(|set| set.len() > 1);
    let alone = several.flat_map(|set| view.replicas.split(set)).find(|set| set.len() == 1)?;
    alone.first().map(|rank| view.replicas.why_alone(*rank))
}

/// Whether some rank of such a job has another that holds the same state, as far as its groups say.
pub(super) fn has_replicas(spec: &JobSpec) -> bool {
    let mut dp = spec.groups.iter().filter(|(id, _)| id.kind == GroupKind::Dp).map(|(_, ranks)| ranks.len()).peekable();
    if dp.peek().is_none() { spec.ranks > 1 } else { dp.any(|members| members > 1) }
}

/// Replicas have states of one shape. Who holds a part that nobody else has is no replica, and is not to be among these.
///
/// # Errors
/// Which two differ.
pub(super) fn check_layouts<'a>(states: impl IntoIterator<Item = (&'a Rank, &'a WorkerState)>) -> Result<(), String> {
    let mut known = states.into_iter().filter(|(_, state)| !state.layout.is_empty());
    let Some((first, state)) = known.next() else { return Ok(()) };
    match known.find(|(_, other)| other.layout != state.layout) {
        Some((other, _)) => Err(format!(
            "the states of {first} and {other} differ in names, shapes or types: they are no replicas of each other"
        )),
        None => Ok(()),
    }
}

/// Whether those who live could give the newcomers what they lack, as far as is known before anybody is asked: some replica of each
/// lives, and has told of nothing that only one rank holds.
///
/// # Errors
/// Of whom there is no copy, and why.
pub(super) fn can_give(kept: &BTreeSet<Rank>, coming: &BTreeSet<Rank>, view: &View) -> Result<(), String> {
    for set in replica_sets(&view.world, false) {
        let Some(rank) = set.intersection(coming).next() else { continue };
        if set.is_disjoint(kept) {
            return Err(format!("no replica of {rank} is left"));
        }
        if let Some(what) = told_sharded(set.intersection(kept), view) {
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

/// Of what these ranks have told that no other has a copy, by name.
pub(super) fn told_sharded<'a>(ranks: impl IntoIterator<Item = &'a Rank>, view: &View) -> Option<&str> {
    let links = ranks.into_iter().filter_map(|rank| view.proc(&Role::Rank(*rank))?.link.as_ref());
    links.flat_map(|link| &link.sharded).map(String::as_str).next()
}

/// Why no other rank has a copy of that, and what comes of it.
pub(super) fn is_alone(what: &str, so: &str) -> String {
    format!("{what} is sharded over the ranks, or was made inside of the step loop: {so}")
}

/// Why a rank cannot be given what it lacks.
pub(super) fn no_copy(what: &str, rank: Rank) -> String {
    is_alone(what, &format!("no other has a copy of what {rank} held of it"))
}

#[cfg(test)]
mod tests;

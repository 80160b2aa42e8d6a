//! To which step everybody is brought, and who copies from whom: from what each survivor says of where it stands.
//!
//! Pure arithmetic over their answers; it tells nobody.

use crate::job::{GroupKind, Rank, World};
use crate::launch::{Window, WorkerState};
use std::collections::{BTreeMap, BTreeSet};

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) from: Option<Rank>,
    pub(super) to: Vec<Rank>,
    pub(super) put_back: bool,
}

/// What everybody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repairs {
    /// The step that is trained next.
    pub(super) step: u64,
    pub(super) places: BTreeMap<Rank, Place>,
    /// The survivors' gradient buckets, where they have some.
    pub(super) buckets: Option<Vec<u64>>,
}

/// The newest step that a whole replica can train next wins: those behind it, torn ones and newcomers copy from a replica
/// that is there. Sources are taken in turn, so that none gives to all.
///
/// # Errors
/// Why there is no such step: in one sentence.
pub(super) fn plan(
    states: &BTreeMap<Rank, WorkerState>,
    newcomers: &BTreeSet<Rank>,
    world: &World,
) -> Result<Repairs, String> {
    let whole = || states.iter().filter(|(_, state)| state.is_whole());
    let step = whole().map(|(_, state)| state.next_step()).max();
    let step = step.ok_or("every replica was torn inside of its commit window: no state in memory is of one step")?;
    let sources: Vec<Rank> = whole().filter(|(_, s)| s.next_step() == step).map(|(rank, _)| *rank).collect();
    check_layouts(states)?;
    let mut places: BTreeMap<Rank, Place> = BTreeMap::new();
    let mut given: BTreeMap<Rank, usize> = sources.iter().map(|rank| (*rank, 0)).collect();
    for rank in world.members().keys() {
        let state = states.get(rank).filter(|_| !newcomers.contains(rank));
        if state.is_some_and(|state| state.is_whole() && state.next_step() == step) {
            let put_back = state.is_some_and(|state| state.window == Window::Before);
            places.entry(*rank).or_default().put_back = put_back;
            continue;
        }
        let replicas = replicas_of(*rank, world);
        let source = sources.iter().filter(|source| replicas.contains(source)).min_by_key(|s| (given[*s], **s));
        let source = *source.ok_or_else(|| format!("no replica of {rank} has the state of step {step}"))?;
        *given.entry(source).or_default() += 1;
        places.entry(source).or_default().to.push(*rank);
        places.entry(*rank).or_default().from = Some(source);
    }
    let known = sources.iter().filter_map(|rank| states.get(rank)).map(|state| &state.buckets);
    let buckets = known.filter(|buckets| !buckets.is_empty()).max_by_key(|buckets| buckets.len()).cloned();
    Ok(Repairs { step, places, buckets })
}

/// The ranks that hold the same parameters and optimizer: those of its data-parallel group. A job that names no such groups
/// is data-parallel as a whole.
fn replicas_of(rank: Rank, world: &World) -> BTreeSet<Rank> {
    let mut dp = world.groups().iter().filter(|(id, _)| id.kind == GroupKind::Dp).peekable();
    if dp.peek().is_none() {
        return world.members().keys().copied().collect();
    }
    dp.find(|(_, ranks)| ranks.contains(&rank)).map(|(_, ranks)| ranks.iter().copied().collect()).unwrap_or_default()
}

/// Replicas have states of one shape.
pub(super) fn check_layouts(states: &BTreeMap<Rank, WorkerState>) -> Result<(), String> {
    let mut known = states.iter().filter(|(_, state)| !state.layout.is_empty());
    let Some((first, state)) = known.next() else { return Ok(()) };
    match known.find(|(_, other)| other.layout != state.layout) {
        Some((other, _)) => Err(format!(
            "the states of {first} and {other} differ in names, shapes or types: they are no replicas of each other"
        )),
        None => Ok(()),
    }
}

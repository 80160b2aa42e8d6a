//! In-memory checkpoints: determines which one is complete on all ranks, so that the one before it may be overwritten.
//!
//! It copies nothing, and no recovery depends on it: a restarted rank looks at what is in memory. It only ensures that
//! there is always one checkpoint that all ranks have.
//!
//! A rank that has reported a complete copy waits until all ranks have the same one, which is then committed, or until
//! one of them is past it without having it. If a message gets lost, the rank reports again at the next step that is to
//! be copied.

use super::{Counts, DropReason};
use crate::job::{Incarnation, ProcId, Rank, World};
use crate::state::{Directive, DirectiveBatch, InMemoryCheckpoint, InMemoryCheckpointId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for ranks to receive a commit.
pub(super) const HEARD_WITHIN: Duration = Duration::from_secs(30);

/// The known state of the ranks' in-memory checkpoints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Last report about in-memory checkpoints of each rank of the current world.
    said: BTreeMap<Rank, Said>,
    /// The newest checkpoint that was committed.
    pub(super) whole: Option<InMemoryCheckpointId>,
    /// Counters of each rank's latest process, which may belong to an older world.
    #[serde(default)]
    counted: BTreeMap<Rank, Counted>,
    /// Number of waits for a copy, summed over all processes of the job.
    #[serde(default)]
    waited: u64,
    #[serde(default)]
    dropped: u64,
}

/// Counters of a process, which count from its own start.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Counted {
    by: Incarnation,
    bytes: u64,
    waited: u64,
    dropped: u64,
}

/// Costs of a job's in-memory checkpoints: their size, and how often ranks waited for a copy or dropped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryFigures {
    /// Total size of one in-memory copy of every rank's state, in bytes, as far as the ranks reported it. The hosts
    /// hold two copies of each state.
    pub bytes: u64,
    /// Number of times that a rank waited for the in-memory copy of its state to finish before it let parameters
    /// change.
    pub waited: u64,
    /// Number of in-memory copies of their states that ranks skipped; a copy that two ranks skip counts twice.
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Said {
    /// The last copy that the rank reported. Marked as not complete once the rank was allowed to overwrite it.
    copy: InMemoryCheckpoint,
    /// True if the rank still waits: no directive was sent to it since its report.
    waits: bool,
}

impl Memory {
    /// Forgets all reports, because the world changed: a replacement of a lost rank may have another copy.
    pub(super) fn new_world(&mut self) {
        self.said.clear();
    }

    /// Returns the cost so far, if any rank has reported.
    pub(super) fn figures(&self) -> Option<MemoryFigures> {
        let bytes = self.counted.values().fold(0_u64, |sum, counted| sum.saturating_add(counted.bytes));
        (!self.counted.is_empty()).then_some(MemoryFigures { bytes, waited: self.waited, dropped: self.dropped })
    }

    /// Adds what a process has counted since its last report. A skipped copy has no bytes: the previous number remains.
    fn count(&mut self, rank: Rank, by: Incarnation, copy: &InMemoryCheckpoint) {
        let InMemoryCheckpoint { bytes, waited, dropped, .. } = *copy;
        let known = self.counted.entry(rank).or_default();
        let before = if known.by == by { *known } else { Counted { bytes: known.bytes, ..Counted::default() } };
        self.waited = self.waited.saturating_add(waited.saturating_sub(before.waited));
        self.dropped = self.dropped.saturating_add(dropped.saturating_sub(before.dropped));
        let bytes = if bytes > 0 { bytes } else { before.bytes };
        *known = Counted { by, bytes, waited, dropped };
    }

    /// Records a rank's report and returns the ranks to notify now, each with the number of its report.
    ///
    /// Waiting ranks were checked against all earlier reports, so only this report can have changed their state. Each
    /// other rank is therefore checked once per report.
    fn hear(&mut self, rank: Rank, copy: InMemoryCheckpoint, world: &World) -> Vec<(Rank, u64)> {
        self.said.insert(rank, Said { copy, waits: true });
        let is_complete = world.absent().is_empty(); // a checkpoint without the part of an absent rank is of no use
        let is_everybodys =
            self.said.len() == world.members().len() && self.said.values().all(|said| said.copy.has(copy.of));
        if is_complete && is_everybodys {
            self.whole = Some(copy.of);
        }
        let own_is_lacked = self.said.values().any(|said| said.copy.lacks(copy.of));
        let is_told = |of: Rank, said: &Said| {
            let held = said.copy.of;
            let is_lacked = if of == rank { own_is_lacked } else { copy.lacks(held) };
            said.waits && (!is_complete || !said.copy.whole || self.whole == Some(held) || is_lacked)
        };
        let told = self.said.iter().filter(|(rank, said)| is_told(**rank, said));
        let told: Vec<(Rank, u64)> = told.map(|(rank, said)| (*rank, said.copy.number)).collect();
        for (rank, _) in &told {
            let Some(said) = self.said.get_mut(rank) else { continue };
            said.waits = false;
            said.copy.whole &= self.whole == Some(said.copy.of);
        }
        told
    }
}

/// Finds the in-memory checkpoint that is complete on all ranks, from their reports.
pub(super) struct InMemoryCheckpoints<'a> {
    pub(super) world: &'a Arc<World>,
    pub(super) memory: &'a mut Memory,
    pub(super) counts: &'a mut Counts,
}

impl InMemoryCheckpoints<'_> {
    /// Handles a rank's report that it has copied its state, or skipped a copy. Returns the commits to send, if any.
    pub(super) fn copied(&mut self, proc: &ProcId, copy: &InMemoryCheckpoint) -> Option<DirectiveBatch> {
        let world = self.world;
        let member = proc.role.rank().filter(|rank| world.proc(*rank).as_ref() == Some(proc));
        let Some(rank) = member.filter(|_| copy.generation == world.generation()) else {
            self.counts.drop(DropReason::OldGeneration);
            return None;
        };
        self.memory.count(rank, proc.incarnation, copy);
        let told = self.memory.hear(rank, *copy, world);
        let whole = self.memory.whole;
        let commit = |(rank, number)| Some((world.proc(rank)?, Directive::CommitInMemory { number, whole }));
        let is_any = !told.is_empty();
        let directives = told.into_iter().filter_map(commit).collect();
        is_any.then(|| DirectiveBatch { world: Arc::clone(world), directives })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Member;
    use proptest::prelude::*;

    const RANKS: u32 = 4;

    proptest! {
        /// After any sequence of reports, no rank waits for a checkpoint that some rank will never have.
        #[test]
        fn a_rank_never_waits_for_a_checkpoint_that_another_cannot_have(
            sayings in prop::collection::vec((0..RANKS, 0_u64..4, 0_u64..4, any::<bool>()), 0..60),
        ) {
            let member = Member { incarnation: Incarnation(1), node: None, device: None };
            let world = World::first((0..RANKS).map(|rank| (Rank(rank), member.clone())).collect());
            let generation = world.generation();
            let mut memory = Memory::default();
            for (number, (rank, at, of, whole)) in sayings.into_iter().enumerate() {
                let (of, number) = (InMemoryCheckpointId { made_in: generation, step: of }, number as u64);
                let copy = InMemoryCheckpoint { generation, number, at, of, whole, bytes: 0, waited: 0, dropped: 0 };
                memory.hear(Rank(rank), copy, &world);
                for said in memory.said.values() {
                    let is_lacked = memory.said.values().any(|other| other.copy.lacks(said.copy.of));
                    let is_settled = !said.copy.whole || memory.whole == Some(said.copy.of) || is_lacked;
                    prop_assert!(!said.waits || !is_settled, "{:?}", memory);
                }
            }
        }
    }
}

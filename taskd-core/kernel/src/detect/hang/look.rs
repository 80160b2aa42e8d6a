//! One look at all ranks: the replies, and the common findings of two looks.
//!
//! This module sends no probes.

use super::activity::Sighting;
use super::verdict::{Culprit, HangVerdict, ProcessState, RankReport, judge};
use crate::detect::silence::Found;
use crate::job::{JobTime, Rank, Role, Termination};
use crate::state::View;
use crate::trace::{GroupPosition, PROCESS_STATE, ProbeReply, ProbeResult};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Minimum duration of a call before its members count as waiting.
const PENDING_MIN: Duration = Duration::from_millis(500);
/// Minimum age of the last heartbeat from which a process counts as silent.
const BEAT_AGE_MAX: Duration = Duration::from_secs(5);

/// A rank's position in a group: the group's name and members, and the number of its last call with true if it is in
/// progress.
type Place<'a> = (&'a str, &'a [u32], Option<(u64, bool)>);

/// The replies of one look.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Look {
    began: JobTime,
    /// Replies that have not arrived: the rank, and true for the probe of its process state, false for that of its
    /// groups.
    missing: BTreeSet<(u32, bool)>,
    groups: BTreeMap<u32, Vec<GroupPosition>>,
    states: BTreeMap<u32, ProcessState>,
    sightings: BTreeMap<u32, Sighting>,
}

impl Look {
    pub(super) fn new(ranks: BTreeSet<u32>, now: JobTime) -> Look {
        let missing = ranks.into_iter().flat_map(|rank| [(rank, false), (rank, true)]).collect();
        Look { began: now, missing, ..Look::default() }
    }

    /// Creates a look that only requests the positions in the groups.
    pub(super) fn at_groups(ranks: BTreeSet<u32>, now: JobTime) -> Look {
        let missing = ranks.into_iter().map(|rank| (rank, false)).collect();
        Look { began: now, missing, ..Look::default() }
    }

    pub(super) const fn began(&self) -> JobTime {
        self.began
    }

    /// Adds a reply. Returns true if it was the last missing one.
    pub(super) fn answered(&mut self, rank: Rank, evidence: &ProbeReply) -> bool {
        let is_state = evidence.what == PROCESS_STATE;
        if !self.missing.remove(&(rank.0, is_state)) {
            return false;
        }
        match &evidence.result {
            ProbeResult::Groups(groups) if !is_state => {
                self.groups.insert(rank.0, groups.clone());
            }
            exhibit if is_state => {
                let found = Found::of(exhibit);
                self.sightings.insert(rank.0, Sighting::of(&found));
                self.states.insert(rank.0, state_of(&found));
            }
            _ => {}
        }
        self.missing.is_empty()
    }

    /// Returns a rank's process as this look has found it.
    pub(super) fn sighting(&self, rank: Rank) -> Sighting {
        self.sightings.get(&rank.0).cloned().unwrap_or_default()
    }

    /// Returns the verdict of this look alone.
    pub(super) fn verdict(&self, view: &View) -> HangVerdict {
        judge(&self.reports(view), PENDING_MIN)
    }

    /// Returns the replies by rank.
    pub(super) fn reports(&self, view: &View) -> Vec<RankReport> {
        let report = |rank: &Rank| {
            let phase = view.proc(&Role::Rank(*rank)).map(|proc| &proc.phase);
            let has_ended = phase.and_then(|phase| phase.termination()).is_some_and(Termination::is_success);
            let told = self.states.get(&rank.0).cloned().unwrap_or(ProcessState::Unknown);
            let state = if has_ended { ProcessState::Ended } else { told };
            RankReport { rank: *rank, groups: self.groups.get(&rank.0).cloned(), state }
        };
        view.world.members().keys().map(report).collect()
    }

    /// Returns the findings that this look and a later one have in common, for ranks that have not moved in between.
    pub(super) fn agreed(&self, view: &View, later: &Look, verdict: &HangVerdict) -> HangVerdict {
        let before = self.verdict(view);
        let same = |culprit: &&Culprit| before.culprits.iter().any(|known| known.is_same(culprit));
        let stood = |culprit: &&Culprit| self.place(culprit.rank) == later.place(culprit.rank);
        let culprits = verdict.culprits.iter().filter(same).filter(stood).cloned().collect();
        let dispute = verdict.dispute.clone().filter(|d| before.dispute.as_ref().is_some_and(|known| known.is_same(d)));
        HangVerdict { culprits, dispute, is_stuck: verdict.is_stuck }
    }

    fn place(&self, rank: Rank) -> Vec<Place<'_>> {
        let groups = self.groups.get(&rank.0).map(Vec::as_slice).unwrap_or_default();
        let last = |g: &GroupPosition| g.recent.last().map(|call| (call.sequence, call.is_pending));
        groups.iter().map(|g| (g.group.as_str(), &g.members[..], last(g))).collect()
    }
}

fn state_of(found: &Found<'_>) -> ProcessState {
    match (found.state, found.beat_age) {
        (Some(state), _) if found.is_frozen() => ProcessState::Stopped(state),
        (_, Some(age)) if age >= BEAT_AGE_MAX && found.busy(BEAT_AGE_MAX).is_none() => ProcessState::Silent(age),
        (Some(state), _) => ProcessState::Runs(state),
        (None, _) => ProcessState::Unknown,
    }
}

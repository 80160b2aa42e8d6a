//! Detects that the job has trained for a while with fewer ranks than it should have.
//!
//! The detector reports no damage, and does not decide if the ranks can return: the strategy does.

use super::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Health, Suspect, saved};
use crate::job::strategy::GROW;
use crate::job::{Domain, GroupKind, JobTime, Name, Rank};
use crate::state::View;
use crate::trace::{DecodeError, Observation};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

const NAME: Name = Name::new("shrunk");
const SNAPSHOT_VERSION: u8 = 1;

/// Maximum time between two attempts, because the cause of an unusable place may last.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Longest time between two looks whether there is room for absent ranks, once their delay is over: a host that returns
/// should not wait for long.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Recommends, after a delay, to start absent ranks again in a job that trains with fewer ranks than specified: to
/// [grow](crate::recover::Grow) a world that has [shrunk](crate::recover::Shrink).
///
/// The detector waits while a recovery is in progress. If the launcher lists hosts, it also waits until those that
/// accept new processes have room for some of the absent ranks: for [`Policy::rank_unit`](crate::job::Policy::rank_unit)
/// of them, or for all if the job names data-parallel groups: it looks for room every half second. The delay doubles, up to one hour, after each recommendation
/// that did not bring the ranks back, and if ranks that had returned leave again soon: a host that cannot be used may
/// stay unusable.
#[derive(Debug)]
pub struct ShrunkDetector {
    after: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// Time since which at least one rank is absent; `None` if none is.
    since: Option<JobTime>,
    /// Ranks that were absent when the job last began to train with fewer ranks.
    absent: BTreeSet<Rank>,
    /// Time since which all ranks are present again, after some were absent.
    whole_since: Option<JobTime>,
    /// Time of the next recommendation to start the absent ranks again, or of the next look if any are absent.
    due: Option<JobTime>,
    /// Delay before the last recommendation; zero before the first.
    waited: Duration,
}

impl Default for ShrunkDetector {
    fn default() -> ShrunkDetector {
        ShrunkDetector::after(Duration::from_secs(300))
    }
}

impl ShrunkDetector {
    /// Creates a detector that recommends to start absent ranks again once the job has trained without them for `time`.
    /// The default is five minutes.
    #[must_use]
    pub fn after(time: Duration) -> ShrunkDetector {
        ShrunkDetector { after: time, state: State::default() }
    }

    fn follow(&mut self, view: &View) {
        let (now, is_shrunk) = (view.now, !view.world.absent().is_empty());
        let state = &mut self.state;
        match (is_shrunk, state.since) {
            (true, None) => {
                let absent: BTreeSet<Rank> = view.world.absent().keys().copied().collect();
                let was_whole = state.whole_since.map_or(Duration::MAX, |since| now.since(since));
                let is_again = was_whole <= state.waited && !absent.is_disjoint(&state.absent);
                let wait = if is_again { longer(state.waited) } else { self.after };
                *state = State { since: Some(now), absent, whole_since: None, due: Some(now + wait), waited: wait };
            }
            (true, Some(_)) if view.world.absent().len() < state.absent.len() => {
                // Some are back: the growth was not in vain.
                state.absent = view.world.absent().keys().copied().collect();
                (state.due, state.waited) = (Some(now + self.after), self.after);
            }
            (false, Some(_)) => (state.since, state.whole_since, state.due) = (None, Some(now), None),
            _ => {}
        }
        // A job may report nothing after it has shrunk.
        state.due.get_or_insert(now + self.after.max(LOOK_EVERY));
    }
}

fn longer(waited: Duration) -> Duration {
    waited.saturating_mul(2).min(WAIT_MAX)
}

impl FaultDetector for ShrunkDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("after_ms={}", self.after.as_millis())
    }

    fn observe(&mut self, _: &Observation, view: &View, _: &mut Findings) {
        self.follow(view);
    }

    fn deadline(&self) -> Option<JobTime> {
        self.state.due
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        self.follow(view);
        if self.state.due.is_none_or(|due| due > view.now) {
            return;
        }
        let Some(since) = self.state.since else {
            self.state.due = Some(view.now + self.after.max(LOOK_EVERY));
            return;
        };
        if view.mending || !view.all_train() || !has_room(view) {
            self.state.due = Some(view.now + LOOK_EVERY);
            return;
        }
        self.state.waited = longer(self.state.waited);
        self.state.due = Some(view.now + self.state.waited);
        let suspect = Suspect {
            domain: Domain::Job,
            class: FaultClass::Other(NAME),
            damage: Damage { process: Health::Healthy, state: Health::Healthy, ..Damage::default() },
            confidence_permille: Suspect::BLAME_PERMILLE_MIN,
        };
        let (absent, ranks) = (view.world.absent().len(), view.world.places().count());
        let text =
            format!("{absent} of {ranks} ranks have been absent for {:.0} s", view.now.since(since).as_secs_f64());
        let clue = Evidence::figure("ranks_absent", f64::from(u32::try_from(absent).unwrap_or(u32::MAX)), 0.0, text);
        out.clear(Domain::Job, FaultClass::Other(NAME)); // the previous recommendation had no effect
        out.blame(Fault::new(NAME, since, suspect).with_evidence(clue).with_advice(GROW));
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

/// Returns true if the hosts that accept new processes have room for as many absent ranks as return together, as far as
/// known.
fn has_room(view: &View) -> bool {
    if view.nodes.is_empty() {
        return true;
    }
    let slots =
        view.ready_nodes().filter_map(|node| view.nodes.get(node)).map(|status| status.slots as usize).sum::<usize>();
    let on_ready = |proc: &&crate::state::Proc| proc.node.as_ref().is_none_or(|node| view.is_ready(node));
    let taken = view.training().filter(|(_, proc)| on_ready(proc)).count();
    let (absent, unit) = (view.world.absent().len(), view.spec.policy.rank_unit.max(1) as usize);
    let has_groups = view.world.groups().keys().any(|id| id.kind == GroupKind::Dp);
    slots >= taken + if has_groups { absent } else { unit.min(absent) }
}

#[cfg(test)]
mod tests;

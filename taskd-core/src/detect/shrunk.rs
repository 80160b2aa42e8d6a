//! Notices that the job has trained for a while with fewer ranks than it has.
//!
//! It never says that something is broken, and it does not know whether the ranks can come back: that is the strategy's to say.

use super::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Sound, Suspect, saved};
use crate::job::{Domain, JobTime, Name, Rank};
use crate::kernel::View;
use crate::recover::GROW;
use crate::trace::{Malformed, Observation};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

const NAME: Name = Name::new("shrunk");
const SNAPSHOT_VERSION: u8 = 1;

/// The longest time between two attempts: whatever keeps a place from working may last.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Advises to [grow](crate::recover::Grow) a world that has [shrunk](crate::recover::Shrink), once it has been so for a time.
///
/// It waits while something is being mended, and where the launcher lists hosts until those that take something new have room. What was
/// tried in vain is tried again after twice the time, an hour at most, and so are ranks that come back and soon leave again: what keeps
/// a place from working may last.
#[derive(Debug)]
pub struct ShrunkDetector {
    after: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// Since when somebody is absent.
    since: Option<JobTime>,
    /// Who was absent last.
    absent: BTreeSet<Rank>,
    /// Since when nobody is, after that.
    whole_since: Option<JobTime>,
    /// When to advise next.
    due: Option<JobTime>,
    /// How long was waited before what was advised last; zero before the first.
    waited: Duration,
}

impl Default for ShrunkDetector {
    fn default() -> ShrunkDetector {
        ShrunkDetector::after(Duration::from_secs(300))
    }
}

impl ShrunkDetector {
    /// A detector that advises to grow after so much time in a smaller world. The default is five minutes.
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
            (false, Some(_)) => (state.since, state.whole_since, state.due) = (None, Some(now), None),
            _ => {}
        }
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
        let (Some(since), Some(_)) = (self.state.since, self.state.due.filter(|due| *due <= view.now)) else { return };
        if view.mending || !view.all_train() || !has_room(view) {
            self.state.due = Some(view.now + self.after);
            return;
        }
        self.state.waited = longer(self.state.waited);
        self.state.due = Some(view.now + self.state.waited);
        let suspect = Suspect {
            domain: Domain::Job,
            class: FaultClass::Other(NAME),
            damage: Damage { process: Sound::Yes, state: Sound::Yes, ..Damage::default() },
            confidence_permille: Suspect::BLAME_PERMILLE_MIN,
        };
        let (absent, ranks) = (view.world.absent().len(), view.world.places().count());
        let text = format!("{absent} of {ranks} ranks are absent for {:.0} s", view.now.since(since).as_secs_f64());
        let clue = Clue::figure("ranks_absent", f64::from(u32::try_from(absent).unwrap_or(u32::MAX)), 0.0, text);
        out.clear(Domain::Job, FaultClass::Other(NAME)); // what was said before was in vain
        out.blame(Fault::new(NAME, since, suspect).because(clue).advising(GROW));
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

/// Whether hosts that take something new have room for all who are absent, as far as is known.
fn has_room(view: &View) -> bool {
    if view.nodes.is_empty() {
        return true;
    }
    let slots =
        view.ready_nodes().filter_map(|node| view.nodes.get(node)).map(|status| status.slots as usize).sum::<usize>();
    let on_ready = |proc: &&crate::kernel::Proc| proc.node.as_ref().is_none_or(|node| view.is_ready(node));
    let taken = view.training().filter(|(_, proc)| on_ready(proc)).count();
    slots >= taken + view.world.absent().len()
}

#[cfg(test)]
mod tests;

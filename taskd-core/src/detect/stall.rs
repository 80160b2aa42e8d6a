//! Notices that the job stands still: no rank completes a step any more.
//!
//! It never names a culprit among ranks that run: in a synchronous job everybody's progress stops with the first one's.

use super::exit::left_first;
use super::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Suspect, saved};
use crate::job::{Domain, Generation, JobTime, Name, Rank};
use crate::kernel::View;
use crate::trace::{Malformed, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const NAME: Name = Name::new("stall");
const SNAPSHOT_VERSION: u8 = 2;

/// Blames the job when no rank has completed a step within the bound.
///
/// It counts from the job's first step on; a job whose steps are not seen it leaves alone. The first step of a later
/// generation may take as long as a start, [`Policy::start_within`](crate::job::Policy::start_within), and the bound on
/// top. The bound must be longer than everything that a program does between two steps, such as an evaluation or a
/// checkpoint. While ranks stay without progress it blames once every
/// bound; a step takes the blame back. When the supervisor itself has slept, it counts anew.
///
/// It is only just sure enough to count ([`Suspect::BLAME_PERMILLE_MIN`]), so whoever else is blamed in the same incident
/// explains the stall.
#[derive(Debug)]
pub struct StallDetector {
    bound: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    generation: Generation,
    /// When the last step was completed, or the generation seen first, or from when it is counted anew; `None` before
    /// the job's first step.
    since: Option<JobTime>,
    /// When to blame the job next.
    due: Option<JobTime>,
    blamed: bool,
}

impl Default for StallDetector {
    fn default() -> StallDetector {
        StallDetector::after(StallDetector::USUAL)
    }
}

impl StallDetector {
    /// The bound that it has by default: ten minutes.
    pub const USUAL: Duration = Duration::from_secs(600);

    /// A detector that blames a job without progress for `bound`. The default is ten minutes.
    #[must_use]
    pub fn after(bound: Duration) -> StallDetector {
        StallDetector { bound, state: State::default() }
    }
}

impl StallDetector {
    /// In a new generation everybody has to get to a first step again.
    fn follow(&mut self, view: &View) {
        let generation = view.world.generation();
        if self.state.since.is_some() && generation != self.state.generation {
            let due = view.now + view.spec.policy.start_within + self.bound;
            self.state = State { generation, since: Some(view.now), due: Some(due), blamed: false };
        }
    }
}

impl FaultDetector for StallDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("bound_ms={}", self.bound.as_millis())
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        self.follow(view);
        match o.signal {
            Signal::Progress { .. } => {
                if std::mem::take(&mut self.state.blamed) {
                    out.clear(Domain::Job, FaultClass::Stall);
                }
                self.state.generation = view.world.generation();
                (self.state.since, self.state.due) = (Some(view.now), Some(view.now + self.bound));
            }
            Signal::SupervisorSlept { .. } if self.state.due.is_some() => {
                let due = view.now + self.bound;
                (self.state.since, self.state.due) = (Some(view.now), self.state.due.max(Some(due)));
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        self.state.due
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        self.follow(view);
        if self.state.due.is_none_or(|due| due > view.now) {
            return;
        }
        let Some(since) = self.state.since.filter(|_| view.training().next().is_some()) else {
            self.state.due = None; // a recovery is under way, or all have finished
            return;
        };
        self.state.blamed = true;
        self.state.due = Some(view.now + self.bound);
        let suspect = Suspect {
            domain: Domain::Job,
            class: FaultClass::Stall,
            damage: Damage::default(),
            confidence_permille: Suspect::BLAME_PERMILLE_MIN,
        };
        let age = view.now.since(since);
        let text = format!("no rank has completed a step for {:.1} s", age.as_secs_f64());
        let age = Clue::figure("progress_age_ms", age.as_secs_f64() * 1e3, self.bound.as_secs_f64() * 1e3, text);
        let fault = Fault::new(NAME, since, suspect).because(age);
        out.blame(match steps_clue(view) {
            Some(clue) => fault.because(clue),
            None => fault,
        });
        if let Some(left) = left_first(view, view.world.generation()) {
            out.blame(left); // the others may wait for it
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

/// Where the ranks stand: for people, who look at the hindmost first.
fn steps_clue(view: &View) -> Option<Clue> {
    let steps = || view.training().filter_map(|(rank, p)| Some((p.step?, rank)));
    let (last, hindmost): (u64, Rank) = steps().min()?;
    let first = steps().map(|(step, _)| step).max()?;
    let text = if first == last {
        format!("every rank that tells its steps has completed step {last}")
    } else {
        format!("{hindmost} has completed step {last}, the foremost step {first}")
    };
    Some(Clue::text("steps", text))
}

#[cfg(test)]
mod tests;

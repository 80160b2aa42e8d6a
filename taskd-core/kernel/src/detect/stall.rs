//! Detects that the job makes no progress: no rank completes a step any more.
//!
//! The detector never blames a running rank: in a synchronous job all ranks stop as soon as one does.

use super::exit::left_first;
use super::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Suspect, saved};
use crate::job::{Domain, Generation, JobTime, Name, Rank};
use crate::state::View;
use crate::trace::{DecodeError, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const NAME: Name = Name::new("stall");
const SNAPSHOT_VERSION: u8 = 2;

/// Blames the job if no rank has completed a step within a time limit, the *bound*, by default ten minutes.
///
/// Time counts from the job's first step; a job whose steps are not observed is never blamed. The first step of a later
/// generation may take the time of a start, [`Policy::start_timeout`](crate::job::Policy::start_timeout), plus the
/// bound. The bound must be longer than everything that a program does between two steps, such as an evaluation or a
/// checkpoint. While no rank progresses, the detector blames the job once per bound; a step withdraws the blame. After
/// a suspension of the supervisor the time starts again.
///
/// The detector's confidence is the lowest with which a suspect counts as a cause
/// ([`Suspect::BLAME_PERMILLE_MIN`]), so any other suspect in the same incident explains the stall better.
#[derive(Debug)]
pub struct StallDetector {
    bound: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    generation: Generation,
    /// Start of the measured time: the last completed step, the start of the generation, or a reset; `None` before the
    /// job's first step.
    since: Option<JobTime>,
    /// Time at which to blame the job next.
    due: Option<JobTime>,
    blamed: bool,
}

impl Default for StallDetector {
    fn default() -> StallDetector {
        StallDetector::after(StallDetector::USUAL)
    }
}

impl StallDetector {
    /// Default time for which a job may train without a completed step before the detector blames it: ten minutes.
    pub const USUAL: Duration = Duration::from_secs(600);

    /// Creates a detector that reports a job as stalled if none of its ranks completes a step for `bound`.
    /// `StallDetector::default()` uses ten minutes.
    #[must_use]
    pub fn after(bound: Duration) -> StallDetector {
        StallDetector { bound, state: State::default() }
    }
}

impl StallDetector {
    /// Resets the time in a new generation, in which all ranks have to complete a first step again.
    fn follow(&mut self, view: &View) {
        let generation = view.world.generation();
        if self.state.since.is_some() && generation != self.state.generation {
            let due = view.now + view.spec.policy.start_timeout + self.bound;
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
            self.state.due = None; // a recovery is in progress, or all ranks have finished
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
        let age = Evidence::figure("progress_age_ms", age.as_secs_f64() * 1e3, self.bound.as_secs_f64() * 1e3, text);
        let fault = Fault::new(NAME, since, suspect).with_evidence(age);
        out.blame(match steps_clue(view) {
            Some(clue) => fault.with_evidence(clue),
            None => fault,
        });
        if let Some(left) = left_first(NAME, view, view.world.generation()) {
            out.blame(left); // the others may be waiting for it
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

/// Describes the steps of the slowest and the fastest rank, for people, who look at the slowest first.
fn steps_clue(view: &View) -> Option<Evidence> {
    let steps = || view.training().filter_map(|(rank, p)| Some((p.step?, rank)));
    let (last, hindmost): (u64, Rank) = steps().min()?;
    let first = steps().map(|(step, _)| step).max()?;
    let text = if first == last {
        format!("every rank that reports steps has completed step {last}")
    } else {
        format!("{hindmost} has completed step {last}, the fastest rank step {first}")
    };
    Some(Evidence::text("steps", text))
}

#[cfg(test)]
mod tests;

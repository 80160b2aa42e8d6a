//! Notices that restarts do not help: one follows the other, and the job gets no further.
//!
//! It never judges why the job was restarted, and counts only restarts that drew on the budget.

use super::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Suspect, saved};
use crate::job::{Domain, Generation, JobTime, Name};
use crate::kernel::View;
use crate::trace::{Malformed, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

const NAME: Name = Name::new("restart-storm");
const SNAPSHOT_VERSION: u8 = 2;

/// The strategies that it advises.
const RESTART: Name = Name::new("restart");
const EXIT: Name = Name::new("exit");

/// Blames the job when it is restarted more than `restarts_max` times within a window without getting any further.
///
/// *Further* means: some rank completed a step that no rank had completed before. After a restart a job repeats steps
/// since its checkpoint, so "some steps between two restarts" would call going in circles progress; the furthest step ever
/// does not move in a circle. A job that is hit often but gains ground between hits is no storm: whether it may go on is
/// a matter of the recovery budget ([`BudgetSpec`](crate::job::BudgetSpec)), which knows nothing of progress. A job whose
/// steps are not seen never gets further, so for it the number within the window counts alone.
///
/// Programs must count their steps absolutely, on from the checkpoint; one that starts from zero each time gets further
/// only when a run lasts longer than all before.
///
/// It advises the strategy `exit`; but first `restart`, where only recoveries were tried that keep processes: those may carry on what is
/// wrong. Then it counts anew.
#[derive(Debug)]
pub struct RestartStormDetector {
    restarts_max: u32,
    window: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// The world that was seen last; `None` before the first observation.
    generation: Option<Generation>,
    /// How many restarts had led to it.
    restarts: u32,
    /// The furthest step ever.
    furthest: Option<u64>,
    /// Restarts since the job last got further, the latest `restarts_max` + 1 of them.
    in_vain: VecDeque<JobTime>,
    /// Whether all ranks were started again in one of them.
    whole: bool,
}

impl Default for RestartStormDetector {
    fn default() -> RestartStormDetector {
        RestartStormDetector::more_than(5, Duration::from_secs(600))
    }
}

impl RestartStormDetector {
    /// A detector that blames the restart after `restarts_max` ones in vain, if all of them fall within `window`. The
    /// default is more than 5 in ten minutes.
    #[must_use]
    pub fn more_than(restarts_max: u32, window: Duration) -> RestartStormDetector {
        RestartStormDetector { restarts_max, window, state: State::default() }
    }

    fn entered(&mut self, view: &View, out: &mut Findings) {
        let state = &mut self.state;
        let restarts = view.world.restarts();
        let known = state.generation.replace(view.world.generation()).map(|_| state.restarts);
        state.restarts = restarts;
        let Some(new) = known.and_then(|known| restarts.checked_sub(known)).filter(|new| *new > 0) else { return };
        state.whole |= view.on_trial.is_none(); // else processes were kept
        let kept = self.restarts_max as usize + 1;
        state.in_vain.extend((0..new).map(|_| view.now).take(kept));
        let surplus = state.in_vain.len().saturating_sub(kept);
        state.in_vain.drain(..surplus);
        let first = *state.in_vain.front().unwrap_or(&view.now);
        if state.in_vain.len() < kept || view.now.since(first) > self.window {
            return;
        }
        let advice = if state.whole { EXIT } else { RESTART };
        let suspect = Suspect::certain(Domain::Job, FaultClass::RestartStorm, Damage::default());
        let window = self.window.as_secs_f64();
        let what = if state.whole { "restarts" } else { "recoveries that keep processes" };
        let text = format!("{kept} {what} since {first} (more than {} in {window:.0} s)", self.restarts_max);
        #[expect(clippy::cast_precision_loss, reason = "a small number of restarts")]
        let count = Clue::figure("restarts_in_vain", kept as f64, f64::from(self.restarts_max), text);
        let further = match state.furthest {
            Some(step) => format!("the job never got beyond step {step}"),
            None => "no completed step was seen".into(),
        };
        let fault = Fault::new(NAME, first, suspect).because(count).because(Clue::text("progress", further));
        if !state.whole {
            state.in_vain.clear();
        }
        out.blame(fault.advising(advice));
    }
}

impl FaultDetector for RestartStormDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("restarts_max={} window_ms={}", self.restarts_max, self.window.as_millis())
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        if self.state.generation != Some(view.world.generation()) {
            self.entered(view, out);
        }
        if let Signal::Progress { step } = o.signal
            && Some(step) > self.state.furthest
        {
            self.state.furthest = Some(step);
            self.state.in_vain.clear();
            self.state.whole = false;
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

#[cfg(test)]
mod tests;

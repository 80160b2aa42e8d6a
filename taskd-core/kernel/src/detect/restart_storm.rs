//! Detects that restarts do not help: they follow each other without progress of the job.
//!
//! The detector ignores the reasons of restarts, and counts only restarts that drew on the budget.

use super::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Suspect, saved};
use crate::job::strategy::{EXIT, RESTART};
use crate::job::{Domain, Generation, JobTime, Name};
use crate::state::View;
use crate::trace::{DecodeError, Observation, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

const NAME: Name = Name::new("restart-storm");
const SNAPSHOT_VERSION: u8 = 2;

/// Blames the job if it is restarted more than `restarts_max` times within a window without progress.
///
/// *Progress* means that some rank completed a step that no rank had completed before. After a restart a job repeats
/// steps since its checkpoint, so "some steps between two restarts" would count repetition as progress; the highest
/// step ever completed does not. A job that fails often but progresses between failures is no restart storm: the
/// recovery budget ([`BudgetSpec`](crate::job::BudgetSpec)), which ignores progress, decides if it may continue. A job
/// whose steps are not observed never progresses, so for it only the number of restarts within the window counts.
///
/// Programs must count their steps absolutely, continuing from the checkpoint. A program that counts from zero
/// after each restart progresses only if a run lasts longer than all before.
///
/// The detector recommends the strategy `exit`. If all counted restarts were recoveries that keep processes, it
/// first recommends `restart`, because a kept process may keep the cause; then the count starts again.
#[derive(Debug)]
pub struct RestartStormDetector {
    restarts_max: u32,
    window: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// The generation (see `World`) that was seen last; `None` before the first observation.
    generation: Option<Generation>,
    /// Number of the job's restarts up to `generation`.
    restarts: u32,
    /// Number of the highest step that any rank has ever completed.
    furthest: Option<u64>,
    /// Times of the restarts since the job last progressed; only the latest `restarts_max` + 1 are kept.
    in_vain: VecDeque<JobTime>,
    /// True if one of the restarts in `in_vain` started all ranks again, and kept no process.
    whole: bool,
}

impl Default for RestartStormDetector {
    fn default() -> RestartStormDetector {
        RestartStormDetector::more_than(5, Duration::from_secs(600))
    }
}

impl RestartStormDetector {
    /// Creates a detector that blames the job if more than `restarts_max` restarts without progress fall within
    /// `window`. The default is more than 5 in ten minutes.
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
        state.whole |= view.on_trial.is_none(); // otherwise processes were kept
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
        let count = Evidence::figure("restarts_in_vain", kept as f64, f64::from(self.restarts_max), text);
        let further = match state.furthest {
            Some(step) => format!("the job never got beyond step {step}"),
            None => "no completed step was seen".into(),
        };
        let fault =
            Fault::new(NAME, first, suspect).with_evidence(count).with_evidence(Evidence::text("progress", further));
        if !state.whole {
            state.in_vain.clear();
        }
        out.blame(fault.with_advice(advice));
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

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;

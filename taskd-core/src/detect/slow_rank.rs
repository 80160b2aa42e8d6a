//! Blames ranks that have become slower than they were, beside the others, and for which the others wait.
//!
//! It never blames a rank for being slower than another one: stages and loads are uneven, and stay so.

mod explain;
mod gathering;
mod normal;
mod watch;

use super::{FaultClass, FaultDetector, Findings, saved};
use crate::job::{Domain, Generation, Incarnation, Name, Rank, Role};
use crate::kernel::View;
use crate::trace::{Malformed, Observation, Signal, StepTimes};
use bytes::Bytes;
use gathering::{Gathering, Sample};
use normal::learn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use watch::{Limits, Step, Watch};

const NAME: Name = Name::new("slow-rank");
const SNAPSHOT_VERSION: u8 = 1;

/// The first steps that all ranks have completed are not looked at: programs compile and fill caches in them.
const WARM_UP_STEPS: u32 = 5;

/// Blames ranks that have become slower.
///
/// In a synchronous job everybody's steps are equally long. What tells is the time that a rank needs for its own part
/// ([`StepTimes::own_ns`], without saving checkpoints), and who waits for whom. After the first five steps of a
/// generation, and 48 more to learn what is usual, each step of each rank is compared with what would be usual for it:
/// its own time so far, times how much longer or shorter than usual the other ranks' own times were in that step. So uneven stages and loads, and steps that are long
/// for everybody, blame nobody; nor does a job in which more than half of the ranks become slower at once.
///
/// A rank is blamed when all of this holds:
/// - the sum of what it needed too much, less 40 % of the bound for each step, has come beyond a threshold (CUSUM), which
///   grows with the rank's usual scatter and with the number of ranks: of few ranks 50 % are found after about 6 steps, 20 %
///   after about 20;
/// - since the onset, which is where that sum began to grow as it grows now, most of the threshold has come together, and
///   the median step was too slow by at least 70 % of the bound: single pauses blame nobody;
/// - in seven of ten steps since then the others waited longer than it, by at least half of what it needed too much. That is
///   told by the other ranks' clocks.
///
/// One clue says what it needed the time for, where that is known: `slow_data` (it waited for data), `slow_starved` (its
/// thread did not get its CPU) or `slow_computing` (it was on its CPU, as usual). The others are `slow_own_time_ms`,
/// `slow_waited_for_ms` and `slow_onset_step`. When all ranks of one host are too slow, the host is the second suspect.
///
/// The blame is taken back when the rank is as fast as before in the median of ten steps. A new generation, and a rank that is
/// started anew, begin from nothing: a rank that was slow from the beginning is not found. What is usual follows slow changes
/// (over hundreds of steps). Steps in which records of a rank were lost are not used for it.
///
/// It is not among the [`defaults`](super::defaults). Register it to be told: what is slow still trains, and the built-in
/// strategies leave it alone, so the incident says who it is and that nothing was done. A strategy that replaces slow ranks
/// acts on it.
#[derive(Debug)]
pub struct SlowRankDetector {
    percent: u32,
    learning: u32,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    generation: Generation,
    incarnations: BTreeMap<u32, Incarnation>,
    gathering: Gathering,
    warm_up: u32,
    /// Steps from which to learn what is usual; empty once that is known.
    lessons: Vec<BTreeMap<u32, Sample>>,
    /// By rank, once it is known what is usual.
    watches: BTreeMap<u32, Watch>,
}

impl Default for SlowRankDetector {
    fn default() -> SlowRankDetector {
        SlowRankDetector::by_percent(20)
    }
}

impl SlowRankDetector {
    /// Least and most that [`by_percent`](Self::by_percent) takes.
    pub const PERCENT: std::ops::RangeInclusive<u32> = 5..=200;

    /// Least and most that [`with_learning_steps`](Self::with_learning_steps) takes.
    pub const LEARNING_STEPS: std::ops::RangeInclusive<u32> = 8..=256;

    /// A detector that finds ranks that need so much more than usual, within [`Self::PERCENT`]. The default is 20.
    #[must_use]
    pub fn by_percent(percent: u32) -> SlowRankDetector {
        let percent = percent.clamp(*Self::PERCENT.start(), *Self::PERCENT.end());
        SlowRankDetector { percent, learning: 48, state: State::default() }
    }

    /// From how many steps to learn what is usual, within [`Self::LEARNING_STEPS`]. The default is 48.
    #[must_use]
    pub fn with_learning_steps(mut self, steps: u32) -> SlowRankDetector {
        self.learning = steps.clamp(*Self::LEARNING_STEPS.start(), *Self::LEARNING_STEPS.end());
        self
    }

    /// A rank has completed a step.
    fn completed(&mut self, rank: Rank, o: &Observation, times: &StepTimes, view: &View, out: &mut Findings) {
        let Some(proc) = view.proc(&Role::Rank(rank)) else { return };
        if o.incarnation.is_some_and(|told| told != proc.incarnation) || !view.world.members().contains_key(&rank) {
            return;
        }
        let (generation, incarnation) = (view.world.generation(), proc.incarnation);
        let known = self.state.incarnations.insert(rank.0, incarnation);
        if generation != self.state.generation || known.is_some_and(|known| known != incarnation) {
            self.state = State { generation, ..State::default() };
            self.state.incarnations.insert(rank.0, incarnation);
        }
        self.state.gathering.add(rank.0, times.step, Sample::of(times, o.at.min(view.now)));
        while let Some((number, samples)) = self.state.gathering.next_whole(view) {
            self.judge(number, &samples, view, out);
        }
    }

    /// All ranks have completed this step.
    fn judge(&mut self, number: u64, samples: &BTreeMap<u32, Sample>, view: &View, out: &mut Findings) {
        let state = &mut self.state;
        if samples.len() < 2 || samples.len() * 2 < view.training().count() {
            return; // nobody to compare with
        }
        if state.warm_up < WARM_UP_STEPS {
            state.warm_up += 1;
        } else if state.watches.is_empty() {
            state.lessons.push(samples.clone());
            if state.lessons.len() >= self.learning as usize {
                let normals = learn(&std::mem::take(&mut state.lessons));
                state.watches = normals.into_iter().map(|(rank, normal)| (rank, Watch::new(normal))).collect();
            }
        } else if let Some(step) = Step::of(number, samples, &state.watches) {
            self.compare(&step, samples, view, out);
        }
    }

    /// Each rank with what is usual for it.
    fn compare(&mut self, step: &Step, samples: &BTreeMap<u32, Sample>, view: &View, out: &mut Findings) {
        let limits = Limits::of(self.percent, self.state.watches.len());
        let mut found = Vec::new();
        for (rank, watch) in &mut self.state.watches {
            let Some(sample) = samples.get(rank) else { continue };
            let was_blamed = watch.blamed;
            watch.take(step, sample, &limits);
            match (was_blamed, watch.blamed) {
                (false, true) => found.push(*rank),
                (true, false) => out.clear(Domain::Process(Role::Rank(Rank(*rank))), FaultClass::Slow),
                _ => {}
            }
        }
        for rank in found {
            if let Some(fault) = explain::fault(Rank(rank), &self.state.watches, &limits, view) {
                out.blame(fault);
            }
        }
    }
}

impl FaultDetector for SlowRankDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("slower_by_percent={} learning_steps={}", self.percent, self.learning)
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        if let (Signal::Step(times), Domain::Process(Role::Rank(rank))) = (&o.signal, &o.about) {
            self.completed(*rank, o, times, view, out);
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

/// The middle one of some values; of two middle ones the smaller. Zero if there is none.
fn median(mut values: Vec<f64>) -> f64 {
    let at = values.len().saturating_sub(1) / 2;
    values.sort_by(f64::total_cmp);
    values.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;

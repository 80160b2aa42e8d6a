//! Blames ranks that have become slower than before, relative to the others, and for which the others wait.
//!
//! The detector never blames a rank for being slower than another one: stages and loads may be permanently uneven.

mod explain;
pub(super) mod gathering;
mod normal;
mod watch;

use super::device_steps::{Bases, Basis, Choice, DeviceSteps};
use super::{FaultClass, FaultDetector, Findings, saved};
use crate::job::{Domain, Name, Rank, Role};
use crate::state::View;
use crate::trace::{DecodeError, Observation, Signal, StepTimes};
use bytes::Bytes;
use gathering::{Admission, Era, Gathering, Reported, Sample};
use normal::learn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use watch::{Limits, Step, Watch};

const NAME: Name = Name::new("slow-rank");
const SNAPSHOT_VERSION: u8 = 2;

/// Number of first steps completed by all ranks that are ignored: programs compile and fill caches in them.
const WARM_UP_STEPS: u32 = 5;

/// Blames ranks that have become slower.
///
/// In a synchronous job the steps of all ranks take equally long. The relevant figures are the time that a rank
/// needs for its own part ([`StepTimes::own_ns`], without saving checkpoints), and the times that ranks wait. The
/// first five steps of a generation are ignored, and the next 48 are used to learn the usual times. After that,
/// each step of each rank is compared with the usual time for it: the rank's usual own time, scaled by how much
/// longer or shorter than usual the other ranks' own times were in that step. Therefore uneven stages and loads,
/// and steps that are long for all ranks, cause no blame; nor does a job in which more than half of the ranks
/// become slower at once.
///
/// If most ranks report the times of their devices ([`DeviceTimes`](crate::trace::DeviceTimes)), these are compared
/// instead, because a process only launches the work of its device, and waits for it at the end of a step like all
/// others: the own time is then that of the device's computation and of waiting for data with an idle device, and the
/// waiting time that of communication beside which the device does nothing else. Ranks without these times are not
/// judged meanwhile. When the ranks begin or cease to report them (for eight steps), the detector withdraws its blames
/// and learns again.
///
/// A rank is blamed if all of these hold. The *bound* is the excess set with `by_percent`, 20 % by default.
/// - The sum of its excess time, less 40 % of the bound for each step, has exceeded a threshold (CUSUM). The threshold
///   grows with the rank's usual scatter and with the number of ranks. With few ranks, an excess of 50 % is found after
///   about 6 steps, 20 % after about 20.
/// - Since the onset (the step at which that sum began its current growth) the sum has grown by most of the
///   threshold, and the median step was too slow by at least 70 % of the bound: single pauses cause no blame.
/// - In seven of ten steps since then the others waited longer than this rank, by at least half of its excess time. The
///   other ranks' clocks measure that.
///
/// One piece of evidence names the cause of the excess time, if it is known: `slow_data` (the rank waited for data),
/// `slow_starved` (its thread did not get its CPU) or `slow_computing` (it was on its CPU, as usual). The other
/// evidence is `slow_own_time_ms`, `slow_waited_for_ms` and `slow_onset_step`. If all ranks of one host are too slow,
/// the host is the second suspect.
///
/// The blame is withdrawn when the rank is as fast as before in the median of ten steps. A new generation, and a
/// restarted rank, start without data: a rank that was slow from the beginning is not found. The usual times follow
/// slow changes (over hundreds of steps). A step in which records of a rank were lost is not used for that rank.
///
/// This detector is not among the [`defaults`](super::defaults). Register it for reports: a slow rank still trains, and
/// the built-in strategies leave it alone, so the incident names the rank and reports that nothing was done. A strategy
/// that replaces slow ranks can act on it.
#[derive(Debug)]
pub struct SlowRankDetector {
    percent: u32,
    learning: u32,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    era: Era,
    gathering: Gathering<Reported>,
    devices: DeviceSteps,
    bases: Bases,
    basis: Basis,
    warm_up: u32,
    /// Steps from which the usual times are learned, with each rank's times; empty once the usual times are known.
    lessons: Vec<BTreeMap<u32, Sample>>,
    /// Comparison of each rank with its usual times, by rank; empty until the usual times are known.
    watches: BTreeMap<u32, Watch>,
}

impl Default for SlowRankDetector {
    fn default() -> SlowRankDetector {
        SlowRankDetector::by_percent(20)
    }
}

impl SlowRankDetector {
    /// Range, in percent, to which [`by_percent`](Self::by_percent) limits its argument.
    pub const PERCENT: std::ops::RangeInclusive<u32> = 5..=200;

    /// Range, in steps, to which [`with_learning_steps`](Self::with_learning_steps) limits its argument.
    pub const LEARNING_STEPS: std::ops::RangeInclusive<u32> = 8..=256;

    /// Creates a detector that blames ranks that need at least `percent` percent more time than usual for their own
    /// part of a step, clamped to [`Self::PERCENT`]. The default is 20.
    #[must_use]
    pub fn by_percent(percent: u32) -> SlowRankDetector {
        let percent = percent.clamp(*Self::PERCENT.start(), *Self::PERCENT.end());
        SlowRankDetector { percent, learning: 48, state: State::default() }
    }

    /// Sets the number of steps from which the detector learns the usual times of each rank, clamped to
    /// [`Self::LEARNING_STEPS`]. The default is 48.
    #[must_use]
    pub fn with_learning_steps(mut self, steps: u32) -> SlowRankDetector {
        self.learning = steps.clamp(*Self::LEARNING_STEPS.start(), *Self::LEARNING_STEPS.end());
        self
    }

    /// Returns true if a report of a rank counts. The first one of another world starts without data.
    fn admit(&mut self, rank: Rank, o: &Observation, view: &View) -> bool {
        match self.state.era.admit(rank, o, view) {
            Admission::Ignored => return false,
            Admission::Same => {}
            Admission::New => {
                self.state = State { era: std::mem::take(&mut self.state.era), ..State::default() };
            }
        }
        true
    }

    /// Handles a rank's completed step.
    fn completed(&mut self, rank: Rank, o: &Observation, times: &StepTimes, view: &View, out: &mut Findings) {
        let device = self.state.devices.take(rank.0, times);
        let reported = Reported::of(times, device, o.at.min(view.now));
        self.state.gathering.add(rank.0, times.step, reported);
        while let Some((number, reports)) = self.state.gathering.next_whole(view) {
            self.judge(number, &reports, view, out);
        }
    }

    /// Handles a step that all ranks have completed.
    fn judge(&mut self, number: u64, reports: &BTreeMap<u32, Reported>, view: &View, out: &mut Findings) {
        if reports.len() < 2 || reports.len() * 2 < view.training().count() {
            return; // too few ranks for a comparison
        }
        let with = reports.values().filter(|reported| reported.device.is_some()).count();
        match self.state.bases.choose(with, reports.len()) {
            Choice::Use(basis) => self.state.basis = basis,
            Choice::Skip => return,
            Choice::Restart(basis) => self.restart(basis, out),
        }
        let sample = |(rank, reported): (&u32, &Reported)| Some((*rank, reported.by(self.state.basis)?));
        let samples: BTreeMap<u32, Sample> = reports.iter().filter_map(sample).collect();
        if samples.len() < 2 {
            return; // most have figures that cannot be used
        }
        let state = &mut self.state;
        if state.warm_up < WARM_UP_STEPS {
            state.warm_up += 1;
        } else if state.watches.is_empty() {
            state.lessons.push(samples);
            if state.lessons.len() >= self.learning as usize {
                let normals = learn(&std::mem::take(&mut state.lessons));
                state.watches = normals.into_iter().map(|(rank, normal)| (rank, Watch::new(normal))).collect();
            }
        } else if let Some(step) = Step::of(number, &samples, &state.watches) {
            self.compare(&step, &samples, view, out);
        }
    }

    /// Starts again with another basis: withdraws the blames, and forgets the usual times.
    fn restart(&mut self, basis: Basis, out: &mut Findings) {
        let state = &mut self.state;
        for (rank, _) in std::mem::take(&mut state.watches).iter().filter(|(_, watch)| watch.blamed) {
            out.clear(Domain::Process(Role::Rank(Rank(*rank))), FaultClass::Slow);
        }
        state.lessons.clear();
        (state.basis, state.warm_up) = (basis, 0);
    }

    /// Compares the times of each rank in this step with its usual times.
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
            if let Some(fault) = explain::fault(Rank(rank), &self.state.watches, &limits, self.state.basis, view) {
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
        let Domain::Process(Role::Rank(rank)) = &o.about else { return };
        match &o.signal {
            Signal::DeviceStep(times) if self.admit(*rank, o, view) => self.state.devices.add(rank.0, times),
            Signal::Step(times) if self.admit(*rank, o, view) => self.completed(*rank, o, times, view, out),
            _ => {}
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

/// Returns the median; of two middle values the smaller one. Zero if there are no values.
fn median(mut values: Vec<f64>) -> f64 {
    let at = values.len().saturating_sub(1) / 2;
    values.sort_by(f64::total_cmp);
    values.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests;

//! Finds units with a figure that has shifted upwards and stayed there: a bank of CUSUM tests for each unit.
//!
//! This module knows nothing about ranks, hosts or causes.
//!
//! For each hypothetical shift d of the bank, the score of a unit is the sum of the log-likelihood ratios
//! `(d z - d^2 / 2) / sigma^2`, never below zero, where z is the unit's deviation from its usual value (Page's CUSUM).
//! Each ratio is limited to [`Limits::cap`] in both directions. That is the robust test of Huber for data of which a
//! known share consists of arbitrary outliers: a single pause, however long, adds no more than the cap.

use super::stats::{deviation, median};
use serde::{Deserialize, Serialize};

/// Number of hypothetical shifts.
pub(super) const BANK: usize = 4;
/// Hypothetical shifts, as fractions of the usual value (natural logarithm). Twice as large each: between two of them
/// a test loses at most a ninth of its power.
const SHIFTS: [f32; BANK] = [0.1, 0.2, 0.4, 0.8];
/// A hypothetical shift is tested once it is this number of standard errors of the usual value.
const ERRORS_PER_SHIFT: f32 = 10.0;
/// Minimum gain with which the usual value and its scatter follow slow changes.
const FOLLOWS_MIN: f32 = 1.0 / 64.0;
/// Fraction of the threshold above which a unit's usual value is kept as it is.
const HOT: f32 = 0.25;
/// Fraction of the threshold above which a unit counts as suspicious.
const SUSPICIOUS: f32 = 0.35;
/// Deviation, in standard deviations, from which a value of an unsuspicious unit counts as an outlier.
const OUTLIER: f32 = 4.0;
/// Maximum deviation of one value in the average since the onset, in multiples of the shift that is tested (at least the
/// shift and one standard deviation): a single long pause must not look like a shift.
const CLIP: f32 = 1.2;
/// Variance of a usual value, in multiples of the variance of a mean of as many values of a normal distribution: it
/// starts as a median (1.57) and continues as a mean (1).
pub(super) const MEDIAN_VARIANCE: f32 = 1.25;
/// Score at which a blamed unit has recovered.
const RECOVERED: f32 = 10.0;
/// Limits of the cap.
const CAP_MIN: f32 = 2.0;
const CAP_MAX: f32 = 6.3;
/// Number of values from which a usual value is known. A unit with fewer is not tested.
const VALUES_MIN: f32 = 2.0;
/// Limits that are the same for all units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Limits {
    /// Maximum absolute value of one log-likelihood ratio.
    pub(super) cap: f32,
    /// Score at which a unit is examined.
    pub(super) threshold: f32,
}

/// The values since a score was zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// Number of the first step.
    pub(super) onset: u64,
    pub(super) count: u32,
    sum: f32,
    wait: f32,
    /// The smallest of the latest three deviations.
    sustained: f32,
}

impl Run {
    /// Returns the mean deviation.
    pub(super) fn shift(&self) -> f32 {
        self.sum / precise(self.count).max(1.0)
    }

    /// Returns the size of the shift. The mean is limited, so that of a large shift is too small: then the size is what
    /// the latest three values have in common.
    pub(super) fn size(&self) -> f32 {
        self.shift().max(self.sustained)
    }

    /// Returns the mean of the additional figure.
    pub(super) fn wait(&self) -> f32 {
        self.wait / precise(self.count).max(1.0)
    }
}

/// The state of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Unit {
    base: f32,
    sigma: f32,
    /// Number of values from which `base` comes.
    seen: f32,
    scores: [f32; BANK],
    runs: [Run; BANK],
    /// The latest deviations.
    recent: [f32; 3],
    /// Shift of a blamed unit; zero for others.
    blamed: f32,
    back: f32,
}

/// What the latest value of a unit changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// A score is at the threshold.
    Shifted,
    /// A blamed unit has its usual value again.
    Recovered,
}

/// The states of all units of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Track {
    units: Vec<Unit>,
    /// Index of the smallest shift that is tested.
    first: usize,
    floor: f32,
    outliers: f64,
    values: f64,
}

impl Track {
    /// Learns the usual values of `units` units from `rows` of them. `floor` is the minimum standard deviation. A unit that
    /// `is_slow` names has been slow from the start: its usual value is zero.
    pub(super) fn learn(
        rows: &[f32],
        units: usize,
        first: usize,
        floor: f32,
        is_slow: impl Fn(usize) -> bool,
    ) -> Track {
        let mut column = Vec::with_capacity(rows.len() / units.max(1));
        let of_unit = |unit: usize| {
            column.clear();
            column.extend(rows.iter().skip(unit).step_by(units).filter(|value| value.is_finite()));
            let seen = u32::try_from(column.len()).unwrap_or(u32::MAX);
            let usual = median(&mut column);
            let base = if is_slow(unit) { 0.0 } else { usual };
            let sigma = deviation(&mut column, usual).max(floor);
            let (scores, runs) = ([0.0; BANK], [Run::default(); BANK]);
            Unit { base, sigma, seen: precise(seen), scores, runs, recent: [0.0; 3], blamed: 0.0, back: 0.0 }
        };
        let mut units: Vec<Unit> = (0..units).map(of_unit).collect();
        // From few values the scatter of a single unit is uncertain, so no unit has less than the median of all.
        let mut sigmas: Vec<f32> = units.iter().map(|unit| unit.sigma).filter(|sigma| sigma.is_finite()).collect();
        let usual = if sigmas.is_empty() { floor } else { median(&mut sigmas) };
        units.iter_mut().for_each(|unit| unit.sigma = unit.sigma.max(usual));
        let mut track = Track { units, first, floor, outliers: 0.5, values: 50.0 };
        for (value, unit) in rows.iter().zip(track.units.iter().cycle()).filter(|(value, _)| value.is_finite()) {
            track.values += 1.0;
            track.outliers += if unit.is_outlier(value - unit.base) { 1.0 } else { 0.0 };
        }
        track
    }

    /// Returns true if no figure is impossible.
    pub(super) fn is_sound(&self) -> bool {
        let is_known = |unit: &Unit| unit.base.is_finite() || unit.seen < VALUES_MIN; // one without figures has none
        let is_valid = |unit: &Unit| unit.sigma > 0.0 && unit.sigma.is_finite() && is_known(unit);
        self.first < BANK && self.outliers > 0.0 && self.values >= self.outliers && self.units.iter().all(is_valid)
    }

    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Returns the limits for scores that a healthy track of this number of units reaches once in about exp(`clean`)
    /// steps. The cap is the logarithm of the density of a shifted value divided by that of
    /// outliers, which are spread somewhat more widely than the scatter: a larger value proves no more than that.
    pub(super) fn limits(&self, clean: f32) -> Limits {
        #[allow(clippy::cast_possible_truncation, reason = "a share between 0 and 1")]
        let share = (self.outliers / self.values) as f32;
        Limits { cap: (0.5 - share.ln()).clamp(CAP_MIN, CAP_MAX), threshold: count(self.units.len()).ln() + clean }
    }

    /// Adds the next value of a unit. `wait` is an additional figure that is averaged since the onset.
    #[inline]
    pub(super) fn add(&mut self, at: usize, value: f32, wait: f32, step: u64, limits: &Limits) -> Change {
        let Some(unit) = self.units.get_mut(at) else { return Change::None };
        if !value.is_finite() || unit.seen < VALUES_MIN {
            return Change::None;
        }
        let z = value - unit.base;
        unit.recent = [z, unit.recent[0], unit.recent[1]];
        let inverse = 1.0 / (unit.sigma * unit.sigma);
        if unit.blamed > 0.0 {
            let ratio = (unit.blamed * unit.blamed / 2.0 - unit.blamed * z) * inverse;
            unit.back = (unit.back + ratio.clamp(-limits.cap, limits.cap)).max(0.0);
            return if unit.back >= RECOVERED { Change::Recovered } else { Change::None };
        }
        let was_hot = unit.scores.iter().any(|score| *score > HOT * limits.threshold);
        if !was_hot {
            self.values += 1.0;
            self.outliers += if unit.is_outlier(z) { 1.0 } else { 0.0 };
            unit.follow(z, self.floor);
        }
        let mut highest = 0.0_f32;
        for (k, shift) in SHIFTS.into_iter().enumerate().skip(self.first) {
            if !unit.is_known(shift) {
                continue;
            }
            let ratio = ((shift * z - shift * shift / 2.0) * inverse).clamp(-limits.cap, limits.cap);
            let score = (unit.scores[k] + ratio).min(limits.threshold);
            if score <= 0.0 {
                unit.scores[k] = 0.0;
                unit.runs[k].count = 0;
                continue;
            }
            unit.scores[k] = score;
            highest = highest.max(score);
            let run = &mut unit.runs[k];
            if run.count == 0 {
                *run = Run { onset: step, ..Run::default() };
            }
            run.count += 1;
            let clip = (CLIP * shift).max(shift + unit.sigma);
            run.sum += z.clamp(-clip, clip);
            run.wait += if wait.is_finite() { wait } else { 0.0 };
        }
        if highest >= limits.threshold { Change::Shifted } else { Change::None }
    }

    /// Adds what peers waited in the step after the latest value to the runs that contain this value.
    pub(super) fn add_wait(&mut self, at: usize, wait: f32) {
        let Some(unit) = self.units.get_mut(at).filter(|_| wait.is_finite()) else { return };
        unit.runs.iter_mut().filter(|run| run.count > 0).for_each(|run| run.wait += wait);
    }

    /// Returns the values since the onset, according to the largest shift with a score at the threshold, and true if
    /// this is the smallest shift of all.
    pub(super) fn run(&self, at: usize, limits: &Limits) -> Option<(Run, bool)> {
        let unit = self.units.get(at)?;
        let k = (0..BANK).rev().find(|k| unit.scores[*k] >= limits.threshold)?;
        let sustained = unit.recent.into_iter().fold(f32::INFINITY, f32::min);
        Some((Run { sustained, ..unit.runs[k] }, k == 0))
    }

    /// Returns the mean shift of a unit in its current run: the longest one if there are several.
    pub(super) fn shift(&self, at: usize) -> f32 {
        let Some(unit) = self.units.get(at) else { return 0.0 };
        if unit.blamed > 0.0 {
            return unit.blamed;
        }
        unit.runs.iter().max_by_key(|run| run.count).map_or(0.0, Run::shift)
    }

    /// Returns the size of a unit's shift, as [`Run::size`] does.
    pub(super) fn size(&self, at: usize) -> f32 {
        let recent = self.units.get(at).map_or([0.0; 3], |unit| unit.recent);
        self.shift(at).max(recent.into_iter().fold(f32::INFINITY, f32::min))
    }

    /// Returns true if the unit is blamed, or its score is at a part of the threshold.
    pub(super) fn is_suspicious(&self, at: usize, limits: &Limits) -> bool {
        self.units.get(at).is_some_and(|unit| {
            unit.blamed > 0.0 || unit.scores.iter().any(|score| *score >= SUSPICIOUS * limits.threshold)
        })
    }

    pub(super) fn is_blamed(&self, at: usize) -> bool {
        self.units.get(at).is_some_and(|unit| unit.blamed > 0.0)
    }

    /// Returns the standard error of the mean shift in a run, which includes that of the usual value.
    pub(super) fn error(&self, at: usize, run: &Run) -> f32 {
        let Some(unit) = self.units.get(at) else { return f32::INFINITY };
        unit.sigma * (1.0 / precise(run.count).max(1.0) + MEDIAN_VARIANCE / unit.seen.max(1.0)).sqrt()
    }

    /// Returns the value, limited to this number of standard deviations from the usual one.
    #[inline]
    pub(super) fn clip(&self, at: usize, value: f32, sigmas: f32) -> f32 {
        let Some(unit) = self.units.get(at) else { return value };
        let most = sigmas * unit.sigma;
        unit.base + (value - unit.base).clamp(-most, most)
    }

    pub(super) fn sigma(&self, at: usize) -> f32 {
        self.units.get(at).map_or(0.0, |unit| unit.sigma)
    }

    /// Marks a unit as blamed: from now on its recovery is tested.
    pub(super) fn blame(&mut self, at: usize, shift: f32) {
        if let Some(unit) = self.units.get_mut(at) {
            (unit.blamed, unit.back) = (shift.max(SHIFTS[0]), 0.0);
        }
    }

    /// Marks a unit as suspicious: its usual value stays as it is while the next values confirm a shift.
    pub(super) fn suspect(&mut self, at: usize, limits: &Limits) {
        self.reset(at);
        let first = self.first;
        let Some(unit) = self.units.get_mut(at) else { return };
        for (k, shift) in SHIFTS.into_iter().enumerate().skip(first) {
            if unit.is_known(shift) {
                unit.scores[k] = SUSPICIOUS * limits.threshold;
            }
        }
    }

    /// Forgets the unit's recent values and its blame.
    pub(super) fn reset(&mut self, at: usize) {
        if let Some(unit) = self.units.get_mut(at) {
            (unit.scores, unit.runs, unit.blamed, unit.back) = ([0.0; BANK], [Run::default(); BANK], 0.0, 0.0);
        }
    }
}

impl Unit {
    /// Returns true if the usual value is known well enough to test this shift.
    #[inline]
    fn is_known(&self, shift: f32) -> bool {
        let enough = ERRORS_PER_SHIFT * self.sigma;
        shift * shift * self.seen >= enough * enough
    }

    fn is_outlier(&self, z: f32) -> bool {
        z.abs() > OUTLIER * self.sigma
    }

    /// Follows slow changes. One value changes the usual value by little, however large it is.
    fn follow(&mut self, z: f32, floor: f32) {
        let gain = (1.0 / (self.seen + 1.0)).max(FOLLOWS_MIN);
        self.base += gain * z.clamp(-self.sigma, self.sigma);
        self.seen += 1.0;
        let distance = (z.abs() * 1.25).min(3.0 * self.sigma); // one sigma is 1.25 mean absolute deviations
        self.sigma = (self.sigma + FOLLOWS_MIN * (distance - self.sigma)).max(floor);
    }
}

#[allow(clippy::cast_precision_loss, reason = "a count of values, of which only the first digits matter")]
fn precise(count: u32) -> f32 {
    count as f32
}

#[allow(clippy::cast_precision_loss, reason = "a count of units, of which only the first digits matter")]
fn count(units: usize) -> f32 {
    units.max(1) as f32
}

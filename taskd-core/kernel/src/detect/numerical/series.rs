//! One rank's values of one metric: which of them are not finite, and which are spikes.
//!
//! A value is compared with the median of the rank's own last values. Their scatter is measured by the median absolute
//! difference of successive values, which neither a few outliers nor a falling trend enlarges.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Minimum number of finite values before a value can be a spike.
pub(super) const LEARNING_REPORTS: usize = 16;

/// Factor from the median absolute difference of two values to the standard deviation of a normal distribution: 1.4826
/// = 1 / Φ⁻¹(3/4), divided by the square root of 2, because the variance of a difference is twice that of a value.
const DIFFERENCE_TO_SIGMA: f64 = 1.4826 / std::f64::consts::SQRT_2;

/// What one value is, compared with the rank's last values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// Finite and as usual.
    Usual,
    /// NaN or infinite.
    NotFinite,
    /// Finite, and far above the usual value, which is the field.
    Spike(f64),
}

/// Limits above which a value is a spike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Number of values with which a value is compared.
    pub(super) window: usize,
    /// Robust standard deviations above the median.
    pub(super) sigmas: f64,
    /// Minimum excess over the median, in hundredths of its absolute value.
    pub(super) percent: u32,
}

/// The last usual values of one rank and metric.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Series {
    /// Number of values so far.
    pub(super) reports: u64,
    usual: VecDeque<f64>,
    /// Number of spikes, less the usual values between them.
    spikes: usize,
}

impl Series {
    /// Adds the next value. Spikes do not count as usual, unless a whole window of them has come: then the level of the
    /// metric has changed.
    pub(super) fn add(&mut self, value: f64, limits: &Limits) -> Verdict {
        self.reports = self.reports.saturating_add(1);
        if !value.is_finite() {
            return Verdict::NotFinite;
        }
        if let Some(median) = self.exceeded(value, limits) {
            self.spikes = self.spikes.saturating_add(1);
            if self.spikes < limits.window {
                return Verdict::Spike(median);
            }
            self.forget();
        }
        self.spikes = self.spikes.saturating_sub(1);
        while self.usual.len() >= limits.window {
            self.usual.pop_front();
        }
        self.usual.push_back(value);
        Verdict::Usual
    }

    /// Forgets the usual values, because the level of the metric has changed.
    pub(super) fn forget(&mut self) {
        self.usual.clear();
        self.spikes = 0;
    }

    /// Returns the median of the usual values, if the value is far above it.
    fn exceeded(&self, value: f64, limits: &Limits) -> Option<f64> {
        if self.usual.len() < LEARNING_REPORTS.min(limits.window) {
            return None;
        }
        let mut sorted: Vec<f64> = self.usual.iter().copied().collect();
        let median = median(&mut sorted)?;
        if value <= median {
            return None; // true of half of all values: they cost one selection
        }
        let successive = self.usual.iter().zip(self.usual.iter().skip(1));
        let mut differences: Vec<f64> = successive.map(|(one, next)| (next - one).abs()).collect();
        let sigma = self::median(&mut differences)? * DIFFERENCE_TO_SIGMA;
        let least = median.abs() * f64::from(limits.percent) / 100.0;
        (value - median > (limits.sigmas * sigma).max(least)).then_some(median)
    }
}

/// Returns the upper median, in linear time; `None` without values.
fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    (middle < values.len()).then(|| *values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

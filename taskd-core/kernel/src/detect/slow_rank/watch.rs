//! Compares one rank's recent steps with its usual times: has it become slower, since when, and do others wait for it?
//!
//! This module reports nothing.

use super::gathering::Sample;
use super::median;
use super::normal::{Lengths, Normal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of steps since the onset that are kept for the verdict, the latest ones.
const RECENT_MAX: usize = 48;
/// Minimum number of steps since the onset for a verdict.
const STEPS_MIN: usize = 5;
/// Number of steps from which a rank is judged to be as fast as before.
const CLEAR_STEPS: usize = 10;
/// Maximum excess of one step, in multiples of the bound, so that a single pause causes no blame.
const EXCESS_PER_BOUND_MAX: f64 = 3.0;
/// Deduction from each step's excess, in multiples of the bound, so that noise and small changes add up to nothing.
const ALLOWED_PER_BOUND: f64 = 0.4;
/// Part of the threshold that must have accumulated since the onset.
const CONFIRMED_PART: f64 = 0.8;
/// Minimum excess of the median step since the onset, in multiples of the bound.
const CONFIRMED_PER_BOUND: f64 = 0.7;
/// The threshold, in multiples of the bound. A steady excess of the bound reaches it in 20 steps, one of 2.5 times the
/// bound in 6.
const THRESHOLD_PER_BOUND: f64 = 12.0;
/// Number of ranks for which the threshold is valid. Larger jobs have more chance events: the threshold grows with each
/// doubling of the number of ranks, and is doubled after [`THRESHOLD_DOUBLINGS`].
const FEW_RANKS: usize = 4;
const THRESHOLD_DOUBLINGS: f64 = 16.0;
/// Natural logarithm of the number of steps that a healthy rank should pass without reaching the threshold by scatter:
/// 5e8.
const CLEAN_STEPS_LN: f64 = 20.0;

/// Limits from which a rank is too slow, as fractions of its usual time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Excess per step that is not counted.
    pub(super) allowed: f64,
    /// Minimum excess of the median step for a blame, as a fraction of the usual time.
    confirmed: f64,
    /// Maximum absolute excess that one step adds to the sum, as a fraction of the usual time.
    most: f64,
    threshold: f64,
}

impl Limits {
    /// Computes the limits for a bound in percent, in a job of `ranks` ranks.
    pub(super) fn of(percent: u32, ranks: usize) -> Limits {
        let bound = f64::from(percent) / 100.0;
        let doublings = f64::from(ranks.max(FEW_RANKS).ilog2() - FEW_RANKS.ilog2());
        Limits {
            allowed: ALLOWED_PER_BOUND * bound,
            confirmed: CONFIRMED_PER_BOUND * bound,
            most: EXCESS_PER_BOUND_MAX * bound,
            threshold: THRESHOLD_PER_BOUND * bound * (1.0 + doublings / THRESHOLD_DOUBLINGS),
        }
    }

    fn cut(&self, excess: f64) -> f64 {
        excess.min(self.most).max(-self.most)
    }

    /// Returns the sum at which to judge. It grows with the scatter, so that a random walk with that scatter, which
    /// drifts towards zero by the allowed excess, reaches it only once in the number of steps given by
    /// [`CLEAN_STEPS_LN`].
    fn threshold(&self, scatter: f64) -> f64 {
        self.threshold.max(CLEAN_STEPS_LN * scatter * scatter / (2.0 * self.allowed))
    }
}

/// Properties of one step across all ranks.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) number: u64,
    lengths: Lengths,
    /// Waiting time of the median rank in this step, in nanoseconds.
    wait: f64,
}

impl Step {
    /// Creates a step; `None` if fewer than two ranks can be compared.
    pub(super) fn of(number: u64, samples: &BTreeMap<u32, Sample>, watches: &BTreeMap<u32, Watch>) -> Option<Step> {
        let lengths = Lengths::of(samples, |rank| Some(watches.get(&rank)?.normal.own));
        let known = samples.iter().filter(|(rank, _)| watches.contains_key(rank));
        let mut waits: Vec<f64> = known.map(|(_, sample)| sample.wait).collect();
        waits.sort_by(f64::total_cmp);
        // Of two middle values the longer one: if half of the ranks are slow, the other half waits.
        let wait = waits.get(waits.len() / 2).copied().filter(|_| waits.len() >= 2)?;
        Some(Step { number, lengths, wait })
    }
}

/// One step of a rank with its expected values.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) step: u64,
    pub(super) sample: Sample,
    /// Expected own time, in nanoseconds.
    pub(super) usual: f64,
    /// Excess of the rank's own time over the expected one, as a fraction of the expected one.
    excess: f64,
    /// Waiting time of the median rank, in nanoseconds.
    pub(super) others_wait: f64,
}

impl Entry {
    /// Returns true if the others waited longer than this rank, by at least half of its excess time.
    pub(super) fn is_waited_for(&self) -> bool {
        self.others_wait - self.sample.wait > (self.sample.own - self.usual) / 2.0
    }
}

/// The state of one rank.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Watch {
    pub(super) normal: Normal,
    pub(super) blamed: bool,
    /// Sum of the rank's recent excess, less the allowed excess of each step (CUSUM).
    sum: f64,
    /// The latest steps since the sum was zero; for a blamed rank, since the onset.
    pub(super) recent: VecDeque<Entry>,
}

impl Watch {
    pub(super) fn new(normal: Normal) -> Watch {
        Watch { normal, blamed: false, sum: 0.0, recent: VecDeque::new() }
    }

    /// Adds the rank's next step, which may change `blamed`.
    pub(super) fn take(&mut self, step: &Step, sample: &Sample, limits: &Limits) {
        let usual = self.normal.own * step.lengths.beside(sample.own / self.normal.own);
        let excess = sample.own / usual - 1.0;
        let entry = Entry { step: step.number, sample: *sample, usual, excess, others_wait: step.wait };
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(entry);
        if self.blamed { self.is_over(limits) } else { self.add(excess, limits) }
    }

    /// Returns true if the rank is blamed, or its sum has reached half of the threshold.
    pub(super) fn is_suspicious(&self, limits: &Limits) -> bool {
        self.blamed || self.sum >= limits.threshold(self.normal.scatter) / 2.0
    }

    fn is_over(&mut self, limits: &Limits) {
        if self.recent.len() >= CLEAR_STEPS && self.excess(CLEAR_STEPS) < limits.allowed {
            *self = Watch::new(self.normal.clone());
        }
    }

    fn add(&mut self, excess: f64, limits: &Limits) {
        self.normal.follow(excess);
        let threshold = limits.threshold(self.normal.scatter);
        let sum = self.sum + limits.cut(excess) - limits.allowed;
        self.sum = sum.min(threshold).max(0.0); // bounded, so that a past excess is soon forgotten
        if sum <= 0.0 {
            self.recent.clear();
        } else if sum >= threshold {
            let onset = self.onset(limits);
            self.blamed = self.is_confirmed(onset, limits);
            if self.blamed {
                self.recent.drain(..onset);
            }
        }
    }

    /// Returns the index of the step since which the rank is as slow as now. From there on the sum of its excess, less
    /// half of its current excess for each step, is largest.
    fn onset(&self, limits: &Limits) -> usize {
        let half = self.excess(STEPS_MIN) / 2.0;
        let (mut sum, mut largest, mut onset) = (0.0, 0.0, self.recent.len());
        for (at, entry) in self.recent.iter().enumerate().rev() {
            sum += limits.cut(entry.excess) - half;
            if sum > largest {
                (largest, onset) = (sum, at);
            }
        }
        onset
    }

    /// Returns true if the excess is not due to single steps, and others wait for the rank.
    fn is_confirmed(&self, onset: usize, limits: &Limits) -> bool {
        let steps = self.recent.len() - onset;
        let since = || self.recent.range(onset..);
        let sum: f64 = since().map(|entry| limits.cut(entry.excess) - limits.allowed).sum();
        let waited_for = since().filter(|entry| entry.is_waited_for()).count();
        steps >= STEPS_MIN
            && sum >= limits.threshold(self.normal.scatter) * CONFIRMED_PART
            && self.excess(steps) >= limits.confirmed
            && waited_for * 10 >= steps * 7
    }

    /// Returns the median excess of the latest `steps` steps.
    fn excess(&self, steps: usize) -> f64 {
        median(self.recent.iter().rev().take(steps).map(|entry| entry.excess).collect())
    }
}

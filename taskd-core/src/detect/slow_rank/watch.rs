//! One rank's recent steps beside what is usual for it: has it become slower, since when, and do others wait for it?
//!
//! It tells nobody.

use super::gathering::Sample;
use super::median;
use super::normal::{Lengths, Normal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Of the steps since the onset, the latest so many are kept for the verdict.
const RECENT_MAX: usize = 48;
/// Fewest steps since the onset for a verdict.
const STEPS_MIN: usize = 5;
/// From so many steps it is judged whether a rank is as fast as before.
const CLEAR_STEPS: usize = 10;
/// One step counts as so many times the bound at most: a single pause is no verdict.
const EXCESS_PER_BOUND_MAX: f64 = 3.0;
/// Of what each step is too slow so much is taken off, in bounds: noise and small changes come to nothing.
const ALLOWED_PER_BOUND: f64 = 0.4;
/// This part of the threshold must have come together since the onset.
const CONFIRMED_PART: f64 = 0.8;
/// In the median step since the onset it must be this much too slow, in bounds.
const CONFIRMED_PER_BOUND: f64 = 0.7;
/// The threshold, in bounds. A steady excess of the bound reaches it in 20 steps, one of 2.5 times the bound in 6.
const THRESHOLD_PER_BOUND: f64 = 12.0;
/// The threshold is for so many ranks. In larger jobs more can go wrong by chance: it grows with each doubling of them, and is
/// doubled after [`THRESHOLD_DOUBLINGS`].
const FEW_RANKS: usize = 4;
const THRESHOLD_DOUBLINGS: f64 = 16.0;
/// Natural logarithm of how many steps a healthy rank should pass without reaching the threshold by scatter: 5e8.
const CLEAN_STEPS_LN: f64 = 20.0;

/// From when on a rank is too slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// So much too slow a step may be.
    pub(super) allowed: f64,
    /// What the median step must be too slow by.
    confirmed: f64,
    /// A step counts as this much too slow, or too fast, at most.
    most: f64,
    threshold: f64,
}

impl Limits {
    /// For a bound in percent, in a job of so many ranks.
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

    /// The sum at which to judge, which grows with the scatter: so that a random walk with that scatter, which drifts back to
    /// zero by what is allowed, reaches it but once in so many steps as [`CLEAN_STEPS_LN`] says.
    fn threshold(&self, scatter: f64) -> f64 {
        self.threshold.max(CLEAN_STEPS_LN * scatter * scatter / (2.0 * self.allowed))
    }
}

/// What one step was for all ranks.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) number: u64,
    lengths: Lengths,
    /// How long the median rank waited, in nanoseconds.
    wait: f64,
}

impl Step {
    /// `None` when fewer than two ranks can be compared.
    pub(super) fn of(number: u64, samples: &BTreeMap<u32, Sample>, watches: &BTreeMap<u32, Watch>) -> Option<Step> {
        let lengths = Lengths::of(samples, |rank| Some(watches.get(&rank)?.normal.own));
        let known = samples.iter().filter(|(rank, _)| watches.contains_key(rank));
        let mut waits: Vec<f64> = known.map(|(_, sample)| sample.wait).collect();
        waits.sort_by(f64::total_cmp);
        // Of two middle ones the longer: when half of the ranks are slow, it is the other half that waits.
        let wait = waits.get(waits.len() / 2).copied().filter(|_| waits.len() >= 2)?;
        Some(Step { number, lengths, wait })
    }
}

/// One step of a rank beside what would be usual.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) step: u64,
    pub(super) sample: Sample,
    /// What its own time should have been, in nanoseconds.
    pub(super) usual: f64,
    /// By which part of it more was needed.
    excess: f64,
    /// How long the median rank waited, in nanoseconds.
    pub(super) others_wait: f64,
}

impl Entry {
    /// Whether others waited longer than it, by at least half of what it needed too much.
    pub(super) fn is_waited_for(&self) -> bool {
        self.others_wait - self.sample.wait > (self.sample.own - self.usual) / 2.0
    }
}

/// One rank.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Watch {
    pub(super) normal: Normal,
    pub(super) blamed: bool,
    /// What it needed too much lately, less what is allowed for each step.
    sum: f64,
    /// The latest steps since the sum was zero; from the onset on, when it is blamed.
    pub(super) recent: VecDeque<Entry>,
}

impl Watch {
    pub(super) fn new(normal: Normal) -> Watch {
        Watch { normal, blamed: false, sum: 0.0, recent: VecDeque::new() }
    }

    /// Takes the rank's next step. Whether it is blamed may change by it.
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

    /// Whether it is well on its way to being blamed, or is.
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
        self.sum = sum.min(threshold).max(0.0); // so that what is over is soon forgotten
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

    /// Since which of the latest steps it is as slow as it is now: from there on the sum of what it needed too much, less half of
    /// what it needs too much now for each step, is largest.
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

    /// Not by single steps, and not where nobody waits for it.
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

    /// The median excess of the latest steps.
    fn excess(&self, steps: usize) -> f64 {
        median(self.recent.iter().rev().take(steps).map(|entry| entry.excess).collect())
    }
}

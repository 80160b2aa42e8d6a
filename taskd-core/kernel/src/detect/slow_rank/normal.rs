//! Learns the usual times of each rank from some steps of all ranks.
//!
//! This module blames no rank.

use super::gathering::Sample;
use super::median;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum scatter: a smaller measured value, from an unusually regular clock, would make the detector oversensitive.
const SCATTER_MIN: f64 = 0.01;
/// Factor from the median absolute deviation to one standard deviation of a normal distribution.
const DEVIATION_PER_DISTANCE: f64 = 1.4826;
/// Part of a change by which the usual times follow it in each step.
const FOLLOWS: f64 = 1.0 / 256.0;

/// The usual times of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Normal {
    /// Own time in a step of usual length, in nanoseconds.
    pub(super) own: f64,
    /// Relative scatter of the own time around its expected value: one standard deviation.
    pub(super) scatter: f64,
    /// Fraction of the own time in which the rank's thread is on a CPU.
    pub(super) cpu_share: Option<f64>,
    /// Time waiting for data, in nanoseconds.
    pub(super) data: f64,
}

impl Normal {
    /// Follows slow changes. One step changes the values by little, however slow it was.
    pub(super) fn follow(&mut self, excess: f64) {
        let scatter = self.scatter.max(SCATTER_MIN);
        self.own += self.own * FOLLOWS * excess.min(scatter).max(-scatter);
        let distance = (excess.abs() * 1.25).min(3.0 * scatter); // one sigma is 1.25 mean absolute deviations
        self.scatter = (scatter + FOLLOWS * (distance - scatter)).max(SCATTER_MIN);
    }
}

/// Learns the usual times from these steps. Ranks with data for less than half of them are left out.
///
/// Steps may be long or short for all ranks, and ranks may have long or short parts. Both effects are removed in turn
/// (a median polish), once; the rest is the scatter.
pub(super) fn learn(steps: &[BTreeMap<u32, Sample>]) -> BTreeMap<u32, Normal> {
    let of_rank = |rank: u32| steps.iter().filter_map(move |step| step.get(&rank));
    let ranks: BTreeSet<u32> = steps.iter().flat_map(|step| step.keys().copied()).collect();
    let known = ranks.into_iter().filter(|rank| of_rank(*rank).count() * 2 >= steps.len());
    let own: BTreeMap<u32, f64> = known.map(|rank| (rank, median(of_rank(rank).map(|s| s.own).collect()))).collect();
    let lengths: Vec<Lengths> = steps.iter().map(|step| Lengths::of(step, |rank| own.get(&rank).copied())).collect();
    let mut normals: BTreeMap<u32, Normal> = BTreeMap::new();
    for (rank, roughly) in own {
        let known = steps.iter().zip(&lengths).filter_map(|(step, lengths)| Some((step.get(&rank)?.own, lengths)));
        let levelled: Vec<f64> = known.map(|(own, lengths)| own / lengths.beside(own / roughly)).collect();
        let own = median(levelled.clone());
        let distances = levelled.into_iter().map(|levelled| (levelled / own - 1.0).abs()).collect();
        let scatter = (median(distances) * DEVIATION_PER_DISTANCE).max(SCATTER_MIN);
        let shares: Vec<f64> = of_rank(rank).filter_map(|s| Some(s.cpu? / s.own)).collect();
        let cpu_share = (!shares.is_empty()).then(|| median(shares));
        let data = median(of_rank(rank).map(|s| s.data).collect());
        normals.insert(rank, Normal { own, scatter, cpu_share, data });
    }
    // With few steps a single rank's scatter is uncertain, so no value is less than the median of all ranks.
    let usual = median(normals.values().map(|normal| normal.scatter).collect());
    normals.values_mut().for_each(|normal| normal.scatter = normal.scatter.max(usual));
    normals
}

/// Length of a step relative to usual steps, estimated for each rank from the others.
#[derive(Debug)]
pub(super) struct Lengths {
    /// Each rank's time in the step, divided by its usual time, in ascending order.
    ratios: Vec<f64>,
}

impl Lengths {
    pub(super) fn of(step: &BTreeMap<u32, Sample>, usual: impl Fn(u32) -> Option<f64>) -> Lengths {
        let mut ratios: Vec<f64> = step.iter().filter_map(|(rank, sample)| Some(sample.own / usual(*rank)?)).collect();
        ratios.sort_by(f64::total_cmp);
        Lengths { ratios }
    }

    /// Returns the step's length for the rank with this ratio: the ratio of another rank, at three eighths from the
    /// fastest. 1.0 is usual.
    ///
    /// The estimate is correct if up to half of the ranks have become slower, or up to a quarter of them faster.
    pub(super) fn beside(&self, ratio: f64) -> f64 {
        let at = self.ratios.len().saturating_sub(1) * 3 / 8;
        let is_before = self.ratios.get(at).is_some_and(|other| ratio <= *other);
        self.ratios.get(at + usize::from(is_before)).copied().unwrap_or(1.0)
    }
}

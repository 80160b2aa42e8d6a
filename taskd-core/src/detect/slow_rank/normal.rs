//! What is usual for each rank, learnt from some steps of all of them.
//!
//! It judges nobody.

use super::gathering::Sample;
use super::median;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Scatter below this is taken for this much: a clock that is too good to be true must not make a detector nervous.
const SCATTER_MIN: f64 = 0.01;
/// From scatter to median distance: 1.4826 of the latter are one standard deviation of what is normally distributed.
const DEVIATION_PER_DISTANCE: f64 = 1.4826;
/// What is usual follows a change by this part of it with each step.
const FOLLOWS: f64 = 1.0 / 256.0;

/// What is usual for one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Normal {
    /// Its own time in a step of usual length, in nanoseconds.
    pub(super) own: f64,
    /// By how much its own time differs from what it should be, as a part of it: one standard deviation.
    pub(super) scatter: f64,
    /// For which part of its own time its thread is on a CPU.
    pub(super) cpu_share: Option<f64>,
    /// Waiting for data, in nanoseconds.
    pub(super) data: f64,
}

impl Normal {
    /// Follows slow changes. One step moves it by little, however slow it was.
    pub(super) fn follow(&mut self, excess: f64) {
        let scatter = self.scatter.max(SCATTER_MIN);
        self.own += self.own * FOLLOWS * excess.min(scatter).max(-scatter);
        let distance = (excess.abs() * 1.25).min(3.0 * scatter); // a deviation is 1.25 mean distances
        self.scatter = (scatter + FOLLOWS * (distance - scatter)).max(SCATTER_MIN);
    }
}

/// What was usual in these steps. A rank of which less than half of them are known is left out.
///
/// Steps may be long or short for everybody, and ranks may have long or short parts. Both are taken out in turn (a median
/// polish), once: what is left is the scatter.
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
    // From few steps one rank's scatter is not known well: nobody's is taken for less than the median one's.
    let usual = median(normals.values().map(|normal| normal.scatter).collect());
    normals.values_mut().for_each(|normal| normal.scatter = normal.scatter.max(usual));
    normals
}

/// How long a step was beside usual ones, for each rank as the other ones show it.
#[derive(Debug)]
pub(super) struct Lengths {
    /// What each rank needed beside what is usual for it, shortest first.
    ratios: Vec<f64>,
}

impl Lengths {
    pub(super) fn of(step: &BTreeMap<u32, Sample>, usual: impl Fn(u32) -> Option<f64>) -> Lengths {
        let mut ratios: Vec<f64> = step.iter().filter_map(|(rank, sample)| Some(sample.own / usual(*rank)?)).collect();
        ratios.sort_by(f64::total_cmp);
        Lengths { ratios }
    }

    /// How long it was for the rank that needed this: as for another one, at three eighths from the fastest. 1.0 is usual.
    ///
    /// So it is right when half of the ranks have become slower, and when a quarter of them have become faster.
    pub(super) fn beside(&self, ratio: f64) -> f64 {
        let at = self.ratios.len().saturating_sub(1) * 3 / 8;
        let is_before = self.ratios.get(at).is_some_and(|other| ratio <= *other);
        self.ratios.get(at + usize::from(is_before)).copied().unwrap_or(1.0)
    }
}

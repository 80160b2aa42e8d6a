//! Looks again for ranks that are slow from the first step, with more values than those of the learning phase.
//!
//! Outliers of the learning phase can hide a rank that is slower by a tenth. The second look compares the ranks of a
//! role in parts of equal length: the learning phase, and [`PARTS`] more. A rank is slow from the start if it is slower
//! than its peers on average, and in each part: a pause fills no part, and a rank that drifts begins or ends as fast as
//! they are.
//!
//! What the ranks of a replica have in common, such as the length of their sequences, is removed first.

use super::channel::{Channel, Level, remove};
use super::engine::LEARN_STEPS;
use super::from_start::{PEERS_SIGMA_MIN, SLOW_FROM_START_PEERS, SLOW_FROM_START_SHARE};
use super::layout::{Layout, Peers};
use super::stats::{deviation, median};
use super::track::{Limits, MEDIAN_VARIANCE};
use serde::{Deserialize, Serialize};

/// Number of parts after the learning phase, each of [`LEARN_STEPS`] steps.
const PARTS: u16 = 3;
/// Minimum number of values of a rank in a part.
const VALUES_MIN: u16 = 10;
/// Maximum deviation of one value from the usual one, in standard deviations: a long pause counts no more than that.
const CLIP: f32 = 2.0;
/// Minimum mean deviation from the peers (natural logarithm).
const SLOW: f32 = 0.08;
/// The same in robust standard deviations of the peers. It is less than in the learning phase, because a rank must be
/// slow in each part as well.
const SLOW_SIGMAS: f32 = 5.0;
/// Fraction of the limit by which a rank must be slower in each part.
const IN_EACH_PART: f32 = 0.5;
/// Eighth of the levels that is the reference: the median.
const MEDIAN_EIGHTHS: usize = 4;

/// What is known about one rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Sums {
    /// Sum and number of the values of the current part.
    sum: f32,
    count: u16,
    /// Sum and minimum of the deviations from the peers in the earlier parts.
    total: f32,
    least: f32,
}

/// The parts so far; empty before the learning phase and after the decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SecondLook {
    /// Number of steps of the current part, and of parts after the learning phase.
    steps: u16,
    parts: u16,
    ranks: Vec<Sums>,
}

impl SecondLook {
    /// Returns true if the number of ranks is possible.
    pub(super) fn is_sound(&self, ranks: usize) -> bool {
        self.ranks.is_empty() || self.ranks.len() == ranks
    }
}

impl Channel {
    /// Begins with the learning phase as the first part.
    pub(super) fn begin_second_look(&mut self, layout: &Layout) {
        if self.tuning.by_role && layout.peers == Peers::Role {
            let none = Sums { sum: 0.0, count: 0, total: 0.0, least: f32::INFINITY };
            self.second_look.ranks = vec![none; layout.len()];
            self.end_part(self.level.clone(), layout);
        }
    }

    /// Adds the effects of the ranks in a step.
    pub(super) fn look_again(&mut self, values: &[f32], layout: &Layout) {
        let look = &mut self.second_look;
        if look.ranks.is_empty() || !values.iter().any(|value| value.is_finite()) {
            return;
        }
        for (rank, (sums, value)) in look.ranks.iter_mut().zip(values).enumerate() {
            let value = self.ranks.clip(rank, *value, CLIP);
            if value.is_finite() {
                sums.sum += value;
                sums.count = sums.count.saturating_add(1);
            }
        }
        look.steps = look.steps.saturating_add(1);
        if usize::from(look.steps) < LEARN_STEPS {
            return;
        }
        (look.steps, look.parts) = (0, look.parts.saturating_add(1));
        let mean = |sums: &Sums| if sums.count < VALUES_MIN { f32::NAN } else { sums.sum / f32::from(sums.count) };
        let levels = look.ranks.iter().zip(&self.level).map(|(sums, level)| level + mean(sums)).collect();
        self.end_part(levels, layout);
        if self.second_look.parts >= PARTS {
            let look = std::mem::take(&mut self.second_look);
            self.decide(&look.ranks, layout);
        }
    }

    /// Adds the deviations of these levels from those of the peers.
    fn end_part(&mut self, mut levels: Vec<f32>, layout: &Layout) {
        let picked = &mut Vec::new();
        for pool in 0..layout.pools.count() {
            remove(&mut levels, picked, layout.pools.ranks(pool), MEDIAN_EIGHTHS);
        }
        if layout.has_replicas() {
            for replica in 0..layout.replicas.count() {
                remove(&mut levels, picked, layout.replicas.ranks(replica), MEDIAN_EIGHTHS);
            }
        }
        for (sums, deviation) in self.second_look.ranks.iter_mut().zip(levels) {
            let (total, least) = (sums.total + deviation, sums.least.min(deviation));
            *sums = Sums { sum: 0.0, count: 0, total, least };
        }
    }

    /// Replaces the usual value of ranks that are slow from the start by the one of their peers.
    fn decide(&mut self, ranks: &[Sums], layout: &Layout) {
        let limits = self.limits(Level::Rank);
        let means: Vec<f32> = ranks.iter().map(|sums| sums.total / f32::from(PARTS + 1)).collect();
        let of_all = deviation(&mut means.iter().copied().filter(|mean| mean.is_finite()).collect::<Vec<_>>(), 0.0);
        for pool in 0..layout.pools.count() {
            let peers = layout.pools.ranks(pool);
            let mut known: Vec<f32> = peers.iter().map(|rank| means[*rank as usize]).collect();
            known.retain(|mean| mean.is_finite());
            if known.len() < SLOW_FROM_START_PEERS {
                continue;
            }
            let usual = median(&mut known);
            let limit = self.limit(deviation(&mut known, usual), of_all, peers);
            let is_slow = |rank: &usize| {
                means[*rank] - usual > limit
                    && ranks[*rank].least > IN_EACH_PART * limit
                    && self.is_open(*rank, &limits)
            };
            let slow: Vec<usize> = peers.iter().map(|rank| *rank as usize).filter(is_slow).collect();
            let is_other = |rank: &&u32| self.from_start[**rank as usize] && !slow.contains(&(**rank as usize));
            if (slow.len() + peers.iter().filter(is_other).count()) * SLOW_FROM_START_SHARE > peers.len() {
                continue;
            }
            for rank in slow {
                if !std::mem::replace(&mut self.from_start[rank], true) {
                    self.level[rank] -= means[rank] - usual;
                }
                self.ranks.suspect(rank, &limits);
            }
        }
    }

    /// Returns the minimum mean deviation of a slow rank. A few peers show their scatter inexactly: that of all ranks
    /// counts as much.
    #[allow(clippy::cast_precision_loss, reason = "a small number of rows")]
    fn limit(&self, of_peers: f32, of_all: f32, peers: &[u32]) -> f32 {
        let scatter = (of_peers.powi(2) / 2.0 + of_all.powi(2) / 2.0).sqrt().max(PEERS_SIGMA_MIN);
        let mut sigmas: Vec<f32> = peers.iter().map(|rank| self.ranks.sigma(*rank as usize)).collect();
        let values = f32::from(PARTS + 1) * self.tuning.learn as f32;
        let error = median(&mut sigmas) * (MEDIAN_VARIANCE / values).sqrt();
        SLOW.max(SLOW_SIGMAS * scatter.hypot(error))
    }

    /// Returns true if no test of the rank decides: it is not blamed, and has not become slower since the learning
    /// phase.
    fn is_open(&self, rank: usize, limits: &Limits) -> bool {
        !self.ranks.is_blamed(rank) && (self.from_start[rank] || !self.ranks.is_suspicious(rank, limits))
    }
}

//! Finds ranks that are slow from the first step, in the values from which their usual ones are learned.

use super::channel::Channel;
use super::layout::{Layout, Peers};
use super::stats::{deviation, median};
use super::track::MEDIAN_VARIANCE;

/// Minimum deviation from the peers of a rank that is slow from the start (natural logarithm).
const SLOW_FROM_START: f32 = 0.085;
/// The same in robust standard deviations of the peers.
const SLOW_FROM_START_SIGMAS: f32 = 6.0;
/// Minimum robust standard deviation of peers.
pub(super) const PEERS_SIGMA_MIN: f32 = 0.01;
/// Minimum number of peers of a rank that is slow from the start.
pub(super) const SLOW_FROM_START_PEERS: usize = 6;
/// One of this number of peers may be slow from the start; more are an uneven load.
pub(super) const SLOW_FROM_START_SHARE: usize = 6;

impl Channel {
    /// Replaces the usual value of ranks that are slower than all their peers by the one of these peers.
    pub(super) fn find_slow_from_start(&mut self, rows: &[f32], layout: &Layout) {
        self.from_start = vec![false; layout.len()];
        if !self.tuning.by_role || layout.peers != Peers::Role {
            return;
        }
        for pool in 0..layout.pools.count() {
            let ranks = layout.pools.ranks(pool);
            let mut levels: Vec<f32> = ranks.iter().map(|rank| self.level[*rank as usize]).collect();
            levels.retain(|level| level.is_finite());
            if levels.len() < SLOW_FROM_START_PEERS {
                continue;
            }
            let usual = median(&mut levels);
            let sigma = deviation(&mut levels, usual).max(PEERS_SIGMA_MIN).hypot(self.level_error(rows, ranks));
            let limit = SLOW_FROM_START.max(SLOW_FROM_START_SIGMAS * sigma);
            let is_slow = |rank: &&u32| self.level[**rank as usize] - usual > limit;
            let slow: Vec<u32> = ranks.iter().filter(is_slow).copied().collect();
            if slow.len() * SLOW_FROM_START_SHARE <= ranks.len() {
                for rank in slow {
                    (self.level[rank as usize], self.from_start[rank as usize]) = (usual, true);
                }
            }
        }
    }

    /// Returns the standard error of the usual values of these ranks.
    #[allow(clippy::cast_precision_loss, reason = "a small number of rows")]
    fn level_error(&self, rows: &[f32], ranks: &[u32]) -> f32 {
        let all = self.level.len();
        let distances = ranks.iter().flat_map(|rank| {
            let (rank, level) = (*rank as usize, self.level[*rank as usize]);
            rows.iter().skip(rank).step_by(all).map(move |value| value - level)
        });
        let mut distances: Vec<f32> = distances.filter(|distance| distance.is_finite()).collect();
        deviation(&mut distances, 0.0) * (MEDIAN_VARIANCE / self.tuning.learn as f32).sqrt()
    }
}

//! The only source of randomness in a simulated job: one seeded generator, which is passed to all parts.
//!
//! It never reads the machine's entropy, so a seed always names the same job.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// A seeded generator with the draws that the simulation needs.
#[derive(Debug)]
pub(super) struct Dice(StdRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(StdRng::seed_from_u64(seed))
    }

    /// Draws a number from `0..n`; returns 0 if `n` is 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n.max(1))
    }

    /// Draws a number from `low..=high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high.max(low))
    }

    /// Returns true in `permille` of a thousand cases.
    pub(super) fn chance(&mut self, permille: u32) -> bool {
        self.0.random_range(0..1000) < permille
    }

    /// Draws a time from `low_ms` to `high_ms` milliseconds, in whole microseconds.
    pub(super) fn ms(&mut self, low_ms: u64, high_ms: u64) -> Duration {
        Duration::from_micros(self.between(low_ms * 1000, high_ms * 1000))
    }

    /// Draws one of the given items; returns `None` if there are none.
    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// Draws a number from `low..=high` whose logarithm is evenly distributed: small numbers are as likely as large
    /// ones.
    pub(super) fn log_uniform(&mut self, low: u32, high: u32) -> u32 {
        let (low, high) = (low.max(1), high.max(low).max(1));
        let octaves = f64::from(high.saturating_add(1)).log2() - f64::from(low).log2();
        let drawn = f64::from(low) * (octaves * self.0.random::<f64>()).exp2();
        // In range by construction; the clamp is for the last bit of the arithmetic.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let whole = drawn as u32;
        whole.clamp(low, high)
    }

    /// Changes the items to a random order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_its_draws_and_sizes_are_log_uniform() {
        let mut dice = Dice::new(7);
        let sizes: Vec<u32> = (0..2000).map(|_| dice.log_uniform(8, 512)).collect();
        assert!(sizes.iter().all(|n| (8..=512).contains(n)));
        let small = sizes.iter().filter(|n| **n < 64).count();
        assert!((850..1150).contains(&small), "half of them lie below the geometric mean: {small}");
        let mut again = Dice::new(7);
        assert!(sizes.iter().all(|n| *n == again.log_uniform(8, 512)));
    }
}

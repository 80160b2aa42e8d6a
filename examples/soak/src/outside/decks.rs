//! The order of a soak run's injections: decks of all kinds, each shuffled by a seed.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// Returns `count` kinds in random order, each with a seed of its own for victims and moments. Each deck contains all
/// of `kinds` (a repeated kind as often as it is repeated), so that few injections cover as many kinds as possible.
pub(crate) fn decks<K: Copy>(kinds: &[K], count: usize, seed: u64) -> Vec<(K, u64)> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut plan = Vec::new();
    while plan.len() < count && !kinds.is_empty() {
        let mut deck = kinds.to_vec();
        deck.shuffle(&mut dice);
        plan.extend(deck.into_iter().map(|kind| (kind, dice.random())));
    }
    plan.truncate(count);
    plan
}

/// Returns a random duration of `from` to `to` milliseconds.
pub(crate) fn within_ms(dice: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(dice.random_range(from..to))
}

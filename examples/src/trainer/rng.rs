//! A small random number generator whose whole state is one word.
//!
//! It is SplitMix64 (Steele, Lea and Flood, 2014): quick, well distributed and easy to put into a checkpoint. It is never
//! seeded from a clock or the operating system, and it is not for secrets.

/// The generator. Two of them with the same state return the same numbers on every machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rng {
    state: u64,
}

impl Rng {
    /// Creates a generator that continues from `state`, which is a seed or a result of [`Rng::state`].
    pub(super) fn new(state: u64) -> Self {
        Self { state }
    }

    /// Creates a separate generator for each (`seed`, `purpose`, `index`), for numbers that are needed out of order.
    pub(super) fn for_purpose(seed: u64, purpose: u64, index: u64) -> Self {
        let purpose_seed = Self::new(seed ^ Self::new(purpose).next_u64()).next_u64();
        Self::new(purpose_seed ^ Self::new(index).next_u64())
    }

    /// Returns the state, on which all later numbers depend.
    pub(super) fn state(&self) -> u64 {
        self.state
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in `-1.0 .. 1.0`, one of 2^24 that f32 represents exactly.
    pub(super) fn symmetric_f32(&mut self) -> f32 {
        const STEPS: f32 = (1_u32 << 23) as f32;
        (self.next_u64() >> 40) as f32 / STEPS - 1.0
    }

    /// Shuffles `items` (Fisher and Yates). The bias of `%` is under 2^-50 for the lengths used here.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder is at most the index `last`")]
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let choices = last as u64 + 1;
            items.swap(last, (self.next_u64() % choices) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_numbers() {
        // The first outputs of the reference implementation for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn goes_on_from_a_saved_state() {
        let mut rng = Rng::new(7);
        rng.next_u64();
        let mut copy = Rng::new(rng.state());
        assert_eq!(rng.next_u64(), copy.next_u64());
    }

    #[test]
    fn purposes_and_indices_have_streams_of_their_own() {
        let mut firsts: Vec<u64> = Vec::new();
        for purpose in 0..4 {
            firsts.extend((0..4).map(|index| Rng::for_purpose(1, purpose, index).next_u64()));
        }
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 16);
    }

    #[test]
    fn symmetric_numbers_stay_in_range_and_have_mean_zero() {
        let mut rng = Rng::new(3);
        let drawn: Vec<f32> = (0..10_000).map(|_| rng.symmetric_f32()).collect();
        assert!(drawn.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!((drawn.iter().sum::<f32>() / 10_000.0).abs() < 0.02);
    }

    #[test]
    fn a_shuffle_loses_no_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::new(5).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}

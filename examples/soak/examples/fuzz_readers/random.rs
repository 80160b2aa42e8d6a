//! Pseudo-random numbers (`SplitMix64`, Steele et al. 2014): one number names a case, and repeats it for ever.

/// A sequence.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of one case.
    pub(crate) fn of_case(seed: u64, case: u64) -> Random {
        let mut first = Random(seed ^ 0x5851_f42d_4c95_7f2d);
        let mixed = first.next();
        Random(mixed ^ case.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number below `limit`; 0 if the limit is 0.
    #[allow(clippy::cast_possible_truncation, reason = "below a limit that is an index")]
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next() % limit as u64) as usize }
    }

    /// Returns true in one of `in_cases` cases.
    pub(crate) fn is_one_in(&mut self, in_cases: usize) -> bool {
        self.below(in_cases) == 0
    }

    /// Returns one of the values.
    pub(crate) fn pick<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        &values[self.below(values.len())]
    }

    /// Returns a number that is likely to break arithmetic.
    pub(crate) fn extreme(&mut self) -> u64 {
        const EDGES: [u64; 12] = [
            0,
            1,
            1 << 31,
            u32::MAX as u64,
            1 << 53,
            1_000_000_000_000_000_000,
            i64::MAX as u64,
            1 << 63,
            u64::MAX,
            u64::MAX / 1000,
            1_790_857_026_000_000_000,
            4096,
        ];
        let edge = *self.pick(&EDGES);
        match self.below(4) {
            0 => edge,
            1 => edge.wrapping_sub(self.next() % 4),
            2 => edge.wrapping_add(self.next() % 4),
            _ => self.next() >> self.below(64),
        }
    }
}

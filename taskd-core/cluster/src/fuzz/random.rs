//! Pseudo-random numbers (`SplitMix64`, Steele et al. 2014): one number names a case, and repeats it for ever.

/// A sequence.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

/// Numbers at which arithmetic and lengths break.
const EDGES: [u64; 10] = [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, u32::MAX as u64, i64::MAX as u64, 1 << 63, u64::MAX];

impl Random {
    /// Returns the sequence of one case.
    pub(super) fn of_case(seed: u64, case: u64) -> Random {
        let mut first = Random(seed ^ 0x5851_f42d_4c95_7f2d);
        let mixed = first.next();
        Random(mixed ^ case.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// Returns the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number below `limit`; 0 if the limit is 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % (limit.max(1) as u64)).unwrap_or(0)
    }

    /// Returns one of the values; `None` if there is none.
    pub(super) fn pick<'a, T>(&mut self, values: &'a [T]) -> Option<&'a T> {
        values.get(self.below(values.len()))
    }

    /// Returns a byte.
    pub(super) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Returns a number that is likely to break arithmetic.
    pub(super) fn extreme(&mut self) -> u64 {
        let edge = self.pick(&EDGES).copied().unwrap_or(0);
        match self.below(4) {
            0 => edge,
            1 => edge.wrapping_sub(self.next() % 4),
            2 => edge.wrapping_add(self.next() % 4),
            _ => self.next() >> self.below(64),
        }
    }
}

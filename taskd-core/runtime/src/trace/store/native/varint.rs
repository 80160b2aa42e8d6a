//! Variable-length integers (LEB128): seven bits per byte, lowest first, the top bit set in all but the last byte.

/// Maximum length of an integer in bytes.
const BYTES_MAX: usize = 10;

/// Appends an integer.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    if value < 0x80 {
        return out.push(low_byte(value));
    }
    let mut bytes = [0; BYTES_MAX];
    let mut length = 0;
    for byte in &mut bytes {
        length += 1;
        if value < 0x80 {
            *byte = low_byte(value);
            break;
        }
        *byte = low_byte(value) | 0x80;
        value >>= 7;
    }
    out.extend_from_slice(&bytes[..length]);
}

/// Appends the length of the bytes, then the bytes.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

const fn low_byte(value: u64) -> u8 {
    (value & 0xff) as u8
}

/// Encodes a signed difference of two integers, modulo 2^64, so that small ones of either sign are short.
#[inline]
pub(super) const fn zig_zag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference.cast_signed() >> 63).cast_unsigned())
}

/// Decodes the difference.
#[inline]
pub(super) const fn un_zig_zag(short: u64) -> u64 {
    (short >> 1) ^ (short & 1).wrapping_neg()
}

/// A reader over bytes. For any input, reading stays within them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    /// Reads the next integer; `None` if the bytes end within it, or it has more than 64 bits.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u64> {
        match self.0 {
            [only, rest @ ..] if *only < 0x80 => {
                self.0 = rest;
                Some(u64::from(*only))
            }
            _ => self.next_of_several_bytes(),
        }
    }

    #[inline]
    fn next_of_several_bytes(&mut self) -> Option<u64> {
        let mut value = 0;
        for (at, byte) in self.0.iter().take(BYTES_MAX).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return (at + 1 < BYTES_MAX || *byte < 2).then_some(value);
            }
        }
        None
    }

    /// Reads the next integer, which must fit in 32 bits.
    pub(super) fn next_u32(&mut self) -> Option<u32> {
        self.next().and_then(|value| u32::try_from(value).ok())
    }

    /// Reads a count of items of at least one byte each, so it must not exceed the number of bytes left.
    pub(super) fn next_count(&mut self) -> Option<usize> {
        self.next().and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= self.0.len())
    }

    /// Reads `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads the next length, and that many bytes.
    pub(super) fn next_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.next_count()?;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_integer_comes_back_and_nothing_is_left(value: u64) {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            let mut input = Bytes(&bytes);
            prop_assert_eq!((input.next(), input.0.len()), (Some(value), 0));
            prop_assert_eq!(un_zig_zag(zig_zag(value)), value);
        }

        #[test]
        fn bytes_that_are_no_integer_are_none(bytes in prop::collection::vec(0x80..=0xffu8, 0..20)) {
            prop_assert_eq!(Bytes(&bytes).next(), None);
        }
    }

    #[test]
    fn small_differences_of_either_sign_take_one_byte() {
        let one_below = 1u64.wrapping_sub(2);
        assert_eq!([0, 1, one_below].map(zig_zag), [0, 2, 1]);
    }

    #[test]
    fn more_than_64_bits_are_no_integer() {
        let mut bytes = [0xff; BYTES_MAX];
        bytes[BYTES_MAX - 1] = 2;
        assert_eq!(Bytes(&bytes).next(), None);
    }
}

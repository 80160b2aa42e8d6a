//! The slots of a cache of texts. Each text has one slot and replaces the previous text there, so memory is bounded and
//! lookups need no search.

/// Number of slots in a cache of texts, a power of two. Each text has one slot.
pub const SLOTS: usize = 1 << 12;

/// Returns the index of the cache slot for a text whose hash is `hash`.
#[inline]
pub fn slot(hash: u64) -> usize {
    usize::try_from(hash >> 52).unwrap_or(0) % SLOTS
}

/// Returns a hash of a text, computed from eight bytes at a time. Collisions are harmless, since callers compare
/// the texts as well.
#[inline]
pub fn hash(bytes: &[u8]) -> u64 {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = chunks.iter().chain(std::iter::once(&last)).map(|chunk| u64::from_le_bytes(*chunk));
    words.fold(bytes.len() as u64, |hash, word| (hash.rotate_left(23) ^ word).wrapping_mul(SPREAD))
}

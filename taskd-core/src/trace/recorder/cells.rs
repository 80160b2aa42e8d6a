//! What a ring is made of. The model check of the ring has cells of its own in the place of these.
//!
//! It has no behaviour.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Words of a record: what a slot holds besides its mark.
pub(super) const RECORD_WORDS: usize = 7;

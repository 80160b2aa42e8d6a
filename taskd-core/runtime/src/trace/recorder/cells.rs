//! The atomic cells of a ring. The model check of the ring substitutes its own cells for these.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Words of a record: the contents of a slot besides its mark.
pub(super) const RECORD_WORDS: usize = 7;

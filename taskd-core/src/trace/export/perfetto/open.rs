//! What is open in a process: ranges that have begun, and ends that came before their beginnings.
//!
//! It shows nothing: it finds what belongs together.

use super::tracks::Place;
use crate::trace::TimedRecord;
use std::collections::{BTreeMap, VecDeque};

/// So many ends of a process can wait for their beginnings, which another thread's records may still tell; beyond them the
/// oldest has none.
pub const EARLY_ENDS_MAX: usize = 1024;

/// What is open in one process.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) open: BTreeMap<u64, Open>,
    pub(super) early: EarlyEnds,
    pub(super) last_nanos: u64,
}

/// A range that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) place: Place,
    pub(super) begun: u64,
}

/// Ends whose beginnings have not come yet: of two threads' records those of the one that ended the range may come first.
#[derive(Debug, Default)]
pub(super) struct EarlyEnds {
    by_range: BTreeMap<u64, TimedRecord>,
    /// In the order in which they came; some have found their beginning since.
    order: VecDeque<u64>,
}

impl EarlyEnds {
    /// Keeps an end; how many had to give way to it.
    pub(super) fn keep(&mut self, range: u64, end: TimedRecord) -> u64 {
        let oldest = if self.order.len() < EARLY_ENDS_MAX { None } else { self.order.pop_front() };
        let pushed_out = oldest.and_then(|oldest| self.by_range.remove(&oldest));
        self.order.push_back(range);
        let replaced = self.by_range.insert(range, end);
        u64::from(pushed_out.is_some()) + u64::from(replaced.is_some())
    }

    /// The end of a range that begins only now.
    pub(super) fn find(&mut self, range: u64) -> Option<TimedRecord> {
        self.by_range.remove(&range)
    }

    /// How many are waiting.
    pub(super) fn len(&self) -> u64 {
        self.by_range.len() as u64
    }
}

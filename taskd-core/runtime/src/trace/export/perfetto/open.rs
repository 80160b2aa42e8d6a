//! Open ranges of a process, and ends that arrived before their beginnings.

use super::tracks::Place;
use crate::trace::TimedRecord;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of ends of ranges of one process that wait for their beginnings, which may still arrive in
/// another thread's records. Beyond it, the oldest end is treated as an end without a beginning.
pub const EARLY_ENDS_MAX: usize = 1024;

/// Open ranges and early ends of one process.
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

/// Ends whose beginning has not arrived yet: the records of the thread that ended a range may arrive before those of
/// the thread that began it.
#[derive(Debug, Default)]
pub(super) struct EarlyEnds {
    by_range: BTreeMap<u64, TimedRecord>,
    /// In the order of arrival; the beginning of some has arrived since.
    order: VecDeque<u64>,
}

impl EarlyEnds {
    /// Stores an end. Returns the number of ends that were discarded for it.
    pub(super) fn keep(&mut self, range: u64, end: TimedRecord) -> u64 {
        let oldest = if self.order.len() < EARLY_ENDS_MAX { None } else { self.order.pop_front() };
        let pushed_out = oldest.and_then(|oldest| self.by_range.remove(&oldest));
        self.order.push_back(range);
        let replaced = self.by_range.insert(range, end);
        u64::from(pushed_out.is_some()) + u64::from(replaced.is_some())
    }

    /// Removes and returns the end of a range that begins only now.
    pub(super) fn find(&mut self, range: u64) -> Option<TimedRecord> {
        self.by_range.remove(&range)
    }

    /// Returns the number of waiting ends.
    pub(super) fn len(&self) -> u64 {
        self.by_range.len() as u64
    }
}

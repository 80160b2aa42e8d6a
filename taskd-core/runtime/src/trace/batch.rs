//! Records outside of the memory in which they were made, with their origin and their calendar time.
//!
//! Plain data, shared by store, exports and reducers; no access to memory or files.

use super::recorder::{Detail, Event, Kind, NameId};
use crate::job::{Incarnation, Rank};
use std::sync::Arc;

/// The process that made a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Rank of the process.
    pub rank: Rank,
    /// Incarnation of the rank, which distinguishes this process from the other successive processes of the rank.
    pub incarnation: Incarnation,
    /// Process id.
    pub pid: u32,
}

/// Trace records of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordBatch {
    /// Process that made the records.
    pub origin: Origin,
    /// Table of the names to which the records refer.
    pub names: Arc<NameTable>,
    /// Number of this process's records that were lost since the previous batch.
    pub lost: u64,
    /// The trace records of the batch. The records of one thread are in the order in which they were made; those of
    /// several threads are interleaved. Imported records (all [spans](Event::Span) are imported) are at the place where
    /// they were imported, whatever their times are.
    pub records: Vec<TimedRecord>,
}

/// One record with its calendar time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedRecord {
    /// Time of the record (for a span, of its beginning), in nanoseconds since 1970; 0 for an imported record without a
    /// known time. The times of one process are its monotonic clock plus a constant offset, so the times of one thread
    /// never decrease, even if the system's calendar is set.
    pub unix_nanos: u64,
    /// System id of the thread that did the recorded activity; 0 if no thread did it (as for work of a device), or if
    /// the thread is unknown.
    pub thread: u32,
    /// Kind of the recorded activity, such as a step or a collective.
    pub kind: Kind,
    /// Form of the record: beginning or end of a range, instant, value of a counter, or complete span.
    pub event: Event,
    /// Name of the activity, as its number in the batch's table of names; 0 in the record of the end of a range.
    pub name: NameId,
    /// Further data of the record, which depends on its kind.
    pub detail: Detail,
}

/// Table of the names in one process's trace records, numbered from 1. Append-only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTable(Vec<Box<str>>);

impl NameTable {
    /// Returns the name with this number; empty for 0 and for a number that is not in the table.
    #[must_use]
    pub fn get(&self, id: NameId) -> &str {
        id.0.checked_sub(1).and_then(|at| self.0.get(at as usize)).map_or("", |name| name)
    }

    /// Appends a name and returns its number; 0 (no name) if the table already has 2^32 names.
    pub fn push(&mut self, name: &str) -> NameId {
        self.0.push(name.into());
        NameId(u32::try_from(self.0.len()).unwrap_or(0))
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the table has no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over all names with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (NameId, &str)> {
        (1..).map(NameId).zip(self.0.iter().map(|name| &**name))
    }
}

impl<S: AsRef<str>> FromIterator<S> for NameTable {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> NameTable {
        NameTable(names.into_iter().map(|name| name.as_ref().into()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_from_one() {
        let mut names: NameTable = ["forward"].into_iter().collect();
        assert_eq!(names.push("all_reduce"), NameId(2));
        assert_eq!([0, 1, 2, 3].map(|id| names.get(NameId(id))), ["", "forward", "all_reduce", ""]);
        assert_eq!(names.iter().last(), Some((NameId(2), "all_reduce")));
    }
}

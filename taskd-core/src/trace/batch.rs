//! Records outside of the memory in which they were made: whose they are, and when they were by the calendar.
//!
//! Plain data, which store, exports and reducers share. It reads no memory and no file.

use super::recorder::{Detail, Event, Kind, NameId};
use crate::job::{Incarnation, Rank};
use std::sync::Arc;

/// Which process recorded something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Its rank.
    pub rank: Rank,
    /// Which start of the rank it was.
    pub incarnation: Incarnation,
    /// Its process id.
    pub pid: u32,
}

/// Records of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordBatch {
    /// Which process.
    pub origin: Origin,
    /// The names that the records use.
    pub names: Arc<NameTable>,
    /// Records that are missing since the batch before.
    pub lost: u64,
    /// Those of a thread in the order in which they were made; those of several threads side by side. Those that somebody else
    /// has brought, as all [spans](Event::Span) are, stand where they were brought, whatever their times are.
    pub records: Vec<TimedRecord>,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedRecord {
    /// Nanoseconds since 1970, of a span when it began. Those of one process are its monotonic clock and an offset that
    /// never changes, so those of a thread never go back, whatever becomes of the calendar. 0: unknown, of what somebody else
    /// has recorded.
    pub unix_nanos: u64,
    /// The thread's id in the system; 0 for what no thread did, as a device's work, and where nobody knows.
    pub thread: u32,
    /// What was done.
    pub kind: Kind,
    /// Its beginning, its end, a moment, a figure, or all of it.
    pub event: Event,
    /// How it is called, a number of the batch's table; 0 for an end.
    pub name: NameId,
    /// What its kind says besides.
    pub detail: Detail,
}

/// The names of one process, by number from 1. It only ever grows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTable(Vec<Box<str>>);

impl NameTable {
    /// The name of a number; empty for 0, and for one that is not in the table.
    #[must_use]
    pub fn get(&self, id: NameId) -> &str {
        id.0.checked_sub(1).and_then(|at| self.0.get(at as usize)).map_or("", |name| name)
    }

    /// Adds a name behind the others; its number is 0, which is no name, when there are 2^32 of them.
    pub fn push(&mut self, name: &str) -> NameId {
        self.0.push(name.into());
        NameId(u32::try_from(self.0.len()).unwrap_or(0))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All names with their numbers.
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

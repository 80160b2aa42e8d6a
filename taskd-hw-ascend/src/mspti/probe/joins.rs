//! Pairs starts and ends of ranges, of the host and of the device. mspti gives all of them the same id, and only one of
//! them a name.
//!
//! The number of open ranges is bounded. Ids increase, so nearly every range is found in a slot given by the id's
//! lowest bits. A range whose slot is needed by another one moves to an overflow table, which drops its oldest range,
//! counted, when full.

use super::cache::Meaning;
use super::records::Stream;
use std::collections::BTreeMap;

/// Number of slots that the lowest bits of the id select.
const NEAR: usize = 1 << 15;
/// Maximum number of open ranges in the overflow table. A range moves to this table when another range needs its
/// slot.
pub const FAR_MAX: usize = 1 << 12;

/// A range that has not ended yet, or an instant that the device records, too. Contains the data of those of its
/// records that have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Open {
    pub id: u64,
    /// Start time of the range on the host, in nanoseconds since 1970. The record with this time also provides `thread`
    /// and `meaning`.
    pub begun: u64,
    pub thread: u32,
    pub meaning: Option<Meaning>,
    /// True if the kind of the range was on when the range started.
    pub is_on: bool,
    pub has_device: bool,
    pub is_host_over: bool,
    /// Time at which the device began the range's work, in nanoseconds since 1970; 0 until mspti reports it.
    pub device_begun: u64,
    /// Time at which the device ended the range's work, in nanoseconds since 1970; 0 until mspti reports it.
    pub device_ended: u64,
    pub place: Stream,
}

/// All ranges that have not ended yet, by the id that mspti gives them.
#[derive(Debug)]
pub struct Joins {
    near: Box<[Open]>,
    far: BTreeMap<u64, Open>,
    /// Number of ranges that were dropped before their end, because too many were open.
    pub forgotten: u64,
}

impl Default for Joins {
    fn default() -> Joins {
        Joins { near: vec![Open::default(); NEAR].into_boxed_slice(), far: BTreeMap::new(), forgotten: 0 }
    }
}

impl Joins {
    /// Returns the open range with this id, and creates it if necessary. Ids start at 1.
    #[inline]
    pub fn of(&mut self, id: u64) -> &mut Open {
        let at = place(id);
        if self.near[at].id != id {
            self.bring(at, id);
        }
        &mut self.near[at]
    }

    /// Returns the range with this id if it is open.
    #[inline]
    pub fn find(&mut self, id: u64) -> Option<&mut Open> {
        let at = place(id);
        if self.near[at].id == id {
            return Some(&mut self.near[at]);
        }
        self.far.get_mut(&id)
    }

    /// Removes the range with this id, which is finished.
    #[inline]
    pub fn remove(&mut self, id: u64) {
        let at = place(id);
        if self.near[at].id == id {
            self.near[at].id = 0;
        } else {
            self.far.remove(&id);
        }
    }

    /// Returns the number of open ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.near.iter().filter(|open| open.id != 0).count() + self.far.len()
    }

    #[cold]
    fn bring(&mut self, at: usize, id: u64) {
        let wanted = self.far.remove(&id).unwrap_or(Open { id, ..Open::default() });
        let before = std::mem::replace(&mut self.near[at], wanted);
        if before.id == 0 {
            return;
        }
        self.far.insert(before.id, before);
        if self.far.len() > FAR_MAX {
            self.far.pop_first(); // the oldest, since ids increase
            self.forgotten += 1;
        }
    }
}

#[inline]
fn place(id: u64) -> usize {
    usize::try_from(id % NEAR as u64).unwrap_or(0)
}

//! Beginnings and ends that belong together, of the host and of the device: mspti gives them one id, and a name to one of them
//! only.
//!
//! It holds a bounded number of open ranges. Ids count up, so nearly all are found where their lowest bits say; who is there
//! when another comes moves to a table beside it, and from there the oldest goes, and is counted.

use super::cache::Meaning;
use super::records::Stream;
use std::collections::BTreeMap;

/// Open ranges that are found at once.
const NEAR: usize = 1 << 15;
/// Open ranges beside those.
pub const FAR_MAX: usize = 1 << 12;

/// One range, or a moment with a device's half, as far as it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Open {
    pub id: u64,
    /// The host's beginning, its thread, and what its name says.
    pub begun: u64,
    pub thread: u32,
    pub meaning: Option<Meaning>,
    /// Its kind was on when it began.
    pub is_on: bool,
    pub has_device: bool,
    pub is_host_over: bool,
    /// The device's beginning and end; 0 until they are told.
    pub device_begun: u64,
    pub device_ended: u64,
    pub place: Stream,
}

/// All that are open.
#[derive(Debug)]
pub struct Joins {
    near: Box<[Open]>,
    far: BTreeMap<u64, Open>,
    /// Ranges that were forgotten before their end came.
    pub forgotten: u64,
}

impl Default for Joins {
    fn default() -> Joins {
        Joins { near: vec![Open::default(); NEAR].into_boxed_slice(), far: BTreeMap::new(), forgotten: 0 }
    }
}

impl Joins {
    /// The range of an id, which is made if it is not there. Ids begin at 1.
    #[inline]
    pub fn of(&mut self, id: u64) -> &mut Open {
        let at = place(id);
        if self.near[at].id != id {
            self.bring(at, id);
        }
        &mut self.near[at]
    }

    /// The range of an id, if it is open.
    #[inline]
    pub fn find(&mut self, id: u64) -> Option<&mut Open> {
        let at = place(id);
        if self.near[at].id == id {
            return Some(&mut self.near[at]);
        }
        self.far.get_mut(&id)
    }

    /// Forgets a range that is told.
    #[inline]
    pub fn remove(&mut self, id: u64) {
        let at = place(id);
        if self.near[at].id == id {
            self.near[at].id = 0;
        } else {
            self.far.remove(&id);
        }
    }

    /// How many are open.
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
            self.far.pop_first(); // the oldest, as ids count up
            self.forgotten += 1;
        }
    }
}

#[inline]
fn place(id: u64) -> usize {
    usize::try_from(id % NEAR as u64).unwrap_or(0)
}

//! The ranges of operations that have not completed, by the object that stands for the operation (its work). The class
//! `Ends` in `record_end.py` does the same in Python, and documents what ends a range.
//!
//! No work is kept alive. The lock is never held while Python runs, and all callers hold Python's lock, so no thread
//! ever waits for it.

use super::super::exports;
use super::api::Object;
use super::objects::{Outcome, Python, Ref};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Open {
    /// By address of the work.
    works: BTreeMap<usize, Entry>,
    /// The work of each weak reference, by their addresses.
    by_reference: BTreeMap<usize, usize>,
    /// Number of works so far.
    count: u64,
}

struct Entry {
    reference: Ref,
    range: u64,
    /// Position in the order of the works.
    position: u64,
    /// The framework's thread detects the completion, and the work can be asked whether it has completed.
    is_watched: bool,
}

// SAFETY: the references are used and dropped only under Python's lock, which all callers hold.
unsafe impl Send for Entry {}

static OPEN: Mutex<Open> = Mutex::new(Open { works: BTreeMap::new(), by_reference: BTreeMap::new(), count: 0 });

fn open() -> MutexGuard<'static, Open> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    fn take(&mut self, work: usize) -> Option<Entry> {
        let entry = self.works.remove(&work)?;
        self.by_reference.remove(&entry.reference.get().addr());
        Some(entry)
    }
}

/// Ends the range when the work completes or is dropped. `dropped` is the function object of [`dropped`].
pub(super) fn expect(
    python: Python,
    work: *mut Object,
    range: u64,
    is_watched: bool,
    dropped: *mut Object,
) -> Outcome<()> {
    let reference = python.weak_reference(work, dropped)?;
    let mut open = open();
    let replaced = open.take(work.addr());
    open.by_reference.insert(reference.get().addr(), work.addr());
    open.count += 1;
    let position = open.count;
    open.works.insert(work.addr(), Entry { reference, range, position, is_watched });
    std::mem::drop(open); // before Python runs
    std::mem::drop(replaced);
    Ok(())
}

/// Returns true if a range is open.
#[inline]
pub(super) fn has_any() -> bool {
    !open().works.is_empty()
}

/// Returns true if the range of this work is open.
#[inline]
pub(super) fn has(work: *mut Object) -> bool {
    open().works.contains_key(&work.addr())
}

/// Ends the range of the work at an address, if it is open. Only one caller ends it.
#[inline]
pub(super) fn finish(work: usize) {
    let taken = open().take(work); // releases the lock before the reference is dropped
    if let Some(entry) = taken {
        exports::taskd_end(entry.range);
    }
}

/// Ends the range of a work that has ended.
pub(super) fn dropped(reference: *mut Object) {
    let work = open().by_reference.get(&reference.addr()).copied();
    if let Some(work) = work {
        finish(work);
    }
}

/// Ends the ranges of all watched works that are over. `is_over` takes a work, and whether it is the latest one.
pub(super) fn sweep(python: Python, is_over: impl Fn(*mut Object, bool) -> Outcome<bool>) -> Outcome<()> {
    let watched: Vec<(u64, usize, Ref)> = open()
        .works
        .iter()
        .filter(|(_, entry)| entry.is_watched)
        .map(|(work, entry)| (entry.position, *work, python.keep(entry.reference.get())))
        .collect();
    let latest = watched.iter().map(|(position, ..)| *position).max();
    for (position, address, reference) in watched {
        let work = python.call_none(reference.get())?;
        if !python.is_none(work.get()) && is_over(work.get(), Some(position) == latest)? {
            finish(address);
        }
    }
    Ok(())
}

/// Forgets all ranges, in a forked process: they are the parent's.
pub(super) fn forget() {
    let (works, _) = {
        let mut open = open();
        (std::mem::take(&mut open.works), std::mem::take(&mut open.by_reference))
    };
    drop(works); // after the lock
}

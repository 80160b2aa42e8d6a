//! Python's lock.

use super::Python;

impl Python {
    /// Runs a function, which must not touch Python, without Python's lock.
    ///
    /// Once the interpreter ends, Python may end this thread instead of giving the lock to it: no caller may hold a value
    /// that has to be dropped.
    pub(in super::super) fn without_lock(self, work: fn()) {
        // SAFETY: a `Python` proves that this thread holds the lock.
        let thread = unsafe { (self.0.release_lock)() };
        work();
        // SAFETY: as above; `thread` is what releasing returned.
        unsafe { (self.0.take_lock)(thread) };
    }
}

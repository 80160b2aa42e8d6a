//! Exceptions that are taken out of a thread, to be reported or set again.

use super::super::api::Object;
use super::{Python, Ref};
use std::ptr::null_mut;

/// A Python exception that was taken out of its thread.
#[derive(Debug)]
pub(in super::super) struct Exception([*mut Object; 3], Python);

impl Python {
    /// Takes the exception that is set out of this thread.
    pub(in super::super) fn take_error(self) -> Exception {
        let [mut class, mut value, mut trace] = [null_mut(); 3];
        // SAFETY: this thread holds Python's lock, as for all of `Python`, and the addresses are valid for writing.
        unsafe { (self.0.take_error)(&raw mut class, &raw mut value, &raw mut trace) };
        Exception([class, value, trace], self)
    }
}

impl Exception {
    /// Sets the exception again.
    pub(in super::super) fn put_back(self) {
        let [class, value, trace] = self.0;
        // SAFETY: the references are owned, and are Python's from now on.
        unsafe { (self.1.0.put_error)(class, value, trace) }
    }

    /// Returns the exception object; None if no exception was set.
    pub(in super::super) fn object(self) -> Option<Ref> {
        let ([mut class, mut value, mut trace], python) = (self.0, self.1);
        // SAFETY: the references are owned, and the addresses valid for writing.
        unsafe { (python.0.complete_error)(&raw mut class, &raw mut value, &raw mut trace) };
        drop([class, trace].map(|object| python.owned(object)));
        python.owned(value).ok()
    }
}

//! C++ objects that objects of Python hold.

use super::super::class::HEADER_BYTES;
use super::{Object, Python};

impl Python {
    /// Returns the byte at a position of the C++ object that an object of Python holds, as a truth value; None if the
    /// object holds nothing.
    ///
    /// The class is one whose objects begin with a pointer to the C++ object, and whose C++ objects have a `bool` there:
    /// the framework's hook has found both for this class (`options.py`).
    #[inline]
    pub(in super::super) fn held_flag(self, object: *mut Object, position: usize) -> Option<bool> {
        // SAFETY: the object is of such a class, as this function's documentation requires of the caller.
        let held = unsafe { *object.byte_add(HEADER_BYTES).cast::<*const u8>() };
        // SAFETY: as above, and the byte is inside of the C++ object.
        (!held.is_null()).then(|| unsafe { *held.add(position) != 0 })
    }
}

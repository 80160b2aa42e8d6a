//! Libraries that are loaded while the program runs.
//!
//! None of them is ever closed.

use std::ffi::{CStr, c_char, c_int, c_void};

/// A library that is never closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle(*mut c_void);

/// `RTLD_NOW`.
pub(super) const NOW: c_int = 2;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

impl Handle {
    /// Loads a library, or finds it where it is loaded.
    pub(super) fn open(path: &CStr, flags: c_int) -> Option<Handle> {
        // SAFETY: `path` is a C string; what a library does when it is loaded is what whoever names it wants.
        let library = unsafe { dlopen(path.as_ptr(), flags) };
        (!library.is_null()).then_some(Handle(library))
    }

    /// Where a symbol is; null where there is none.
    pub(super) fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is open, and `name` is a C string.
        unsafe { dlsym(self.0, name.as_ptr()) }
    }

    /// A function.
    ///
    /// # Safety
    /// `F` must be the type of the function of this name.
    pub(super) unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address(name);
        // SAFETY: an address that is not null is that of a function of this type, as the caller has promised.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }
}

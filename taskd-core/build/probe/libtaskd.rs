//! `libtaskd.so` as its header has it (`taskd.h` of `taskd-core`), found where the launcher says.
//!
//! It records nothing by itself.

use super::Record;
use super::dl::{Handle, NOW};
use std::ffi::{CString, c_char, c_int};

/// The functions that are needed here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Libtaskd {
    open: unsafe extern "C" fn() -> c_int,
    switches: unsafe extern "C" fn() -> *const u64,
    name: unsafe extern "C" fn(*const c_char, usize) -> u32,
    hooked: unsafe extern "C" fn(u32),
    except: unsafe extern "C" fn(u32, *const c_char, usize),
    import: unsafe extern "C" fn(*const Record, usize) -> usize,
}

/// What `taskd_open` returns where it records.
const RECORDS: c_int = 1;

impl Libtaskd {
    /// The library that `TASKD_LIB` names; `None` without one, or with one of before `taskd_import`.
    pub(super) fn load() -> Option<Libtaskd> {
        let path = std::env::var_os("TASKD_LIB").filter(|path| !path.is_empty())?;
        let library = Handle::open(&CString::new(path.into_encoded_bytes()).ok()?, NOW)?;
        // SAFETY: these are the types of the library's functions, by its header.
        unsafe {
            Some(Libtaskd {
                open: library.function(c"taskd_open")?,
                switches: library.function(c"taskd_switches")?,
                name: library.function(c"taskd_name")?,
                hooked: library.function(c"taskd_hooked")?,
                except: library.function(c"taskd_except")?,
                import: library.function(c"taskd_import")?,
            })
        }
    }

    /// Whether this process records.
    pub(super) fn open(&self) -> bool {
        // SAFETY: it can be called at any time.
        unsafe { (self.open)() == RECORDS }
    }

    /// A bit for each kind that is on.
    pub(super) fn switches(&self) -> u64 {
        // SAFETY: the address is never null, and the word is there as long as the process.
        unsafe { std::ptr::read_volatile((self.switches)()) }
    }

    /// The number of a name.
    pub(super) fn name(&self, text: &[u8]) -> u32 {
        // SAFETY: a text and its length.
        unsafe { (self.name)(text.as_ptr().cast(), text.len()) }
    }

    /// Says that there is somebody who records a kind.
    pub(super) fn hooked(&self, kind: u32) {
        // SAFETY: it can be called at any time.
        unsafe { (self.hooked)(kind) }
    }

    /// Says why a kind is not recorded, or that nothing keeps it any more.
    pub(super) fn except(&self, kind: u32, reason: &str) {
        // SAFETY: a text and its length.
        unsafe { (self.except)(kind, reason.as_ptr().cast(), reason.len()) }
    }

    /// Brings records: how many were taken.
    pub(super) fn import(&self, records: &[Record]) -> usize {
        // SAFETY: an array and its length.
        unsafe { (self.import)(records.as_ptr(), records.len()) }
    }
}

//! `libtaskd.so` as its header has it (`taskd.h` of `taskd-core`), loaded from the path that the launcher sets.
//!
//! It records nothing by itself.

use crate::dl::{Handle, NOW};
use crate::record::Record;
use std::ffi::{CString, c_char, c_int};

/// The functions of `libtaskd.so`, taskd's recorder library, that probes use.
#[derive(Clone, Copy, Debug)]
pub struct Libtaskd {
    open: unsafe extern "C" fn() -> c_int,
    switches: unsafe extern "C" fn() -> *const u64,
    name: unsafe extern "C" fn(*const c_char, usize) -> u32,
    hooked: unsafe extern "C" fn(u32),
    except: unsafe extern "C" fn(u32, *const c_char, usize),
    import: unsafe extern "C" fn(*const Record, usize) -> usize,
}

/// Result of `taskd_open` if the process records.
const RECORDS: c_int = 1;

impl Libtaskd {
    /// Loads the library at the path in the environment variable `TASKD_LIB`. Returns `None` if the variable is not
    /// set, or if the library cannot be loaded or is too old to have `taskd_import`.
    pub fn load() -> Option<Libtaskd> {
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

    /// Begins to record if this process is a rank with memory for records; returns true if this process records.
    pub fn open(&self) -> bool {
        // SAFETY: it can be called at any time.
        unsafe { (self.open)() == RECORDS }
    }

    /// Returns the recorder's switches: one bit for each kind of trace record, set if the kind is on.
    pub fn switches(&self) -> u64 {
        // SAFETY: the address is never null, and the word is there as long as the process.
        unsafe { std::ptr::read_volatile((self.switches)()) }
    }

    /// Returns the number that the recorder gives to the name `text`. Equal names get the same number. 0: the recorder
    /// has no room for another name.
    pub fn name(&self, text: &[u8]) -> u32 {
        // SAFETY: a text and its length.
        unsafe { (self.name)(text.as_ptr().cast(), text.len()) }
    }

    /// Reports to the recorder that this program can make trace records of the given kind. Kinds that are not reported
    /// are shown as not supported.
    pub fn hooked(&self, kind: u32) {
        // SAFETY: it can be called at any time.
        unsafe { (self.hooked)(kind) }
    }

    /// Reports to the recorder why trace records of the given kind are not made. An empty reason withdraws the report.
    pub fn except(&self, kind: u32, reason: &str) {
        // SAFETY: a text and its length.
        unsafe { (self.except)(kind, reason.as_ptr().cast(), reason.len()) }
    }

    /// Passes records to the recorder. Returns the number of records that it took, counted from the first one.
    pub fn import(&self, records: &[Record]) -> usize {
        // SAFETY: an array and its length.
        unsafe { (self.import)(records.as_ptr(), records.len()) }
    }
}

//! `libcupti.so`: search path and functions.
//!
//! The probe does not link the library: a process without it runs as if the probe were absent.

use super::dl::{Handle, NOW};
use std::env;
use std::ffi::{OsString, c_char, c_int, c_void};
use std::ptr::null_mut;

/// CUPTI's result code for success.
const SUCCESS: c_int = 0;
/// `CUPTI_CB_DOMAIN_RUNTIME_API`.
const RUNTIME_API: c_int = 2;
/// `CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM`: the thread ids of the operating system.
const SYSTEM_THREADS: c_int = 1;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
const FORCED: u32 = 1;

pub(super) type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub(super) type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// CUPTI's functions: the required ones, and those that older libraries lack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cupti {
    register: unsafe extern "C" fn(Request, Complete) -> c_int,
    enable: unsafe extern "C" fn(c_int) -> c_int,
    disable: unsafe extern "C" fn(c_int) -> c_int,
    next: unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int,
    dropped: unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> c_int,
    flush_all: unsafe extern "C" fn(u32) -> c_int,
    flush_period: Option<unsafe extern "C" fn(u32) -> c_int>,
    timestamp: Option<unsafe extern "C" fn(*mut u64) -> c_int>,
    function_name: Option<unsafe extern "C" fn(c_int, u32, *mut *const c_char) -> c_int>,
    thread_ids: Option<unsafe extern "C" fn(c_int) -> c_int>,
    /// True if the library declares itself a stand-in without a GPU.
    pub(super) is_stand_in: bool,
}

/// Result code of a CUPTI call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(c_int);

impl Refused {
    /// Returns the meaning of the code as a sentence.
    pub(super) fn sentence(self) -> String {
        let meaning = match self.0 {
            14 => "its version does not match the driver's",
            15 => "CUDA is not initialized",
            21 => "this kind is not supported",
            26 => "other software uses the GPU's counters",
            35 => "the user is not allowed to profile (NVreg_RestrictProfilingToAdminUsers)",
            39 => "another profiler is active",
            _ => "internal error",
        };
        format!("cupti: {meaning} (result {})", self.0)
    }
}

impl Cupti {
    /// Finds and loads the library.
    ///
    /// # Errors
    /// The reason why it is unavailable, as a sentence.
    pub(super) fn load() -> Result<Cupti, String> {
        // A library that the program has loaded, such as PyTorch's own, takes precedence: two CUPTIs in one process
        // conflict.
        let found = Handle::find("TASKD_CUPTI_LIB", usual_places, &[NOW | LOADED_ONLY, NOW]);
        let (library, path) = found.map_err(|tried| {
            format!(
                "there is no libcupti.so (looked for: {tried}): install CUPTI of the CUDA toolkit, or name the file in \
                 TASKD_CUPTI_LIB"
            )
        })?;
        Cupti::of(&library).ok_or_else(|| format!("{path} lacks a function of CUPTI: use CUPTI of CUDA 11 or later"))
    }

    fn of(library: &Handle) -> Option<Cupti> {
        // SAFETY: these are the types of CUPTI's functions.
        unsafe {
            Some(Cupti {
                register: library.function(c"cuptiActivityRegisterCallbacks")?,
                enable: library.function(c"cuptiActivityEnable")?,
                disable: library.function(c"cuptiActivityDisable")?,
                next: library.function(c"cuptiActivityGetNextRecord")?,
                dropped: library.function(c"cuptiActivityGetNumDroppedRecords")?,
                flush_all: library.function(c"cuptiActivityFlushAll")?,
                flush_period: library.function(c"cuptiActivityFlushPeriod"),
                timestamp: library.function(c"cuptiGetTimestamp"),
                function_name: library.function(c"cuptiGetCallbackName"),
                thread_ids: library.function(c"cuptiSetThreadIdType"),
                is_stand_in: !library.address(c"taskd_standin_cupti").is_null(),
            })
        }
    }

    // SAFETY of the calls below: the functions have these types, every passed address is valid for the call, and none
    // of them is called from inside a function that CUPTI calls.

    pub(super) fn register(&self, request: Request, complete: Complete) -> Result<(), Refused> {
        // SAFETY: as above; both functions exist as long as the process, since this library is never unloaded.
        done(unsafe { (self.register)(request, complete) })
    }

    pub(super) fn set(&self, kind: u32, on: bool) -> Result<(), Refused> {
        let function = if on { self.enable } else { self.disable };
        // SAFETY: as above.
        done(unsafe { function(kind.cast_signed()) })
    }

    /// Makes CUPTI flush at this interval by itself. Returns false if the library cannot, so that
    /// [`flush`](Self::flush) is needed.
    pub(super) fn flush_every(&self, millis: u32) -> bool {
        // SAFETY: as above.
        self.flush_period.is_some_and(|flush_period| unsafe { flush_period(millis) } == SUCCESS)
    }

    /// Flushes completed records or, with `all`, all records.
    pub(super) fn flush(&self, all: bool) {
        // SAFETY: as above.
        unsafe { (self.flush_all)(if all { FORCED } else { 0 }) };
    }

    /// Returns the number of records that were dropped since the last call.
    pub(super) fn dropped(&self) -> u64 {
        let mut dropped = 0;
        // SAFETY: as above; no context and no stream selects the queue that all of them share.
        let result = unsafe { (self.dropped)(null_mut(), 0, &raw mut dropped) };
        if result == SUCCESS { dropped as u64 } else { 0 }
    }

    /// Returns CUPTI's clock in nanoseconds, or `None` if it is unavailable.
    pub(super) fn timestamp(&self) -> Option<u64> {
        let mut now = 0;
        // SAFETY: as above.
        let result = self.timestamp.map(|timestamp| unsafe { timestamp(&raw mut now) });
        (result == Some(SUCCESS) && now != 0).then_some(now)
    }

    /// Makes CUPTI report threads by the ids of the operating system.
    pub(super) fn use_system_threads(&self) {
        // SAFETY: as above.
        self.thread_ids.map(|thread_ids| unsafe { thread_ids(SYSTEM_THREADS) });
    }

    /// Returns the name of a function of the CUDA runtime, or null if it is unknown.
    pub(super) fn function_name(&self, function: u32) -> *const c_char {
        let mut name = std::ptr::null();
        // SAFETY: as above.
        let result = self.function_name.map(|get| unsafe { get(RUNTIME_API, function, &raw mut name) });
        if result == Some(SUCCESS) { name } else { std::ptr::null() }
    }

    /// Returns the offset of the record after this one in a buffer, or `None` at the end.
    pub(super) fn next(&self, buffer: &[u8], record: Option<usize>) -> Option<usize> {
        let base = buffer.as_ptr().cast_mut();
        let mut at = record.map_or(null_mut(), |offset| base.wrapping_add(offset));
        // SAFETY: as above; the function writes an address inside the buffer, which is compared and not dereferenced.
        let result = unsafe { (self.next)(base, buffer.len(), &raw mut at) };
        let offset = at.addr().wrapping_sub(base.addr());
        // The offset has to grow, since otherwise a defective library would keep the thread busy forever.
        (result == SUCCESS && offset < buffer.len() && record.is_none_or(|before| offset > before)).then_some(offset)
    }
}

fn done(result: c_int) -> Result<(), Refused> {
    if result == SUCCESS { Ok(()) } else { Err(Refused(result)) }
}

/// `RTLD_NOLOAD`.
const LOADED_ONLY: c_int = 4;

/// Returns the paths at which the CUPTI library usually is: the loader's search path, and the toolkit's directories.
fn usual_places() -> Vec<Vec<u8>> {
    let names = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"].map(|name| name.as_bytes().to_vec());
    let of = |name| env::var_os(name).map(OsString::into_encoded_bytes).filter(|home| !home.is_empty());
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(of).chain([b"/usr/local/cuda".to_vec()]);
    let below = homes.flat_map(|home| {
        ["/extras/CUPTI/lib64/libcupti.so", "/lib64/libcupti.so"].map(|end| [home.as_slice(), end.as_bytes()].concat())
    });
    names.into_iter().chain(below).collect()
}

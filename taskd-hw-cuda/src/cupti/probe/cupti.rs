//! `libcupti.so`: where it is looked for, and its functions.
//!
//! It links nothing: without the library the process is as it would be without this one.

use super::dl::{Handle, NOW};
use std::env;
use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::ptr::null_mut;

/// Results, as the vendor numbers them.
const SUCCESS: c_int = 0;
/// `CUPTI_CB_DOMAIN_RUNTIME_API`.
const RUNTIME_API: c_int = 2;
/// `CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM`: the ids that the system shows.
const SYSTEM_THREADS: c_int = 1;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
const FORCED: u32 = 1;

pub(super) type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub(super) type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// The functions without which there is nothing to be had, and some that older libraries have not.
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
    /// It says of itself that no GPU is behind it.
    pub(super) is_stand_in: bool,
}

/// A call that CUPTI has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(c_int);

impl Refused {
    /// What to do about it.
    pub(super) fn sentence(self) -> String {
        let meaning = match self.0 {
            14 => "its version does not go with the driver's",
            15 => "CUDA is not initialized",
            21 => "it does not have this kind",
            26 => "other software uses the GPU's counters",
            35 => "the user may not profile (NVreg_RestrictProfilingToAdminUsers)",
            39 => "another profiler is active",
            _ => "it has an error of its own",
        };
        format!("cupti: {meaning} (result {})", self.0)
    }
}

impl Cupti {
    /// Finds and loads it.
    ///
    /// # Errors
    /// Why it cannot be had, in a sentence.
    pub(super) fn load() -> Result<Cupti, String> {
        let named = env::var_os("TASKD_CUPTI_LIB").filter(|path| !path.is_empty());
        let places = named.map_or_else(usual_places, |path| vec![path.into_encoded_bytes()]);
        // One that the program has loaded, as PyTorch's own has, goes before all others: two in one process do not agree.
        for flags in [NOW | LOADED_ONLY, NOW] {
            for place in &places {
                let library = CString::new(place.clone()).ok().and_then(|path| Handle::open(&path, flags));
                if let Some(library) = library {
                    let shown = String::from_utf8_lossy(place);
                    return Cupti::of(&library).ok_or_else(|| {
                        format!("{shown} lacks a function of CUPTI's: is it that of CUDA 11 or later?")
                    });
                }
            }
        }
        let tried: Vec<_> = places.iter().map(|place| String::from_utf8_lossy(place)).collect();
        Err(format!(
            "there is no libcupti.so (looked for: {}): install CUPTI of the CUDA toolkit, or name the file in TASKD_CUPTI_LIB",
            tried.join(", ")
        ))
    }

    fn of(library: &Handle) -> Option<Cupti> {
        // SAFETY: these are the types of the vendor's functions.
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

    // SAFETY of the calls below: the functions have these types, every address that is passed is valid for the call, and none of
    // them is called from within a function that CUPTI calls.

    pub(super) fn register(&self, request: Request, complete: Complete) -> Result<(), Refused> {
        // SAFETY: as above; both functions are there as long as the process, as this library is never unloaded.
        done(unsafe { (self.register)(request, complete) })
    }

    pub(super) fn set(&self, kind: u32, on: bool) -> Result<(), Refused> {
        let function = if on { self.enable } else { self.disable };
        // SAFETY: as above.
        done(unsafe { function(kind.cast_signed()) })
    }

    /// Delivers what there is every so often by itself, where the library can; else it has to be told each time.
    pub(super) fn flush_every(&self, millis: u32) -> bool {
        // SAFETY: as above.
        self.flush_period.is_some_and(|flush_period| unsafe { flush_period(millis) } == SUCCESS)
    }

    /// Delivers what is complete, or, at the end, all that there is.
    pub(super) fn flush(&self, all: bool) {
        // SAFETY: as above.
        unsafe { (self.flush_all)(if all { FORCED } else { 0 }) };
    }

    /// How many records were dropped since the last time.
    pub(super) fn dropped(&self) -> u64 {
        let mut dropped = 0;
        // SAFETY: as above; no context and no stream means the queue that they share.
        let result = unsafe { (self.dropped)(null_mut(), 0, &raw mut dropped) };
        if result == SUCCESS { dropped as u64 } else { 0 }
    }

    /// CUPTI's clock in nanoseconds; `None` where it cannot be asked.
    pub(super) fn timestamp(&self) -> Option<u64> {
        let mut now = 0;
        // SAFETY: as above.
        let result = self.timestamp.map(|timestamp| unsafe { timestamp(&raw mut now) });
        (result == Some(SUCCESS) && now != 0).then_some(now)
    }

    /// Threads are to be told by the ids that the system shows.
    pub(super) fn use_system_threads(&self) {
        // SAFETY: as above.
        self.thread_ids.map(|thread_ids| unsafe { thread_ids(SYSTEM_THREADS) });
    }

    /// How a function of the runtime is called; null where nobody knows.
    pub(super) fn function_name(&self, function: u32) -> *const c_char {
        let mut name = std::ptr::null();
        // SAFETY: as above.
        let result = self.function_name.map(|get| unsafe { get(RUNTIME_API, function, &raw mut name) });
        if result == Some(SUCCESS) { name } else { std::ptr::null() }
    }

    /// Where in a buffer the record after this one begins; `None`: at the end.
    pub(super) fn next(&self, buffer: &[u8], record: Option<usize>) -> Option<usize> {
        let base = buffer.as_ptr().cast_mut();
        let mut at = record.map_or(null_mut(), |offset| base.wrapping_add(offset));
        // SAFETY: as above; the function writes an address within the buffer, which is looked at and not followed.
        let result = unsafe { (self.next)(base, buffer.len(), &raw mut at) };
        let offset = at.addr().wrapping_sub(base.addr());
        // It has to go on, or a library of a mind of its own would hold the thread for good.
        (result == SUCCESS && offset < buffer.len() && record.is_none_or(|before| offset > before)).then_some(offset)
    }
}

fn done(result: c_int) -> Result<(), Refused> {
    if result == SUCCESS { Ok(()) } else { Err(Refused(result)) }
}

/// `RTLD_NOLOAD`.
const LOADED_ONLY: c_int = 4;

/// Where it is: where the loader finds it, and where the toolkit puts it.
fn usual_places() -> Vec<Vec<u8>> {
    let names = ["libcupti.so.13", "libcupti.so.12", "libcupti.so"].map(|name| name.as_bytes().to_vec());
    let of = |name| env::var_os(name).map(OsString::into_encoded_bytes).filter(|home| !home.is_empty());
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(of).chain([b"/usr/local/cuda".to_vec()]);
    let below = homes.flat_map(|home| {
        ["/extras/CUPTI/lib64/libcupti.so", "/lib64/libcupti.so"].map(|end| [home.as_slice(), end.as_bytes()].concat())
    });
    names.into_iter().chain(below).collect()
}

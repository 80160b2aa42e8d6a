//! `libmspti.so`: search path and functions.
//!
//! The probe does not link the library: a process without it runs as if the probe were absent.

use super::dl::{Handle, NOW};
use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

/// mspti's result code for success.
const SUCCESS: c_int = 0;

pub(super) type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub(super) type Complete = unsafe extern "C" fn(*mut u8, usize, usize);

/// mspti's functions: nine required ones, and one that older libraries lack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mspti {
    subscribe: unsafe extern "C" fn(*mut *mut c_void, *const c_void, *mut c_void) -> c_int,
    unsubscribe: unsafe extern "C" fn(*mut c_void) -> c_int,
    register: unsafe extern "C" fn(Request, Complete) -> c_int,
    enable: unsafe extern "C" fn(c_int) -> c_int,
    disable: unsafe extern "C" fn(c_int) -> c_int,
    next: unsafe extern "C" fn(*const u8, usize, *mut *const u8) -> c_int,
    flush_all: unsafe extern "C" fn(u32) -> c_int,
    enable_domain: unsafe extern "C" fn(*const c_char) -> c_int,
    disable_domain: unsafe extern "C" fn(*const c_char) -> c_int,
    flush_period: Option<unsafe extern "C" fn(u32) -> c_int>,
    /// True if the library declares itself a stand-in without a device.
    pub(super) is_stand_in: bool,
}

/// Result code of an mspti call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(c_int);

impl Refused {
    /// Returns the meaning of the code as a sentence.
    pub(super) fn sentence(self) -> String {
        let meaning = match self.0 {
            1 => "this kind is not supported",
            2 => "another profiler is active",
            4 => "the device is offline",
            6 => "LD_PRELOAD does not name libmspti.so",
            _ => "internal error",
        };
        format!("mspti: {meaning} (result {})", self.0)
    }
}

/// A subscriber handle of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscriber(*mut c_void);

impl Mspti {
    /// Finds and loads the library.
    ///
    /// # Errors
    /// The reason why it is unavailable, as a sentence.
    pub(super) fn load() -> Result<Mspti, String> {
        let found = Handle::find("TASKD_MSPTI_LIB", usual_places, &[NOW | GLOBAL | DEEPBIND]);
        let (library, path) = found.map_err(|tried| {
            format!("there is no libmspti.so (looked for: {tried}): install CANN, or name the file in TASKD_MSPTI_LIB")
        })?;
        Mspti::of(&library)
            .ok_or_else(|| format!("{path} lacks a function of mspti: use libmspti.so of CANN 8.0 or later"))
    }

    fn of(library: &Handle) -> Option<Mspti> {
        // SAFETY: these are the types of mspti's functions.
        unsafe {
            Some(Mspti {
                subscribe: library.function(c"msptiSubscribe")?,
                unsubscribe: library.function(c"msptiUnsubscribe")?,
                register: library.function(c"msptiActivityRegisterCallbacks")?,
                enable: library.function(c"msptiActivityEnable")?,
                disable: library.function(c"msptiActivityDisable")?,
                next: library.function(c"msptiActivityGetNextRecord")?,
                flush_all: library.function(c"msptiActivityFlushAll")?,
                enable_domain: library.function(c"msptiActivityEnableMarkerDomain")?,
                disable_domain: library.function(c"msptiActivityDisableMarkerDomain")?,
                flush_period: library.function(c"msptiActivityFlushPeriod"),
                is_stand_in: !library.address(c"taskd_standin_mspti").is_null(),
            })
        }
    }

    // SAFETY of the calls below: the functions have these types, every passed address is valid for the call, and none
    // of them is called from inside a function that mspti calls.

    pub(super) fn subscribe(&self) -> Result<Subscriber, Refused> {
        let mut subscriber = null_mut();
        // SAFETY: as above; there is no callback.
        done(unsafe { (self.subscribe)(&raw mut subscriber, std::ptr::null(), null_mut()) })?;
        Ok(Subscriber(subscriber))
    }

    pub(super) fn unsubscribe(&self, subscriber: Subscriber) {
        // SAFETY: as above.
        unsafe { (self.unsubscribe)(subscriber.0) };
    }

    pub(super) fn register(&self, request: Request, complete: Complete) -> Result<(), Refused> {
        // SAFETY: as above; both functions exist as long as the process, since this library is never unloaded.
        done(unsafe { (self.register)(request, complete) })
    }

    pub(super) fn set(&self, kind: c_int, on: bool) -> Result<(), Refused> {
        let function = if on { self.enable } else { self.disable };
        // SAFETY: as above.
        done(unsafe { function(kind) })
    }

    pub(super) fn set_domain(&self, name: &CStr, on: bool) -> Result<(), Refused> {
        let function = if on { self.enable_domain } else { self.disable_domain };
        // SAFETY: as above.
        done(unsafe { function(name.as_ptr()) })
    }

    /// Makes mspti flush at this interval by itself. Returns false if the library cannot, so that
    /// [`flush`](Self::flush) is needed.
    pub(super) fn flush_every(&self, millis: u32) -> bool {
        // SAFETY: as above.
        self.flush_period.is_some_and(|flush_period| unsafe { flush_period(millis) } == SUCCESS)
    }

    pub(super) fn flush(&self) {
        // SAFETY: as above.
        unsafe { (self.flush_all)(1) };
    }

    /// Returns the offset of the next record in a buffer, or `None` at the end. mspti keeps the position per thread, so
    /// a buffer has to be read to its end before the next one.
    pub(super) fn next(&self, buffer: &[u8]) -> Option<usize> {
        let mut record = std::ptr::null();
        // SAFETY: as above; the function writes an address inside the buffer, which is compared and not dereferenced.
        let result = unsafe { (self.next)(buffer.as_ptr(), buffer.len(), &raw mut record) };
        let offset = record.addr().wrapping_sub(buffer.as_ptr().addr());
        (result == SUCCESS && offset < buffer.len()).then_some(offset)
    }

    /// Resets mspti's position, so that the next call of [`next`](Self::next) starts a new buffer.
    pub(super) fn rewind(&self, buffer: &[u8]) {
        let mut record = std::ptr::null();
        // SAFETY: as above.
        unsafe { (self.next)(buffer.as_ptr(), 0, &raw mut record) };
    }
}

fn done(result: c_int) -> Result<(), Refused> {
    if result == SUCCESS { Ok(()) } else { Err(Refused(result)) }
}

/// `RTLD_DEEPBIND` and `RTLD_GLOBAL`.
const DEEPBIND: c_int = 8;
const GLOBAL: c_int = 0x100;

/// Returns the paths at which libmspti.so usually is: the loader's search path, which succeeds if `LD_PRELOAD` names
/// it, and the directories that the environment or the vendor's installer define.
fn usual_places() -> Vec<Vec<u8>> {
    let of = |name| env::var_os(name).map(std::ffi::OsString::into_encoded_bytes).filter(|home| !home.is_empty());
    let homes = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"].into_iter().filter_map(of);
    let usual = b"/usr/local/Ascend/ascend-toolkit/latest".to_vec();
    let below = homes.chain([usual]).map(|home| [home.as_slice(), b"/lib64/libmspti.so"].concat());
    std::iter::once(b"libmspti.so".to_vec()).chain(below).collect()
}

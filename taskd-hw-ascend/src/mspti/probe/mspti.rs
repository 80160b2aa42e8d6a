//! `libmspti.so`: where it is looked for, and its functions.
//!
//! It links nothing: without the library the process is as it would be without this one.

use super::dl::{Handle, NOW};
use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

/// Results, as the vendor numbers them.
const SUCCESS: c_int = 0;

pub(super) type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub(super) type Complete = unsafe extern "C" fn(*mut u8, usize, usize);

/// The nine functions without which there is nothing to be had, and one that older libraries have not.
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
    /// It says of itself that no device is behind it.
    pub(super) is_stand_in: bool,
}

/// A call that mspti has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(c_int);

impl Refused {
    /// What to do about it.
    pub(super) fn sentence(self) -> String {
        let meaning = match self.0 {
            1 => "it does not have this kind",
            2 => "another profiler is active",
            4 => "the device is offline",
            6 => "LD_PRELOAD does not name libmspti.so",
            _ => "it has an error of its own",
        };
        format!("mspti: {meaning} (result {})", self.0)
    }
}

/// A subscriber of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscriber(*mut c_void);

impl Mspti {
    /// Finds and loads it.
    ///
    /// # Errors
    /// Why it cannot be had, in a sentence.
    pub(super) fn load() -> Result<Mspti, String> {
        let told = env::var_os("TASKD_MSPTI_LIB").filter(|path| !path.is_empty());
        let places = match told {
            Some(path) => vec![path.into_encoded_bytes()],
            None => usual_places(),
        };
        let mut tried = Vec::new();
        for place in places {
            let shown = String::from_utf8_lossy(&place).into_owned();
            let library = CString::new(place).ok().and_then(|path| Handle::open(&path, NOW | GLOBAL | DEEPBIND));
            match library {
                Some(library) => return Mspti::of(&library).ok_or_else(|| {
                    format!("{shown} lacks a function of mspti's: is it libmspti.so of CANN 8.0 or later?")
                }),
                None => tried.push(shown),
            }
        }
        Err(format!(
            "there is no libmspti.so (looked for: {}): install CANN, or name the file in TASKD_MSPTI_LIB",
            tried.join(", ")
        ))
    }

    fn of(library: &Handle) -> Option<Mspti> {
        // SAFETY: these are the types of the vendor's functions.
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

    // SAFETY of the calls below: the functions have these types, every address that is passed is valid for the call, and none of
    // them is called from within a function that mspti calls.

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
        // SAFETY: as above; both functions are there as long as the process, as this library is never unloaded.
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

    /// Delivers what there is every so often by itself, where the library can; else it has to be told each time.
    pub(super) fn flush_every(&self, millis: u32) -> bool {
        // SAFETY: as above.
        self.flush_period.is_some_and(|flush_period| unsafe { flush_period(millis) } == SUCCESS)
    }

    pub(super) fn flush(&self) {
        // SAFETY: as above.
        unsafe { (self.flush_all)(1) };
    }

    /// Where in a buffer the next record begins. Its place is kept by the library for each thread: a buffer is walked to its end
    /// before the next one is begun. `None`: at the end.
    pub(super) fn next(&self, buffer: &[u8]) -> Option<usize> {
        let mut record = std::ptr::null();
        // SAFETY: as above; the function writes an address within the buffer, which is looked at and not followed.
        let result = unsafe { (self.next)(buffer.as_ptr(), buffer.len(), &raw mut record) };
        let offset = record.addr().wrapping_sub(buffer.as_ptr().addr());
        (result == SUCCESS && offset < buffer.len()).then_some(offset)
    }

    /// Begins anew with the next buffer.
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

/// Where CANN puts it: where the loader finds it, which it does where `LD_PRELOAD` names it, and where the environment or the
/// vendor's installer says.
fn usual_places() -> Vec<Vec<u8>> {
    let of = |name| env::var_os(name).map(std::ffi::OsString::into_encoded_bytes).filter(|home| !home.is_empty());
    let homes = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"].into_iter().filter_map(of);
    let usual = b"/usr/local/Ascend/ascend-toolkit/latest".to_vec();
    let below = homes.chain([usual]).map(|home| [home.as_slice(), b"/lib64/libmspti.so"].concat());
    std::iter::once(b"libmspti.so".to_vec()).chain(below).collect()
}

//! The recorder of this process: opened once, and never closed.
//!
//! No panic crosses this module: an unexpected panic is caught, and the recorder is off from then on.

use super::recorder::{Recorder, Without};
use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The result of opening.
enum Opened {
    Recording(Recorder),
    Without { code: i32, why: CString },
}

static OPENED: OnceLock<Opened> = OnceLock::new();
/// True once a thread has begun to open the recorder.
static IS_OPENING: AtomicBool = AtomicBool::new(false);
/// True after an unexpected panic.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);

/// This process records.
pub(super) const RECORDING: i32 = 1;
/// This process is not configured to record.
const NOT_MEANT: i32 = 0;
/// This process was configured to record, but cannot.
const FAILED: i32 = -1;

/// Opens the recorder, or returns the result of an earlier opening.
pub(super) fn open() -> i32 {
    // No lock: in a forked process, a lock held by another thread would never be released.
    if OPENED.get().is_none() && !IS_OPENING.swap(true, Ordering::AcqRel) {
        let _ = OPENED.set(opened()); // no other thread sets it
    }
    match OPENED.get() {
        Some(Opened::Recording(recorder)) if recorder.is_of_this_process() && !is_broken() => RECORDING,
        Some(Opened::Without { code, .. }) => *code,
        _ if is_broken() => FAILED,
        _ => NOT_MEANT,
    }
}

fn opened() -> Opened {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let without = match Recorder::of_this_process(variable) {
        Ok(recorder) => return Opened::Recording(recorder),
        Err(without) => without,
    };
    let code = if matches!(without, Without::NotMeant(_)) { NOT_MEANT } else { FAILED };
    Opened::Without { code, why: CString::new(without.to_string()).unwrap_or_default() }
}

/// Returns why this process does not record; empty if it does.
pub(super) fn why() -> &'static CStr {
    match OPENED.get() {
        _ if is_broken() => c"no recorder: it has stopped after an internal error; training continues without it",
        Some(Opened::Recording(recorder)) if recorder.is_of_this_process() => c"",
        Some(Opened::Recording(_)) => c"this process was forked from the recording process",
        Some(Opened::Without { why, .. }) => why,
        None => c"the recorder was not opened, or another thread opens it",
    }
}

/// Returns the recorder, if this process records.
#[inline]
pub(super) fn recorder() -> Option<&'static Recorder> {
    match OPENED.get() {
        Some(Opened::Recording(recorder)) if !is_broken() => Some(recorder),
        _ => None,
    }
}

#[inline]
fn is_broken() -> bool {
    IS_BROKEN.load(Ordering::Relaxed)
}

/// Runs a function, unless an earlier one has panicked.
#[inline]
pub(super) fn guarded<R: Default>(what: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|panic| {
        IS_BROKEN.store(true, Ordering::Relaxed);
        std::mem::forget(panic); // dropping it might panic again
        R::default()
    })
}

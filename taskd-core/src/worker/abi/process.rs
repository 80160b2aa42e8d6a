//! The recorder of this process: opened once, and never closed.
//!
//! No panic passes it. One that there should not be is caught, and the recorder is off from then on.

use super::recorder::{Recorder, Without};
use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What came of opening.
enum Opened {
    Recording(Recorder),
    Without { code: i32, why: CString },
}

static OPENED: OnceLock<Opened> = OnceLock::new();
/// Somebody opens it, or has.
static IS_OPENING: AtomicBool = AtomicBool::new(false);
/// Something has panicked that never should.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);

/// This process records.
pub(super) const RECORDING: i32 = 1;
/// This process is not to record.
const NOT_MEANT: i32 = 0;
/// It was to record, and cannot.
const FAILED: i32 = -1;

/// Opens it, or says what came of that.
pub(super) fn open() -> i32 {
    // No lock: in a forked process nobody would release one that another thread held.
    if OPENED.get().is_none() && !IS_OPENING.swap(true, Ordering::AcqRel) {
        let _ = OPENED.set(opened()); // nobody else sets it
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

/// Why this process does not record; empty where it does.
pub(super) fn why() -> &'static CStr {
    match OPENED.get() {
        _ if is_broken() => c"no recorder: it has met an error of its own; training goes on without",
        Some(Opened::Recording(recorder)) if recorder.is_of_this_process() => c"",
        Some(Opened::Recording(_)) => c"this process was forked from the one that records",
        Some(Opened::Without { why, .. }) => why,
        None => c"it was not opened, or another thread opens it",
    }
}

/// The recorder, where this process records.
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

/// Does something, and nothing any more once something has panicked.
#[inline]
pub(super) fn guarded<R: Default>(what: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|panic| {
        IS_BROKEN.store(true, Ordering::Relaxed);
        std::mem::forget(panic); // dropping it might panic again
        R::default()
    })
}

//! The probe's thread: it gets none of the program's signals, and the program's end waits for it, for a while.

use super::END_WITHIN;
use super::signals::without_signals;
use std::ffi::c_int;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The program ends: what the vendor has is to be brought, as far as there is time.
pub(super) static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// It was brought, or never will be.
pub(super) static HAS_ENDED: AtomicBool = AtomicBool::new(false);

static THREAD: OnceLock<Thread> = OnceLock::new();
static PID: OnceLock<u32> = OnceLock::new();

/// Starts it.
pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = without_signals(|| thread::Builder::new().name(name.into()).spawn(body))?;
    let _ = (THREAD.set(thread.thread().clone()), PID.set(std::process::id()));
    // SAFETY: a function that takes nothing, and is there as long as the process.
    unsafe { atexit(end) };
    Ok(())
}

/// Runs when the program ends in order, before the vendor's library is taken down.
extern "C" fn end() {
    let Some(thread) = THREAD.get().filter(|_| PID.get() == Some(&std::process::id())) else { return };
    IS_ENDING.store(true, Ordering::Release);
    thread.unpark();
    let begun = Instant::now();
    while !HAS_ENDED.load(Ordering::Acquire) && begun.elapsed() < END_WITHIN {
        thread::park_timeout(LOOK_EVERY);
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

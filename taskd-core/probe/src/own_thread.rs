//! The probe's thread: it receives none of the program's signals, and the exit of the program waits for it, within a limit.

use crate::signals::without_signals;
use std::ffi::c_int;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(1);

/// True once the program is exiting: the probe's thread then imports the remaining records, as far as there is time.
pub static IS_ENDING: AtomicBool = AtomicBool::new(false);
/// True once the probe's thread has imported the remaining records, or if it will never import them.
pub static HAS_ENDED: AtomicBool = AtomicBool::new(false);

static THREAD: OnceLock<Thread> = OnceLock::new();
static PID: OnceLock<u32> = OnceLock::new();
static END_WITHIN: OnceLock<Duration> = OnceLock::new();

/// Starts the probe's thread. The exit of the program waits for the thread for at most `end_within`.
///
/// # Errors
/// Returns an error if the system cannot start a thread.
pub fn start(name: &str, end_within: Duration, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = without_signals(|| thread::Builder::new().name(name.into()).spawn(body))?;
    let _ = END_WITHIN.set(end_within);
    let _ = (THREAD.set(thread.thread().clone()), PID.set(std::process::id()));
    // SAFETY: a function that takes nothing, and is there as long as the process.
    unsafe { atexit(end) };
    Ok(())
}

/// Runs at the orderly exit of the program, before the vendor's library is taken down.
extern "C" fn end() {
    let Some(thread) = THREAD.get().filter(|_| PID.get() == Some(&std::process::id())) else { return };
    IS_ENDING.store(true, Ordering::Release);
    thread.unpark();
    let within = END_WITHIN.get().copied().unwrap_or_default();
    let begun = Instant::now();
    while !HAS_ENDED.load(Ordering::Acquire) && begun.elapsed() < within {
        thread::park_timeout(LOOK_EVERY);
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

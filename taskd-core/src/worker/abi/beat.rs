//! A heartbeat that the program cannot hold up: a thread of its own that needs no interpreter's lock.
//!
//! It says that the process is not stopped, and nothing of what its threads do.

use super::recorder::Clock;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Room for a `sigset_t`: glibc's and musl's have 128 bytes.
type SignalSet = [u64; 16];
/// `SIG_SETMASK` of Linux.
const SIG_SETMASK: c_int = 2;
/// The least and the most between two beats.
const EVERY_MS: std::ops::RangeInclusive<u32> = 10..=60_000;

unsafe extern "C" {
    fn sigfillset(set: *mut SignalSet) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const SignalSet, before: *mut SignalSet) -> c_int;
}

/// Beats from now on, until the process ends or forgets the thread by a fork or an exec.
pub(super) fn start(word: &'static AtomicU64, every_ms: u32) -> std::io::Result<()> {
    let every = Duration::from_millis(every_ms.clamp(*EVERY_MS.start(), *EVERY_MS.end()).into());
    #[allow(clippy::disallowed_methods)] // nothing happens that it could wait for: it is a clock's hand
    let beat = move || {
        loop {
            word.store(Clock::Monotonic.ticks(), Ordering::Release);
            std::thread::sleep(every);
        }
    };
    without_signals(|| std::thread::Builder::new().name("taskd-beat".into()).stack_size(64 << 10).spawn(beat))?;
    Ok(())
}

/// Does something with all signals blocked, so that a thread that it starts gets none of the program's.
fn without_signals<T>(what: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = ([0; 16], [0; 16]);
    // SAFETY: both sets are as long as the system's, and are written before they are read.
    let blocked =
        unsafe { sigfillset(&raw mut all) == 0 && pthread_sigmask(SIG_SETMASK, &raw const all, &raw mut before) == 0 };
    let done = what();
    if blocked {
        // SAFETY: `before` was written by the call above.
        unsafe { pthread_sigmask(SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    }
    done
}

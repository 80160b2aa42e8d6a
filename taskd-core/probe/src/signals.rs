//! Threads that receive none of the program's signals, for libtaskd and the probes.
//!
//! The functions of this module handle no signal, and leave the signal mask of the calling thread as it was.

use std::ffi::c_int;

/// Room for a `sigset_t`: glibc's and musl's have 128 bytes.
type SignalSet = [u64; 16];
/// `SIG_SETMASK` of Linux.
const SIG_SETMASK: c_int = 2;

unsafe extern "C" {
    fn sigfillset(set: *mut SignalSet) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const SignalSet, before: *mut SignalSet) -> c_int;
}

/// Calls a function with all signals blocked, so that a thread that the function starts receives no signals of the
/// program.
pub fn without_signals<T>(what: impl FnOnce() -> T) -> T {
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

//! Clocks of the operating system.

use std::ffi::{c_int, c_long};

/// Number of the Linux clock `CLOCK_REALTIME`: time since 1970.
pub const REALTIME: c_int = 0;
/// Number of the Linux clock `CLOCK_THREAD_CPUTIME_ID`: CPU time of the calling thread.
pub const THREAD_CPU: c_int = 3;

#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanos: c_long,
}

unsafe extern "C" {
    fn clock_gettime(clock: c_int, now: *mut Timespec) -> c_int;
}

/// Returns the time that the Linux clock with the number `clock` shows, in nanoseconds.
pub fn nanos(clock: c_int) -> u64 {
    let mut now = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: `now` is valid for writing.
    unsafe { clock_gettime(clock, &raw mut now) };
    now.seconds.unsigned_abs() * 1_000_000_000 + now.nanos.unsigned_abs()
}

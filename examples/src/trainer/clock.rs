//! The only places where the trainer reads a clock or sleeps.
//!
//! No clock has any influence on what is computed: it decides when a step happens, never what it gives.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of `CLOCK_MONOTONIC`, which all processes of a machine share and which never goes back.
pub(super) fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both fields of the monotonic clock are never negative.
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Waits until `duration` has gone by since `start`; not at all if it has.
pub(super) fn pause_until(start: Instant, duration: Duration) {
    pause(duration.saturating_sub(start.elapsed()));
}

/// Sleeps. A training process has no event loop that this could hold up.
#[expect(clippy::disallowed_methods, reason = "a blocking program with one thread: there is nothing else to run")]
pub(super) fn pause(duration: Duration) {
    if !duration.is_zero() {
        std::thread::sleep(duration);
    }
}

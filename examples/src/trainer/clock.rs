//! The only places where the trainer reads a clock or sleeps.
//!
//! No clock influences what is computed: it decides when a step happens, never its result.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Returns milliseconds of `CLOCK_MONOTONIC`, which all processes of a machine share and which never goes back.
pub(super) fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both fields of the monotonic clock are never negative.
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// Waits until `duration` has passed since `start`; returns at once if it has.
pub(super) fn pause_until(start: Instant, duration: Duration) {
    pause(duration.saturating_sub(start.elapsed()));
}

/// Sleeps. A training process has no event loop that this could block.
#[expect(clippy::disallowed_methods, reason = "a blocking program with one thread: there is nothing else to run")]
pub(super) fn pause(duration: Duration) {
    if !duration.is_zero() {
        std::thread::sleep(duration);
    }
}

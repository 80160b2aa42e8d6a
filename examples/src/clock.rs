//! The machine's monotonic clock, and durations as accounts state them.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the time of the machine's monotonic clock, which all processes share.
#[must_use]
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)) // neither is ever negative
}

/// Returns a duration in milliseconds, rounded to the microsecond.
pub(crate) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

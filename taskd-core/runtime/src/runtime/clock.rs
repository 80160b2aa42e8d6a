//! Conversion of the shell's clock to job time, detection of suspends, and wall-clock time.
//!
//! Job time uses tokio's clock, which tests can pause. Wall-clock time is compared with the system's monotonic clock,
//! which tests cannot pause.

use crate::job::JobTime;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Longest time between two clock checks of the shell, so that it notices a suspend even without inputs.
const PULSE: Duration = Duration::from_millis(500);

/// Job time: its value at the start of this supervisor, plus the time since.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobClock {
    started: Instant,
    base: JobTime,
}

impl JobClock {
    /// Creates a clock that continues from `base`.
    pub(super) fn from(base: JobTime) -> JobClock {
        JobClock { started: Instant::now(), base }
    }

    pub(super) fn now(&self) -> JobTime {
        self.base + self.started.elapsed()
    }

    /// Converts a deadline of the kernel to an instant.
    pub(super) fn instant(&self, at: JobTime) -> Instant {
        self.started + at.since(self.base)
    }
}

/// Deviation of the wall clock beyond which it is reported again, and shortest time between two reports.
const APART_MAX_MS: u64 = 1000;
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// Returns the wall-clock time in milliseconds since the Unix epoch. For display only: no decision uses it.
#[allow(clippy::disallowed_methods)]
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Compares wall clock and monotonic clock. Detects that they deviate, as after a suspend or after the clock was set.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    logged: Option<(u64, std::time::Instant)>,
}

impl Calendar {
    /// Returns the wall-clock time in milliseconds if it has to be reported now.
    pub(super) fn turn(&mut self) -> Option<u64> {
        self.turn_at(unix_ms(), std::time::Instant::now())
    }

    fn turn_at(&mut self, unix_ms: u64, now: std::time::Instant) -> Option<u64> {
        if let Some((last, at)) = self.logged {
            let since = now.saturating_duration_since(at);
            let expected = last.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
            if since < LOGGED_EVERY || unix_ms.abs_diff(expected) <= APART_MAX_MS {
                return None;
            }
        }
        self.logged = Some((unix_ms, now));
        Some(unix_ms)
    }
}

/// Detects that the supervisor did not run. The loop should call [`turn`](Self::turn) at least every [`PULSE`].
#[derive(Debug)]
pub(super) struct Pulse {
    last_turn: Instant,
    suspend_threshold: Duration,
}

impl Pulse {
    pub(super) fn new(suspend_threshold: Duration) -> Pulse {
        Pulse { last_turn: Instant::now(), suspend_threshold }
    }

    /// Returns the latest time of the next turn.
    pub(super) fn next_turn(&self) -> Instant {
        self.last_turn + PULSE
    }

    /// Records a turn of the loop. Returns the time since the last turn if the supervisor did not run in between.
    pub(super) fn turn(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let gap = now.duration_since(self.last_turn);
        self.last_turn = now;
        (gap > self.suspend_threshold + PULSE).then_some(gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_is_reported_once_and_again_after_it_was_set() {
        let (mut calendar, begun) = (Calendar::default(), std::time::Instant::now());
        let at = |s: u64| begun + Duration::from_secs(s);
        assert_eq!(calendar.turn_at(5_000_000, at(0)), Some(5_000_000));
        assert_eq!(calendar.turn_at(5_100_900, at(100)), None, "as far apart as it may be");
        assert_eq!(calendar.turn_at(8_200_000, at(200)), Some(8_200_000), "the machine was suspended");
        assert_eq!(calendar.turn_at(1_000_000, at(205)), None, "not at once again");
        assert_eq!(calendar.turn_at(1_005_000, at(210)), Some(1_005_000), "its clock was set back");
    }
}

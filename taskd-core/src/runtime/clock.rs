//! The one map from the shell's clock to job time, the discovery of our own sleep, and what the calendar says.
//!
//! It uses tokio's clock, which tests pause; the calendar is read beside the machine's own clock, which they do not.

use crate::job::JobTime;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How often the shell looks at the clock even when nothing happens, to notice that it was stopped in between.
const PULSE: Duration = Duration::from_millis(500);

/// Job time: where it was when this supervisor started, and the time since.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobClock {
    started: Instant,
    base: JobTime,
}

impl JobClock {
    /// A clock that goes on from `base`.
    pub(super) fn from(base: JobTime) -> JobClock {
        JobClock { started: Instant::now(), base }
    }

    pub(super) fn now(&self) -> JobTime {
        self.base + self.started.elapsed()
    }

    /// The moment to sleep until for a deadline of the kernel.
    pub(super) fn instant(&self, at: JobTime) -> Instant {
        self.started + at.since(self.base)
    }
}

/// How far the calendar may be from what was said of it, and how soon it is said anew at the earliest.
const APART_MAX_MS: u64 = 1000;
const SAID_EVERY: Duration = Duration::from_secs(10);

/// The wall clock in milliseconds of Unix time: it ties job time to dates for people, and nothing is decided from it.
#[allow(clippy::disallowed_methods)]
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The calendar beside the machine's own clock: notices when they went apart, as after a suspend, or when a clock was set.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    said: Option<(u64, std::time::Instant)>,
}

impl Calendar {
    /// What is to be said of the calendar now, if anything is.
    pub(super) fn turn(&mut self) -> Option<u64> {
        self.turn_at(unix_ms(), std::time::Instant::now())
    }

    fn turn_at(&mut self, unix_ms: u64, now: std::time::Instant) -> Option<u64> {
        if let Some((said, at)) = self.said {
            let since = now.saturating_duration_since(at);
            let expected = said.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
            if since < SAID_EVERY || unix_ms.abs_diff(expected) <= APART_MAX_MS {
                return None;
            }
        }
        self.said = Some((unix_ms, now));
        Some(unix_ms)
    }
}

/// Notices that the supervisor did not run: it should turn at least once a pulse.
#[derive(Debug)]
pub(super) struct Pulse {
    last_turn: Instant,
    slept_over: Duration,
}

impl Pulse {
    pub(super) fn new(slept_over: Duration) -> Pulse {
        Pulse { last_turn: Instant::now(), slept_over }
    }

    /// When to turn at the latest.
    pub(super) fn next_turn(&self) -> Instant {
        self.last_turn + PULSE
    }

    /// The loop turns: how long we slept, if we did.
    pub(super) fn turn(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let gap = now.duration_since(self.last_turn);
        self.last_turn = now;
        (gap > self.slept_over + PULSE).then_some(gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_is_said_once_and_again_when_it_was_set() {
        let (mut calendar, begun) = (Calendar::default(), std::time::Instant::now());
        let at = |s: u64| begun + Duration::from_secs(s);
        assert_eq!(calendar.turn_at(5_000_000, at(0)), Some(5_000_000));
        assert_eq!(calendar.turn_at(5_100_900, at(100)), None, "as far apart as it may be");
        assert_eq!(calendar.turn_at(8_200_000, at(200)), Some(8_200_000), "the machine was suspended");
        assert_eq!(calendar.turn_at(1_000_000, at(205)), None, "not at once again");
        assert_eq!(calendar.turn_at(1_005_000, at(210)), Some(1_005_000), "its clock was set back");
    }
}

//! Converts job time to wall-clock time, from the readings that the shell sent. For display: nothing is decided from
//! it.
//!
//! It reads no clock.

use crate::job::{JobTime, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of pairs of job time and wall-clock time that are kept. For times before the oldest one, the
/// wall-clock time is then unknown.
const PAIRS_MAX: usize = 256;

/// Pairs of a job time and the wall-clock time at that moment.
///
/// There is one for each start of a supervisor, and one for each time that the wall clock diverged from job time (the
/// machine was suspended, or its clock was set).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Calendar {
    pairs: VecDeque<(JobTime, u64)>,
    /// True if the oldest pairs were dropped, because too many were stored.
    #[serde(default)]
    is_cut: bool,
}

impl Calendar {
    pub(super) fn note(&mut self, at: JobTime, unix_ms: u64) {
        if self.pairs.len() >= PAIRS_MAX {
            self.pairs.pop_front();
            self.is_cut = true;
        }
        self.pairs.push_back((at, unix_ms));
    }

    pub(super) fn wall(&self, at: JobTime) -> Option<WallTime> {
        let ms = |from: JobTime, to: JobTime| u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX);
        if let Some((then, unix_ms)) = self.pairs.iter().rfind(|(then, _)| *then <= at) {
            return Some(WallTime::from_unix_ms(unix_ms.saturating_add(ms(*then, at))));
        }
        let (first, unix_ms) = self.pairs.front().filter(|_| !self.is_cut)?;
        Some(WallTime::from_unix_ms(unix_ms.saturating_sub(ms(at, *first))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(s: u64) -> JobTime {
        JobTime::from_nanos(s * 1_000_000_000)
    }

    fn unix_s(calendar: &Calendar, s: u64) -> Option<u64> {
        calendar.wall(at(s)).map(|wall| wall.as_unix_ms() / 1000)
    }

    #[test]
    fn wall_time_is_counted_from_the_last_report_before_it() {
        let mut calendar = Calendar::default();
        assert_eq!(unix_s(&calendar, 0), None, "nothing was said yet");
        calendar.note(at(2), 1_000_000);
        assert_eq!((unix_s(&calendar, 1), unix_s(&calendar, 5)), (Some(999), Some(1003)));
        calendar.note(at(10), 8_000_000); // another supervisor, two hours later
        assert_eq!((unix_s(&calendar, 9), unix_s(&calendar, 10)), (Some(1007), Some(8000)));
        for more in 0..300 {
            calendar.note(at(100 + more), 9_000_000 + more * 1000);
        }
        assert_eq!(
            (unix_s(&calendar, 9), unix_s(&calendar, 399)),
            (None, Some(9299)),
            "bounded, and it does not guess"
        );
    }
}

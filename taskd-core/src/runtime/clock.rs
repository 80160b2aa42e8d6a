//! The one map from the shell's clock to job time, and the discovery of our own sleep.
//!
//! It uses tokio's clock, which tests pause.

use crate::job::JobTime;
use std::time::Duration;
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

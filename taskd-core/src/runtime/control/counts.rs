//! What the socket counted, and the limits that it counts at.

use crate::job::{ConfigError, ConfigProblems};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::Instant;

/// Bounds of a [`ControlSocket`](super::ControlSocket). What is turned away at one is counted in [`SocketCounts`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketLimits {
    /// Connections at one time; one more is told so and closed.
    pub connections_max: usize,
    /// Longest line of a client, in bytes; a longer one closes its connection.
    pub line_bytes_max: usize,
    /// How long a connection may be without a whole request; then it is closed, unless it listens to events. A
    /// client that listens and has ended its own side is closed when nothing happened for so long.
    pub idle_within: Duration,
    /// How long a client may leave an answer unread; then its connection is closed.
    pub write_within: Duration,
    /// How long the runtime may take for an answer; then the client is told that there is none.
    pub answer_within: Duration,
    /// Faults that are taken in a second, of all connections together; more are turned away.
    pub faults_per_s_max: u32,
    /// Requests that are taken in a second, of all connections together; more wait in their connections.
    pub requests_per_s_max: u32,
}

impl Default for SocketLimits {
    fn default() -> SocketLimits {
        SocketLimits {
            connections_max: 32,
            line_bytes_max: 64 << 10,
            idle_within: Duration::from_secs(600),
            write_within: Duration::from_secs(10),
            answer_within: Duration::from_secs(60),
            faults_per_s_max: 50,
            requests_per_s_max: 500,
        }
    }
}

impl SocketLimits {
    /// Everything that is wrong with these bounds; empty when they are sound.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = ConfigProblems::default();
        problems.check(self.connections_max > 0, "control.connections_max", "must be at least 1");
        problems.check(
            (64..=16 << 20).contains(&self.line_bytes_max),
            "control.line_bytes_max",
            "must be 64 bytes to 16 MiB",
        );
        problems.check(!self.idle_within.is_zero(), "control.idle_within", "must be longer than zero");
        problems.check(!self.write_within.is_zero(), "control.write_within", "must be longer than zero");
        problems.check(!self.answer_within.is_zero(), "control.answer_within", "must be longer than zero");
        problems.check(self.faults_per_s_max > 0, "control.faults_per_s_max", "must be at least 1");
        problems.check(self.requests_per_s_max > 0, "control.requests_per_s_max", "must be at least 1");
        problems.all()
    }
}

/// What a [`ControlSocket`](super::ControlSocket) counted since it was bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct SocketCounts {
    /// Connections that were taken.
    pub connections: u64,
    /// Connections of another user, turned away.
    pub strangers: u64,
    /// Connections beyond the bound, turned away.
    pub crowded: u64,
    /// Connections that could not be taken: the system is short of something.
    pub accept_failures: u64,
    /// Lines that were read as requests.
    pub requests: u64,
    /// Lines that are no request, or of an unknown version.
    pub bad_lines: u64,
    /// Lines beyond the bound; their connections were closed.
    pub long_lines: u64,
    /// Faults that were passed on.
    pub faults: u64,
    /// Faults beyond the rate, turned away.
    pub faults_turned_away: u64,
    /// Requests that had to wait because there were too many.
    pub waits: u64,
    /// Requests that the runtime did not answer in time.
    pub unanswered: u64,
    /// Connections that were closed because nothing was asked.
    pub idle: u64,
    /// Connections that were closed because their client did not read.
    pub slow_readers: u64,
    /// Events that listeners missed because they read too slowly.
    pub events_missed: u64,
}

/// So much a second, and a second's worth at once.
#[derive(Debug)]
pub(super) struct Rate {
    per_s: f64,
    left: f64,
    at: Instant,
}

impl Rate {
    pub(super) fn per_second(per_s: u32) -> Rate {
        Rate { per_s: f64::from(per_s), left: f64::from(per_s), at: Instant::now() }
    }

    /// Takes one, or says when there is one again.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.left = (self.left + passed.as_secs_f64() * self.per_s).min(self.per_s);
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.left) / self.per_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_gives_a_seconds_worth_at_once_and_then_one_by_one() {
        let mut rate = Rate::per_second(10);
        let start = rate.at;
        let taken =
            |rate: &mut Rate, ms| (0..100).filter(|_| rate.take(start + Duration::from_millis(ms)).is_ok()).count();
        assert_eq!(taken(&mut rate, 0), 10);
        assert_eq!(taken(&mut rate, 250), 2);
        assert_eq!(rate.take(start + Duration::from_millis(250)), Err(Duration::from_millis(50)));
        assert_eq!(taken(&mut rate, 60_000), 10, "never more than a second's worth");
        assert_eq!(taken(&mut rate, 0), 0, "time that goes back gives nothing");
    }
}

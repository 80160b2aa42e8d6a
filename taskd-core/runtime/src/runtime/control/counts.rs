//! Limits of the control socket, and the counters that show when they were reached.

use crate::job::{ConfigError, ConfigProblems};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::Instant;

/// Limits of a [`ControlSocket`](super::ControlSocket). [`SocketCounts`] counts the rejections at each limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketLimits {
    /// Maximum number of connections that are open at one time. A further connection receives an error and is closed.
    /// Default: 32.
    pub connections_max: usize,
    /// Maximum length of a line from a client, in bytes. A longer line closes its connection. Range: 64 B to 16 MiB.
    /// Default: 64 KiB.
    pub line_bytes_max: usize,
    /// Maximum time between two complete requests on a connection; after it the connection is closed, unless the client
    /// subscribes to events. A subscriber that has closed its writing side is closed after this time without an event.
    /// Default: 600 s.
    pub idle_within: Duration,
    /// Maximum time for which a client may leave a response unread; after it the connection is closed. Default: 10 s.
    pub write_within: Duration,
    /// Maximum time that the runtime may take to answer a request; after it the client receives an error. Default: 60
    /// s.
    pub answer_within: Duration,
    /// Maximum number of fault reports that the socket accepts per second, over all connections. Further reports
    /// receive an error. Default: 50.
    pub faults_per_s_max: u32,
    /// Maximum number of requests that the socket handles per second, over all connections. Further requests wait in
    /// their connections. Default: 500.
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
    /// Returns all problems of these limits; empty if the limits are valid.
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

/// Counters of a [`ControlSocket`](super::ControlSocket) since it was bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct SocketCounts {
    /// Number of accepted connections.
    pub connections: u64,
    /// Number of rejected connections from another user, or from a user that the system could not identify.
    pub strangers: u64,
    /// Number of connections that were rejected because [`SocketLimits::connections_max`] connections were open.
    pub crowded: u64,
    /// Number of connections that could not be accepted, because the system lacked a resource.
    pub accept_failures: u64,
    /// Number of non-empty lines received as requests, including invalid ones.
    pub requests: u64,
    /// Number of lines that were no valid request, or that had an unknown protocol version.
    pub bad_lines: u64,
    /// Number of lines longer than [`SocketLimits::line_bytes_max`]. Their connections were closed.
    pub long_lines: u64,
    /// Number of fault reports passed to the runtime.
    pub faults: u64,
    /// Number of fault reports that were rejected because of [`SocketLimits::faults_per_s_max`].
    pub faults_turned_away: u64,
    /// Number of times that a request had to wait because of [`SocketLimits::requests_per_s_max`].
    pub waits: u64,
    /// Number of requests that the runtime did not answer within [`SocketLimits::answer_within`].
    pub unanswered: u64,
    /// Number of connections that were closed because the client sent no request within [`SocketLimits::idle_within`].
    pub idle: u64,
    /// Number of connections that were closed because the client did not read a response within
    /// [`SocketLimits::write_within`].
    pub slow_readers: u64,
    /// Number of events that subscribers missed because they read too slowly.
    pub events_missed: u64,
}

/// Rate limiter (token bucket) with a burst of one second's worth.
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

    /// Takes one token. Returns the time until the next token if none is left.
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

//! Times of leases and connections, and the relations that must hold between them.

use crate::checks::{Check, Checks};
use std::time::Duration;

/// Times that agents and managers of one job share. The manager sends them to its agents.
///
/// An agent requests a *lease* from its manager at every [`lease_interval`](Self::lease_interval). A grant is valid for
/// [`lease`](Self::lease) from its *anchor*: the moment at which the consensus engine last confirmed the manager. When
/// the lease of a host ends, the host stops its ranks within [`stop_within`](Self::stop_within). So a manager starts
/// replacements of a host [`replace_after`](Self::replace_after) its last grant, and a new manager that long after its
/// election: at no time do two worlds train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterSettings {
    /// Time between an agent's requests for a lease.
    pub lease_interval: Duration,
    /// Time without a sign of life after which a host is out of sight.
    pub silent_after: Duration,
    /// Time for which a grant is valid after its anchor.
    pub lease: Duration,
    /// Time within which a host stops its ranks after the end of its lease: SIGKILL, and the exits of the processes.
    pub stop_within: Duration,
    /// Greatest difference of the rates of two hosts' clocks, in millionths.
    pub clock_rate_ppm: u32,
    /// Time within which a connection must be open.
    pub connect_within: Duration,
    /// Time within which a session must begin over an open connection.
    pub hello_within: Duration,
    /// Number of agents to which one sender passes the calls of a broadcast: the manager to as many relays, and each
    /// relay again to as many. 0: the manager calls every agent itself.
    pub relay_fanout: u32,
    /// Time after which the manager itself makes a call that a relay has not answered. An agent carries it out once.
    pub relay_within: Duration,
    /// All checks, except in a simulation.
    pub(crate) checks: Checks,
    /// By how much the clock of this host is slower than those of other hosts, in a simulation.
    pub(crate) slow_ppm: u32,
}

/// Part of a lease without a message after which an agent opens a new connection: one third.
const RECONNECT_PART: u32 = 3;
/// Number of lease requests that a manager answers in a second with less than a quarter of a core.
const LEASES_PER_SECOND: u32 = 9_000;
/// Agents that a manager admits in a second with about one core: it verifies a certificate for each, and lists its
/// processes.
const CONNECTIONS_PER_SECOND: u32 = 1_000;
/// Longest lease with which a host is lost 3 s after its last sign of life.
const LEASE_MAX: Duration = Duration::from_millis(2790);
/// Default of [`ClusterSettings::relay_fanout`]: two levels reach 1,000 agents, three 10,000.
const FANOUT: u32 = 32;

impl Default for ClusterSettings {
    /// Returns 150 ms, 500 ms, 1.7 s, 200 ms, 1,000 ppm, 1 s, 2 s, 32 and 1 s, in the order of the fields: for up to
    /// 1,350 agents.
    fn default() -> ClusterSettings {
        ClusterSettings {
            lease_interval: Duration::from_millis(150),
            silent_after: Duration::from_millis(500),
            lease: Duration::from_millis(1700),
            stop_within: Duration::from_millis(200),
            clock_rate_ppm: 1000,
            connect_within: Duration::from_secs(1),
            hello_within: Duration::from_secs(2),
            relay_fanout: FANOUT,
            relay_within: Duration::from_secs(1),
            checks: Checks::default(),
            slow_ppm: 0,
        }
    }
}

/// Two settings that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

impl ClusterSettings {
    /// Returns settings for a job of this number of agents, in proportion to it: the manager answers at most 9,000
    /// lease requests in a second, and waits for connections of which it accepts 1,000 in a second. So `lease_interval`
    /// is `agents / 9,000` s (at least the default), `silent_after` at least one and a half intervals, and `lease` at
    /// least `silent_after` and one interval. Up to 10,000 agents a host is lost at most 3 s after its last sign of life;
    /// within that, a lease grows with the time in which all agents reach a new manager, so that its election stops no rank.
    #[must_use]
    pub fn for_agents(agents: u32) -> ClusterSettings {
        let default = ClusterSettings::default();
        // In whole milliseconds, rounded up: a rounded-down part of a nanosecond would contradict `check`.
        let all_request = Duration::from_millis((u64::from(agents) * 1000).div_ceil(LEASES_PER_SECOND.into()));
        let lease_interval = default.lease_interval.max(all_request);
        let silent_after = default.silent_after.max(lease_interval * 3 / 2);
        let all_connect = Duration::from_secs(1) * agents / CONNECTIONS_PER_SECOND;
        ClusterSettings {
            lease_interval,
            silent_after,
            lease: LEASE_MAX.min(default.lease + all_connect).max(silent_after + lease_interval),
            connect_within: default.connect_within + all_connect,
            hello_within: default.hello_within + all_connect,
            relay_within: default.relay_within + all_connect,
            ..default
        }
    }

    /// Returns the time over which the agents of a job spread their first connections: all at once would take the processor
    /// time that the voters need.
    pub(crate) fn spread(&self) -> Duration {
        self.connect_within.saturating_sub(ClusterSettings::default().connect_within)
    }

    /// Returns the time between two confirmations of the manager by the consensus engine: the age of a lease's anchor.
    pub(crate) fn confirm_interval(&self) -> Duration {
        self.lease_interval.min(self.lease / 10)
    }

    /// Sets the number of agents to which one sender passes the calls of a broadcast; 0 for no relays.
    #[must_use]
    pub fn with_relay_fanout(mut self, relay_fanout: u32) -> ClusterSettings {
        self.relay_fanout = relay_fanout;
        self
    }

    /// Sets the time after which the manager itself makes a call that a relay has not answered.
    #[must_use]
    pub fn with_relay_within(mut self, relay_within: Duration) -> ClusterSettings {
        self.relay_within = relay_within;
        self
    }

    /// Sets the time for which a grant is valid after its anchor.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> ClusterSettings {
        self.lease = lease;
        self
    }

    /// Sets the time between an agent's requests for a lease.
    #[must_use]
    pub fn with_lease_interval(mut self, lease_interval: Duration) -> ClusterSettings {
        self.lease_interval = lease_interval;
        self
    }

    /// Sets the time without a sign of life after which a host is out of sight.
    #[must_use]
    pub fn with_silent_after(mut self, silent_after: Duration) -> ClusterSettings {
        self.silent_after = silent_after;
        self
    }

    /// Sets the time within which a host stops its ranks after the end of its lease.
    #[must_use]
    pub fn with_stop_within(mut self, stop_within: Duration) -> ClusterSettings {
        self.stop_within = stop_within;
        self
    }

    /// Makes the clock of this host slower, by millionths.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_slow_clock(mut self, slow_ppm: u32) -> ClusterSettings {
        self.slow_ppm = slow_ppm;
        self
    }

    /// Returns how long a span of this host's clock lasts.
    pub(crate) fn lasts(&self, span: Duration) -> Duration {
        match self.slow_ppm {
            0 => span,
            ppm => span + span.saturating_mul(ppm) / 1_000_000,
        }
    }

    /// Sets the checks that are in force.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_checks(mut self, checks: Checks) -> ClusterSettings {
        self.checks = checks;
        self
    }

    /// Returns the time without a confirmation after which the consensus engine counts as unavailable, and the time limit
    /// of a standby's statement: a third of the lease, so that a statement of all standbys extends the leases in time.
    #[must_use]
    pub fn engine_silent_after(&self) -> Duration {
        self.lease / 3
    }

    /// Returns the time after the anchor of a host's last grant from which no process of the host runs any more: the lease by
    /// the slowest clock, and the time to stop.
    #[must_use]
    pub fn replace_after(&self) -> Duration {
        if !self.checks.has(Check::ReplaceAfter) {
            return Duration::ZERO;
        }
        let drift = self.lease.saturating_mul(self.clock_rate_ppm) / 1_000_000;
        self.lease + drift + self.stop_within
    }

    /// Returns the time without a message after which an agent opens a new connection: a third of its lease, so that
    /// most of the lease is left for it, but at least [`silent_after`](Self::silent_after). A loaded machine is often
    /// late by a part of a second, and each new connection is more load.
    #[must_use]
    pub fn reconnect_after(&self, lease: Duration) -> Duration {
        self.silent_after.max(lease / RECONNECT_PART)
    }

    /// Checks the relations between the settings.
    ///
    /// # Errors
    /// Returns [`SettingsError`] if one does not hold; it names the settings and their values.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = |text: String| Err(SettingsError(text));
        let ClusterSettings { lease_interval, silent_after, lease, .. } = *self;
        if lease_interval.is_zero() || self.connect_within.is_zero() || self.hello_within.is_zero() {
            return wrong("lease_interval, connect_within and hello_within must be greater than 0".into());
        }
        if self.relay_within.is_zero() {
            return wrong("relay_within must be greater than 0: a relay takes time".into());
        }
        if silent_after * 2 < lease_interval * 3 {
            return wrong(format!(
                "silent_after ({silent_after:?}) must be at least one and a half times lease_interval \
                 ({lease_interval:?}): a message that is late by half an interval is no lost host"
            ));
        }
        if lease < silent_after + lease_interval {
            return wrong(format!(
                "lease ({lease:?}) must be at least silent_after ({silent_after:?}) and lease_interval \
                 ({lease_interval:?}): a host that connects again must keep its ranks"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_settings_agree() {
        let settings = ClusterSettings::default();
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(settings.replace_after(), Duration::from_micros(1_901_700));
        assert_eq!(settings.reconnect_after(Duration::from_secs(6)), Duration::from_secs(2));
        assert_eq!(settings.reconnect_after(Duration::from_millis(700)), settings.silent_after);
    }

    #[test]
    fn settings_grow_with_the_number_of_agents() {
        let (few, default) = (ClusterSettings::for_agents(0), ClusterSettings::default());
        assert_eq!((few.lease_interval, few.lease), (default.lease_interval, default.lease));
        for agents in [10, 1000, 3000, 7000, 10_000] {
            let settings = ClusterSettings::for_agents(agents);
            assert!(settings.check().is_ok() && settings.lease >= default.lease, "{agents}: {settings:?}");
            assert!(settings.replace_after() <= Duration::from_secs(3), "{agents}: {settings:?}");
        }
        let many = ClusterSettings::for_agents(10_000);
        assert!(many.lease_interval * LEASES_PER_SECOND >= Duration::from_secs(10_000));
        assert_eq!(ClusterSettings::for_agents(100_000).check(), Ok(()));
    }

    #[test]
    fn contradictions_name_both_settings() {
        let ms = Duration::from_millis;
        let short = ClusterSettings::default().with_lease(ms(600)).check().expect_err("too short");
        assert!(short.to_string().contains("lease (600ms)"), "{short}");
        let nervous = ClusterSettings::default().with_silent_after(ms(200)).check().expect_err("too short");
        assert!(nervous.to_string().contains("silent_after (200ms)"), "{nervous}");
        assert!(ClusterSettings::default().with_lease_interval(ms(0)).check().is_err());
    }
}

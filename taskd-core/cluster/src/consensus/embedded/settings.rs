//! The times of the embedded engine, and the limits that follow from them.

use crate::checks::Checks;
use crate::consensus::ConsensusError;
use std::time::Duration;

/// The times of the embedded engine: all of them follow from three.
///
/// Raft requires that a message travels much faster than an election timeout lasts (Ongaro and Ousterhout, "In Search
/// of an Understandable Consensus Algorithm", section 5.6). `heartbeat * 3 <= election_min` keeps a leader that loses
/// two heartbeats in a row; `election_min < election_max` spreads the voters, so that one of them stands first.
///
/// All voters of a job use the same settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedSettings {
    heartbeat: Duration,
    election_min: Duration,
    election_max: Duration,
    /// All checks, except in a simulation.
    pub(super) checks: Checks,
}

/// Longest election timeout: longer ones would be typing errors, and delays derived from them stay within a day.
pub const ELECTION_MAX: Duration = Duration::from_secs(600);

/// Shortest longest election timeout that follows from a lease: a vote is synced to the disk.
const SHORTEST_ELECTION_MAX: Duration = Duration::from_millis(100);

impl EmbeddedSettings {
    /// Creates settings. `heartbeat` is the interval at which the leader sends to the other voters; a voter stands for
    /// leader when it has heard nothing for `election_max` (the leader's lease) plus its own time between
    /// `election_min` and `election_max`. A fraction of a millisecond is dropped.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Refused`] unless 1 ms <= `heartbeat`, `heartbeat * 3 <= election_min`,
    /// `election_min < election_max` and `election_max` <= [`ELECTION_MAX`].
    pub fn new(
        heartbeat: Duration,
        election_min: Duration,
        election_max: Duration,
    ) -> Result<EmbeddedSettings, ConsensusError> {
        let refuse = |text: String| Err(ConsensusError::Refused(format!("the settings of the voters: {text}")));
        let [heartbeat, election_min, election_max] = [heartbeat, election_min, election_max].map(whole_millis);
        if heartbeat < Duration::from_millis(1) {
            return refuse("the heartbeat interval is shorter than 1 ms".into());
        }
        if heartbeat.saturating_mul(3) > election_min {
            return refuse(format!(
                "three heartbeats of {heartbeat:?} are longer than the shortest election timeout, {election_min:?}"
            ));
        }
        if election_min >= election_max {
            return refuse(format!(
                "the shortest election timeout, {election_min:?}, is not below the longest, {election_max:?}"
            ));
        }
        if election_max > ELECTION_MAX {
            return refuse(format!(
                "the longest election timeout, {election_max:?}, is above the limit, {ELECTION_MAX:?}"
            ));
        }
        Ok(EmbeddedSettings { heartbeat, election_min, election_max, checks: Checks::default() })
    }

    /// Sets the checks that are in force.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_checks(mut self, checks: Checks) -> EmbeddedSettings {
        self.checks = checks;
        self
    }

    /// Returns the settings for a job in which hosts may train for `lease` without contact to a manager: the next one is
    /// elected within half of that, [`failover`](EmbeddedSettings::failover). The other half is for agents to notice the
    /// loss, to find the next manager, and to get a lease from it, so that a change of managers stops no rank. Not longer
    /// than the default, and not shorter than a machine with a disk can serve.
    #[must_use]
    pub fn for_lease(lease: Duration) -> EmbeddedSettings {
        let default = EmbeddedSettings::default();
        // `failover` is three times `election_max` and three heartbeats, of which one is an eighth of `election_max`.
        let election_max = (lease * 4 / 27).clamp(SHORTEST_ELECTION_MAX, default.election_max);
        let [heartbeat, election_min, election_max] =
            [election_max / 8, election_max / 2, election_max].map(whole_millis);
        EmbeddedSettings { heartbeat, election_min, election_max, checks: Checks::default() }
    }

    /// Interval at which the leader sends to the other voters; default 100 ms. A replication request is repeated after
    /// it.
    #[must_use]
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// Shortest election timeout; default 400 ms. A request for a vote is given up after it.
    #[must_use]
    pub fn election_min(&self) -> Duration {
        self.election_min
    }

    /// Longest election timeout, which is the leader's lease too; default 800 ms. A voter refuses to vote for another
    /// leader for this time after it heard from the present one.
    #[must_use]
    pub fn election_max(&self) -> Duration {
        self.election_max
    }

    /// Longest time from the loss of a leader to the next one: its lease, one election timeout, a second one when the
    /// first voter that stood has an older log than another, and twice the engine's tick, which is 1.5 heartbeats. 2.7
    /// s by default.
    #[must_use]
    pub fn failover(&self) -> Duration {
        self.election_max * 3 + self.heartbeat * 3
    }

    /// As [`failover`](EmbeddedSettings::failover), in a job with a witness: the witness can be the only one with the
    /// whole log. It stands after a silence of four election timeouts, is elected, and hands over. 8.6 s by default.
    #[must_use]
    pub fn failover_with_witness(&self) -> Duration {
        self.silence() + self.failover() * 2
    }

    /// Time limit of `confirm`, `compare_and_set`, `read` and `resign`: a call that starts as the leader is lost still
    /// succeeds. 3.5 s by default.
    #[must_use]
    pub fn request_limit(&self) -> Duration {
        self.failover() + self.election_max
    }

    /// Time limit of one request to another voter.
    #[must_use]
    pub fn rpc_limit(&self) -> Duration {
        self.election_max
    }

    /// Time limit of an admission: the new voter receives a snapshot and the log, then two changes of the voters are
    /// committed. 16 s by default.
    #[must_use]
    pub fn admission_limit(&self) -> Duration {
        self.election_max * 20
    }

    /// A voter that does not campaign stands for leader only after this silence: it may be the only one with the whole
    /// log.
    pub(super) fn silence(&self) -> Duration {
        self.election_max * 4
    }

    /// Longest time for which a leader that hands over is silent. Then it leads on, if no other voter was elected.
    pub(super) fn handover(&self) -> Duration {
        self.election_max * 4
    }

    /// Time after which no voter refuses its vote because of a leader that is silent since the beginning of this time.
    pub(super) fn lease_over(&self) -> Duration {
        self.election_max + self.heartbeat * 2
    }

    /// A voter answers a `watch` of another host after this time, also if nothing has changed.
    pub(super) fn long_poll(&self) -> Duration {
        self.election_max * 10
    }
}

impl Default for EmbeddedSettings {
    fn default() -> EmbeddedSettings {
        let ms = Duration::from_millis;
        EmbeddedSettings { heartbeat: ms(100), election_min: ms(400), election_max: ms(800), checks: Checks::default() }
    }
}

/// The engine counts in milliseconds.
fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Whole milliseconds of a duration that [`ELECTION_MAX`] bounds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_leaves_half_of_its_time_after_an_election() {
        for lease in [700, 1000, 1700, 3000, 6000, 60_000].map(Duration::from_millis) {
            let settings = EmbeddedSettings::for_lease(lease);
            assert!(settings.failover() * 2 <= lease, "{lease:?}: {settings:?}");
            let EmbeddedSettings { heartbeat, election_min, election_max, .. } = settings;
            assert_eq!(EmbeddedSettings::new(heartbeat, election_min, election_max), Ok(settings), "they are allowed");
        }
        assert_eq!(EmbeddedSettings::for_lease(ELECTION_MAX), EmbeddedSettings::for_lease(Duration::from_secs(6)));
    }

    #[test]
    fn settings_without_the_relation_are_refused() {
        let ms = Duration::from_millis;
        let refused = |h, min, max| EmbeddedSettings::new(ms(h), ms(min), ms(max)).expect_err("refused").to_string();
        assert!(refused(0, 400, 800).contains("shorter than 1 ms"));
        assert!(refused(200, 400, 800).contains("three heartbeats of 200ms"));
        assert!(refused(100, 400, 400).contains("is not below the longest"));
        assert!(refused(100, 400, 1_000_000).contains("above the limit"));
        let least = EmbeddedSettings::new(ms(100), ms(300), ms(301)).expect("on the limits");
        assert!(least.failover() < least.request_limit() && least.lease_over() < least.handover());
        let default = EmbeddedSettings::default();
        assert_eq!(EmbeddedSettings::new(ms(100), ms(400), ms(800)), Ok(default), "the default keeps the relation");
    }
}

//! The offset between the clocks of two hosts, as round trips of leases show it.
//!
//! Offsets are displayed, and correct the ages of facts that a connection has delayed. No other rule depends on them, and
//! none on the calendar.

use crate::clock::Moment;
use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of the latest round trips of which the best counts.
const ROUND_TRIPS: usize = 16;
/// Number of times that both clocks are read to find them close together.
const READS_MAX: usize = 3;
/// Distance of the readings of two clocks that is close together: they are not read again.
const APART_NANOS: u64 = 50_000;

/// Both clocks of this host, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The time of this process, which is never set: nanoseconds since it began, suspensions of the machine included.
    pub(crate) own_nanos: u64,
    /// Calendar time, in nanoseconds since 1970.
    pub(crate) calendar_nanos: u64,
    /// Greatest time between the two readings.
    pub(crate) apart_nanos: u64,
}

impl Reading {
    /// Reads both clocks of a process that began at `begun`. It may be interrupted between the two readings, so the best of
    /// some is returned.
    pub(crate) fn now(begun: &Moment) -> Reading {
        let mut best = Reading::once(begun);
        for _ in 1..READS_MAX {
            if best.apart_nanos <= APART_NANOS {
                break;
            }
            let again = Reading::once(begun);
            if again.apart_nanos < best.apart_nanos {
                best = again;
            }
        }
        // Both are moved on to now, by the same time.
        let passed = own_nanos(begun).saturating_sub(best.own_nanos);
        let (own_nanos, calendar_nanos) = (best.own_nanos + passed, best.calendar_nanos.saturating_add(passed));
        Reading { own_nanos, calendar_nanos, ..best }
    }

    #[allow(clippy::disallowed_methods, reason = "the edge of the program")]
    fn once(begun: &Moment) -> Reading {
        let before = own_nanos(begun);
        let calendar = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let own_nanos = own_nanos(begun);
        Reading { own_nanos, calendar_nanos: nanos(calendar), apart_nanos: own_nanos.saturating_sub(before) }
    }
}

/// Returns the time of a process that began at `begun`, in nanoseconds.
pub(crate) fn own_nanos(begun: &Moment) -> u64 {
    nanos(begun.elapsed())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How far the calendar clock of a host is ahead of the manager's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockOffset {
    /// The offset in nanoseconds; negative if the host's clock is behind.
    pub nanos: i64,
    /// Greatest error of the offset: half of the best round trip, the drift since then, and the time between the
    /// manager's readings of its own clocks.
    pub error: Duration,
}

impl std::fmt::Display for ClockOffset {
    /// Writes, for example, `+1.250 ms ± 0.180 ms`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.3} ms ± {:.3} ms", self.nanos as f64 / 1e6, self.error.as_secs_f64() * 1e3)
    }
}

/// A message of the manager and the reply of a host, by the own clock of each side, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    pub(crate) sent: u64,
    /// By the host's clock.
    pub(crate) received: u64,
    /// By the host's clock.
    pub(crate) replied: u64,
    pub(crate) returned: u64,
}

/// The offset of the own clock of a host, as one round trip shows it.
#[derive(Clone, Copy, Debug)]
struct Sample {
    offset: i64,
    /// Half of the time that the messages were under way.
    error: u64,
    /// Time of the round trip by the manager's clock.
    at: u64,
}

/// The clocks of one host, seen from its manager.
#[derive(Debug, Default)]
pub(crate) struct HostClocks {
    samples: VecDeque<Sample>,
    /// How far the host's calendar clock is ahead of its own clock, in nanoseconds.
    calendar: Option<i64>,
}

impl RoundTrip {
    /// Returns the offset of the host's clock and its error, as NTP computes them; `None` for times that no round trip has.
    fn sample(&self) -> Option<Sample> {
        let RoundTrip { sent, received, replied, returned } = *self;
        let under_way = returned.checked_sub(sent)?.checked_sub(replied.checked_sub(received)?)?;
        let (there, back) = (i128::from(received) - i128::from(sent), i128::from(replied) - i128::from(returned));
        let offset = i64::try_from((there + back) / 2).ok()?;
        Some(Sample { offset, error: under_way.div_ceil(2), at: returned })
    }
}

impl HostClocks {
    /// Adds a round trip. Times that no round trip has are ignored.
    pub(crate) fn add(&mut self, round_trip: RoundTrip) {
        let Some(sample) = round_trip.sample() else { return };
        if self.samples.len() >= ROUND_TRIPS {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// Takes the two clocks of the host, as it has read them together.
    pub(crate) fn calendar(&mut self, own_nanos: u64, calendar_nanos: u64) {
        self.calendar = i64::try_from(i128::from(calendar_nanos) - i128::from(own_nanos)).ok();
    }

    /// Returns the offset of the host's own clock and its error at `now`, in nanoseconds, when clocks drift apart by
    /// `rate_ppm` millionths at most.
    fn own(&self, now: u64, rate_ppm: u32) -> Option<(i64, u64)> {
        let error = |sample: &Sample| {
            let drift = u128::from(now.saturating_sub(sample.at)) * u128::from(rate_ppm) / 1_000_000;
            sample.error.saturating_add(u64::try_from(drift).unwrap_or(u64::MAX))
        };
        let best = self.samples.iter().min_by_key(|sample| error(sample))?;
        Some((best.offset, error(best)))
    }

    /// Returns the shortest time that may have passed between the time `sent_nanos` of the host's own clock and `now` of the
    /// manager's own; zero while the offset is not known.
    pub(crate) fn passed(&self, sent_nanos: u64, now: u64, rate_ppm: u32) -> Duration {
        let Some((offset, error)) = self.own(now, rate_ppm) else { return Duration::ZERO };
        let passed = i128::from(now) + i128::from(offset) - i128::from(sent_nanos) - i128::from(error);
        Duration::from_nanos(u64::try_from(passed.max(0)).unwrap_or(0))
    }

    /// Returns the offset of the host's calendar clock at `now`; `None` while it is not known.
    pub(crate) fn offset(&self, now: Reading, rate_ppm: u32) -> Option<ClockOffset> {
        let (own, error) = self.own(now.own_nanos, rate_ppm)?;
        let here = i128::from(now.calendar_nanos) - i128::from(now.own_nanos);
        let nanos = i64::try_from(i128::from(self.calendar?) - here + i128::from(own)).ok()?;
        Some(ClockOffset { nanos, error: Duration::from_nanos(error.saturating_add(now.apart_nanos)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns a round trip to a host with a clock an hour ahead, over a network with these delays.
    fn trip(at: u64, there: u64, back: u64) -> RoundTrip {
        let hour = 3600 * 1000 * MS;
        let received = at + there + hour;
        RoundTrip { sent: at, received, replied: received + 150 * MS, returned: at + there + 150 * MS + back }
    }

    #[test]
    fn the_best_round_trip_counts() {
        let (mut clocks, hour) = (HostClocks::default(), 3600 * 1000 * MS as i64);
        assert_eq!(clocks.own(0, 0), None);
        clocks.add(trip(1000 * MS, 40 * MS, 0));
        assert_eq!(
            clocks.own(2000 * MS, 0),
            Some((hour + 20 * MS as i64, 20 * MS)),
            "the error is half the round trip"
        );
        clocks.add(trip(2000 * MS, MS, MS));
        clocks.add(trip(3000 * MS, 0, 90 * MS));
        assert_eq!(clocks.own(4000 * MS, 0), Some((hour, MS)));
        let (_, later) = clocks.own(2152 * MS + 10_000 * MS, 1000).expect("it is known");
        assert_eq!(later, 11 * MS, "clocks drift");
        for at in 0..ROUND_TRIPS as u64 {
            clocks.add(trip(5000 * MS + at, 40 * MS, 40 * MS));
        }
        assert_eq!(clocks.own(6000 * MS, 0), Some((hour, 40 * MS)), "old round trips are forgotten");
    }

    #[test]
    fn impossible_round_trips_are_ignored() {
        let mut clocks = HostClocks::default();
        let good = trip(1000 * MS, MS, MS);
        for bad in [
            RoundTrip { sent: good.returned + 1, ..good },
            RoundTrip { replied: good.received - 1, ..good },
            RoundTrip { replied: good.replied + 3 * MS, ..good },
            RoundTrip { received: u64::MAX, replied: u64::MAX, ..good },
        ] {
            clocks.add(bad);
        }
        clocks.calendar(0, u64::MAX);
        assert_eq!(clocks.own(5000 * MS, 0), None);
        assert_eq!(clocks.passed(0, u64::MAX, 1000), Duration::ZERO);
    }

    #[test]
    fn a_calendar_that_is_an_hour_off_changes_no_age() {
        let mut clocks = HostClocks::default();
        clocks.add(RoundTrip { sent: 1000 * MS, received: 1001 * MS, replied: 1100 * MS, returned: 1101 * MS });
        let now = Reading { own_nanos: 2000 * MS, calendar_nanos: 1_000_000 * MS, apart_nanos: 0 };
        for ahead in [0, 3_600_000 * MS] {
            clocks.calendar(1100 * MS, 999_100 * MS + ahead);
            let offset = clocks.offset(now, 0).expect("it is known");
            assert_eq!((offset.nanos, offset.error), (ahead as i64, Duration::from_millis(1)));
            assert_eq!(clocks.passed(1900 * MS, 2000 * MS, 0), Duration::from_millis(99));
            assert_eq!(clocks.passed(2000 * MS, 2000 * MS, 0), Duration::ZERO);
        }
    }

    #[test]
    fn the_clocks_of_one_machine_are_read_together() {
        let begun = Moment::now();
        let (first, then) = (Reading::now(&begun), Reading::now(&begun));
        assert!(first.own_nanos <= then.own_nanos && first.calendar_nanos > 1_000_000_000 * 1_000_000_000);
        let offset = ClockOffset { nanos: -1_250_000, error: Duration::from_micros(180) };
        assert_eq!(offset.to_string(), "-1.250 ms ± 0.180 ms");
    }
}

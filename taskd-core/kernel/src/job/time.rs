//! Time inside a job: nanoseconds since its start, passed as an argument and never read from a clock here.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// Nanoseconds since the job started.
///
/// Job time continues across a change of supervisor and never decreases; time in which no supervisor ran does not
/// count. It is not wall-clock time: the shell (the asynchronous part of the runtime) converts its monotonic clock once
/// per input, and all other code takes job time as an argument.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use std::time::Duration;
/// use taskd_core::job::JobTime;
///
/// let opened = JobTime::from_nanos(1_000);
/// let decided = opened + Duration::from_micros(2);
/// assert_eq!(decided.since(opened), Duration::from_micros(2));
/// assert_eq!(opened.since(decided), Duration::ZERO); // never negative
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct JobTime(u64);

impl JobTime {
    /// The time at which the job started: zero.
    pub const START: JobTime = JobTime(0);

    /// Returns the time `nanos` nanoseconds after the job's start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> JobTime {
        JobTime(nanos)
    }

    /// Returns the time in nanoseconds since the job's start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time elapsed since `earlier`; zero if `earlier` is later than this time.
    #[must_use]
    pub const fn since(self, earlier: JobTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time `age` before this one, but not before the job's start.
    #[must_use]
    pub fn before(self, age: Duration) -> JobTime {
        JobTime(self.0.saturating_sub(nanos(age)))
    }
}

impl Add<Duration> for JobTime {
    type Output = JobTime;

    /// Adds a duration; the sum saturates, so that `Duration::MAX` means "never".
    fn add(self, later: Duration) -> JobTime {
        JobTime(self.0.saturating_add(nanos(later)))
    }
}

impl fmt::Display for JobTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} s", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1_000)
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

//! Time inside a job: nanoseconds since its start, handed in as an argument, never read from a clock here.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// Nanoseconds since the job started.
///
/// It survives a change of supervisor and never goes back; time in which no supervisor ran does not count. It is not a
/// wall clock: the shell maps its monotonic clock to it once per input, and everything behind the shell takes it as an
/// argument.
///
/// ```
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
    /// The moment the job started.
    pub const START: JobTime = JobTime(0);

    /// The moment `nanos` nanoseconds after the job's start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> JobTime {
        JobTime(nanos)
    }

    /// Nanoseconds since the job's start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero when it was not.
    #[must_use]
    pub const fn since(self, earlier: JobTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `age` before this one; the job's start when that would lie before it.
    #[must_use]
    pub fn before(self, age: Duration) -> JobTime {
        JobTime(self.0.saturating_sub(nanos(age)))
    }
}

impl Add<Duration> for JobTime {
    type Output = JobTime;

    /// Saturates: `Duration::MAX` means "never".
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

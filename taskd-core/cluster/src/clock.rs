//! Moments on this host: the time for which the machine was suspended counts.
//!
//! `CLOCK_MONOTONIC`, which tokio's clock is, stands still while a machine is suspended, and the leases of its manager and
//! of its agents do not. `CLOCK_BOOTTIME` goes on, but a simulation of the network does not control it. A [`Moment`]
//! has both: of two moments, the longer time in between counts, so that no lease is longer by one clock than by the other.

use std::time::Duration;
use taskd_runtime::launch;
use tokio::time::{Instant, sleep};

/// Longest time for which a wait for a moment goes on after the end of a suspension, although the moment is over.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[cfg(feature = "test-util")]
thread_local! {
    static SIMULATED: std::cell::Cell<Option<fn() -> Duration>> = const { std::cell::Cell::new(None) };
}

/// Replaces `CLOCK_BOOTTIME` on this thread, for all hosts that it simulates.
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub fn simulate_boot_time(now: fn() -> Duration) {
    SIMULATED.set(Some(now));
}

/// Returns the time since the machine's start.
fn since_boot() -> Duration {
    #[cfg(feature = "test-util")]
    if let Some(now) = SIMULATED.get() {
        return now();
    }
    launch::since_boot()
}

/// A moment on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    steady: Instant,
    /// Time since the machine's start, in `CLOCK_BOOTTIME`.
    since_boot: Duration,
}

impl Moment {
    pub(crate) fn now() -> Moment {
        Moment { steady: Instant::now(), since_boot: since_boot() }
    }

    /// Time since this moment; zero if it is in the future.
    pub(crate) fn elapsed(&self) -> Duration {
        self.steady.elapsed().max(since_boot().saturating_sub(self.since_boot))
    }

    /// Time until this moment; zero if it is over.
    pub(crate) fn left(&self) -> Duration {
        self.steady.saturating_duration_since(Instant::now()).min(self.since_boot.saturating_sub(since_boot()))
    }

    /// Returns true if this moment is over.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns the moment that is `later` after this one; `None` if no clock reaches it.
    pub(crate) fn plus(&self, later: Duration) -> Option<Moment> {
        let steady = self.steady.checked_add(later)?;
        Some(Moment { steady, since_boot: self.since_boot.checked_add(later)? })
    }

    /// Returns the moment that is `earlier` before this one; `None` if the machine had not started then.
    pub(crate) fn minus(&self, earlier: Duration) -> Option<Moment> {
        let steady = self.steady.checked_sub(earlier)?;
        Some(Moment { steady, since_boot: self.since_boot.checked_sub(earlier)? })
    }

    /// Returns true if this moment is after the other by any clock.
    pub(crate) fn is_after(&self, other: Moment) -> bool {
        self.steady > other.steady || self.since_boot > other.since_boot
    }

    /// Returns the later of two moments, by each clock.
    pub(crate) fn later(&self, other: Moment) -> Moment {
        Moment { steady: self.steady.max(other.steady), since_boot: self.since_boot.max(other.since_boot) }
    }

    /// Returns this moment in `CLOCK_BOOTTIME`, as a [`Fence`](taskd_runtime::launch::Fence) takes it.
    pub(crate) const fn since_boot(&self) -> Duration {
        self.since_boot
    }

    /// Returns this moment on tokio's clock.
    pub(crate) const fn steady(&self) -> Instant {
        self.steady
    }

    /// Waits until this moment is over. After a suspension, it returns at most 200 ms late.
    pub(crate) async fn reached(&self) {
        loop {
            match self.left() {
                Duration::ZERO => return,
                left => sleep(left.min(LOOK_EVERY)).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A moment as a suspension of an hour after it leaves it: only `CLOCK_BOOTTIME` has gone on.
    fn before_a_suspension(moment: Moment) -> Moment {
        Moment { since_boot: moment.since_boot.saturating_sub(HOUR), ..moment }
    }

    #[tokio::test]
    async fn the_time_of_a_suspension_counts() {
        let deadline = Moment::now().plus(HOUR / 2).expect("it is soon");
        assert!(!deadline.is_over());
        assert!(before_a_suspension(deadline).is_over());
        before_a_suspension(deadline).reached().await; // at once
        let now = Moment::now();
        let passed = before_a_suspension(now).elapsed();
        assert!(passed >= HOUR.min(now.since_boot), "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn simulated_time_counts() {
        let start = Moment::now();
        let deadline = start.plus(HOUR).expect("it is soon");
        tokio::time::advance(HOUR).await;
        assert!(start.elapsed() >= HOUR && deadline.is_over());
        assert_eq!(start.later(deadline), deadline);
        assert_eq!(deadline.minus(HOUR), Some(start));
    }
}

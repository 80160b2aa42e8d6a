//! The timer of sources that poll at an interval. The polling itself is the source's own.

use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

/// Ticks at a steady pace from the first wait on. A late tick delays the following ones; missed ticks are not made up
/// for.
#[derive(Debug)]
pub(super) struct Ticks {
    every: Duration,
    timer: Option<Interval>,
}

impl Ticks {
    /// Creates a timer with this period, which is raised to one millisecond if it is shorter.
    pub(super) fn new(every: Duration) -> Ticks {
        Ticks { every: every.max(Duration::from_millis(1)), timer: None }
    }

    /// Waits for the next tick; the first comes at once. Cancel-safe.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime with time enabled.
    pub(super) async fn next(&mut self) {
        let timer = self.timer.get_or_insert_with(|| {
            let mut timer = tokio::time::interval(self.every);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer
        });
        timer.tick().await;
    }
}

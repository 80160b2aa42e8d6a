//! When to look again, for sources that look at something every so often.
//!
//! It looks at nothing itself.

use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

/// Ticks at a steady pace from the first wait on; one that comes late puts the next ones off, and none is made up for.
#[derive(Debug)]
pub(super) struct Ticks {
    every: Duration,
    timer: Option<Interval>,
}

impl Ticks {
    /// No quicker than every millisecond.
    pub(super) fn new(every: Duration) -> Ticks {
        Ticks { every: every.max(Duration::from_millis(1)), timer: None }
    }

    /// Waits for the next one; the first comes at once. Cancel-safe.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub(super) async fn next(&mut self) {
        let timer = self.timer.get_or_insert_with(|| {
            let mut timer = tokio::time::interval(self.every);
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer
        });
        timer.tick().await;
    }
}

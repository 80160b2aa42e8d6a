//! Looks from outside at the call that a detector is in, so that one that never returns is told of.
//!
//! It ends no thread: one that does not come back is left to itself, with the detector.

use super::driver::What;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The call that a detector is in, and since when. Real time: blocked threads know no other.
#[derive(Default)]
pub(super) struct Watch(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    current: Option<(What, Instant)>,
    last: Duration,
}

/// The call that has not returned.
pub(super) struct Stuck(pub(super) What);

impl Watch {
    pub(super) fn begin(&self, what: &What) {
        self.lock().current = Some((what.clone(), Instant::now()));
    }

    pub(super) fn end(&self) {
        let mut seen = self.lock();
        if let Some((_, began)) = seen.current.take() {
            seen.last = began.elapsed();
        }
    }

    /// How long the last call has taken.
    pub(super) fn last(&self) -> Duration {
        self.lock().last
    }

    /// Runs `play`, which makes calls under this watch, on a thread of its own.
    ///
    /// # Panics
    /// As `play` does.
    pub(super) fn over<T: Send + 'static>(
        &self,
        patience: Duration,
        play: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let (done, played) = channel();
        let thread = std::thread::spawn(move || {
            let _ = done.send(play()); // nobody waits any more for one that was given up
        });
        loop {
            match played.recv_timeout(patience / 4) {
                Ok(played) => return Ok(played),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match thread.join() {
                    Err(panic) => resume_unwind(panic),
                    Ok(()) => unreachable!("a thread that has ended well has sent what it played"),
                },
            }
            let seen = self.lock();
            if let Some((what, _)) = seen.current.as_ref().filter(|(_, began)| began.elapsed() >= patience) {
                return Err(Stuck(what.clone()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // no code of others runs under it
    }
}

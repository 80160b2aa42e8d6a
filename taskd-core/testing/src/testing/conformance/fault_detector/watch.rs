//! Observes the current call of a detector from outside, so that a call that never returns is reported.
//!
//! It ends no thread: a thread that does not return is left behind, together with the detector.

use super::driver::What;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The current call of a detector, and the time at which it began. It uses real time, because blocked threads have no
/// other.
#[derive(Default)]
pub(super) struct Watch(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    current: Option<(What, Instant)>,
    last: Duration,
}

/// A call that has not returned.
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

    /// Returns the duration of the last call.
    pub(super) fn last(&self) -> Duration {
        self.lock().last
    }

    /// Runs `play`, which makes calls under this watch, on a separate thread.
    ///
    /// # Panics
    /// Panics if `play` panics.
    pub(super) fn over<T: Send + 'static>(
        &self,
        patience: Duration,
        play: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let (done, played) = channel();
        let thread = std::thread::spawn(move || {
            let _ = done.send(play()); // no caller waits for an abandoned call
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs under this lock
    }
}

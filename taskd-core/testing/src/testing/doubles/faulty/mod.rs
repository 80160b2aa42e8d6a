//! A wrapper that adds one fault to any plugin.

mod detector;
mod launcher;
mod source;
mod strategy;

use crate::trace::{SourceError, TraceBatch};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A wrapper that adds one fault, such as slowness, to a plugin of any kind.
///
/// | | launcher | source | detector | strategy |
/// |---|---|---|---|---|
/// | [`slow`](Faulty::slow) | every call, and every change, is late | every batch is late | `observe` takes long | `propose` takes long |
/// | [`failing`](Faulty::failing) | the first starts are [`Unreachable`](crate::launch::LaunchError::Unreachable) | the first batches are errors | the first observations are dropped | the first incidents are refused |
/// | [`panicking`](Faulty::panicking) | in `start` | in `next` | in `observe` | in `propose` |
/// | [`repeating`](Faulty::repeating) | every change is reported twice | every batch is delivered twice | every finding is reported twice | every stage is proposed twice |
///
/// ```
/// use taskd_core::testing::doubles::{FakeLauncher, Faulty};
///
/// let fails_twice_then_works = Faulty::failing(FakeLauncher::new(), 2);
/// # let _: Box<dyn taskd_core::launch::Launcher> = Box::new(fails_twice_then_works);
/// ```
#[derive(Debug)]
pub struct Faulty<P> {
    inner: P,
    fault: Fault,
    calls: AtomicU32,
    /// Batches that were taken from the inner source and not yet delivered.
    held: VecDeque<Option<Result<TraceBatch, SourceError>>>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Slow(Duration),
    Failing(u32),
    Panicking(u32),
    Repeating,
}

impl<P> Faulty<P> {
    /// Wraps a plugin so that each of its operations takes `delay` longer.
    pub fn slow(inner: P, delay: Duration) -> Faulty<P> {
        Faulty::new(inner, Fault::Slow(delay))
    }

    /// Wraps a plugin so that its first `times` operations fail.
    pub fn failing(inner: P, times: u32) -> Faulty<P> {
        Faulty::new(inner, Fault::Failing(times))
    }

    /// Wraps a plugin so that it panics at the first call after `calls` successful ones, and at every later call.
    pub fn panicking(inner: P, calls: u32) -> Faulty<P> {
        Faulty::new(inner, Fault::Panicking(calls))
    }

    /// Wraps a plugin so that it delivers each of its results (changes, batches, findings or stages) twice.
    pub fn repeating(inner: P) -> Faulty<P> {
        Faulty::new(inner, Fault::Repeating)
    }

    fn new(inner: P, fault: Fault) -> Faulty<P> {
        Faulty { inner, fault, calls: AtomicU32::new(0), held: VecDeque::new() }
    }

    fn repeats(&self) -> bool {
        matches!(self.fault, Fault::Repeating)
    }

    fn delay(&self) -> Duration {
        match self.fault {
            Fault::Slow(delay) => delay,
            _ => Duration::ZERO,
        }
    }

    /// Keeps the processor busy for the wrapper's delay, as a slow plugin without an await does.
    fn work(&self) {
        let began = Instant::now();
        while began.elapsed() < self.delay() {
            std::hint::spin_loop();
        }
    }

    /// Counts one call of the method in which the fault shows. Returns true if the call must fail.
    ///
    /// # Panics
    /// In the variant whose fault is to panic, once its successful calls are over.
    fn call(&self) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::Failing(times) => call < times,
            Fault::Panicking(calls) if call >= calls => panic!("a double panics as scripted"),
            _ => false,
        }
    }
}

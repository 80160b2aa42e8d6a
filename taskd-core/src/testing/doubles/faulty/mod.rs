//! Any plugin, with one fault added.

mod detector;
mod launcher;
mod source;
mod strategy;

use crate::trace::{SourceError, TraceBatch};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A plugin around another one of any kind, with one fault.
///
/// | | launcher | source | detector | strategy |
/// |---|---|---|---|---|
/// | [`slow`](Faulty::slow) | every call, and every change, is late | every batch is late | `observe` takes long | `propose` takes long |
/// | [`failing`](Faulty::failing) | the first starts are [`Unreachable`](crate::launch::LaunchError::Unreachable) | the first batches are errors | the first observations go unseen | the first incidents are refused |
/// | [`panicking`](Faulty::panicking) | in `start` | in `next` | in `observe` | in `propose` |
/// | [`repeating`](Faulty::repeating) | every change is told twice | every batch comes twice | every finding is said twice | every stage is proposed twice |
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
    /// What a source took from the inner one and has not delivered.
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
    /// Takes `delay` longer for everything.
    pub fn slow(inner: P, delay: Duration) -> Faulty<P> {
        Faulty::new(inner, Fault::Slow(delay))
    }

    /// Fails the first `times` times.
    pub fn failing(inner: P, times: u32) -> Faulty<P> {
        Faulty::new(inner, Fault::Failing(times))
    }

    /// Panics at the call after `calls` good ones, and at every later one.
    pub fn panicking(inner: P, calls: u32) -> Faulty<P> {
        Faulty::new(inner, Fault::Panicking(calls))
    }

    /// Says everything twice.
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

    /// Keeps the processor busy for the delay, as a plugin without an await does.
    fn work(&self) {
        let began = Instant::now();
        while began.elapsed() < self.delay() {
            std::hint::spin_loop();
        }
    }

    /// Counts one call of the method in which the fault shows. True: it is to fail.
    ///
    /// # Panics
    /// That is the fault of a panicking one.
    fn call(&self) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::Failing(times) => call < times,
            Fault::Panicking(calls) if call >= calls => panic!("a double panics as it was told to"),
            _ => false,
        }
    }
}

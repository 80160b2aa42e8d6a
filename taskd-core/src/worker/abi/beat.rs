//! A heartbeat that the program cannot hold up: a thread of its own that needs no interpreter's lock.
//!
//! It says that the process is not stopped, and nothing of what its threads do.

use super::recorder::Clock;
use super::signals::without_signals;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The least and the most between two beats.
const EVERY_MS: std::ops::RangeInclusive<u32> = 10..=60_000;

/// Beats from now on, until the process ends or forgets the thread by a fork or an exec.
pub(super) fn start(word: &'static AtomicU64, every_ms: u32) -> std::io::Result<()> {
    let every = Duration::from_millis(every_ms.clamp(*EVERY_MS.start(), *EVERY_MS.end()).into());
    #[allow(clippy::disallowed_methods)] // nothing happens that it could wait for: it is a clock's hand
    let beat = move || {
        loop {
            std::thread::sleep(every);
            word.store(Clock::Monotonic.ticks(), Ordering::Release);
        }
    };
    // Here, and not first by the thread: a busy host may run that only when the process has ended.
    word.store(Clock::Monotonic.ticks(), Ordering::Release);
    without_signals(|| std::thread::Builder::new().name("taskd-beat".into()).stack_size(64 << 10).spawn(beat))?;
    Ok(())
}

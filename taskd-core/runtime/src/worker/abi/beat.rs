//! A heartbeat that the program cannot delay: its thread needs no interpreter lock.
//!
//! It shows that the process is not stopped, but nothing about the progress of the other threads.

use super::recorder::Clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use taskd_probe::signals::without_signals;

/// Minimum and maximum interval between two beats, in milliseconds.
const EVERY_MS: std::ops::RangeInclusive<u32> = 10..=60_000;

/// Starts the beats, which continue until the process ends or loses the thread by a fork or an exec.
pub(super) fn start(word: &'static AtomicU64, every_ms: u32) -> std::io::Result<()> {
    let every = Duration::from_millis(every_ms.clamp(*EVERY_MS.start(), *EVERY_MS.end()).into());
    #[allow(clippy::disallowed_methods)] // it only writes the time, and waits for nothing else
    let beat = move || {
        loop {
            std::thread::sleep(every);
            word.store(Clock::Monotonic.ticks(), Ordering::Release);
        }
    };
    // Written here rather than first by the thread: on a busy host the thread may run only after the process has ended.
    word.store(Clock::Monotonic.ticks(), Ordering::Release);
    without_signals(|| std::thread::Builder::new().name("taskd-beat".into()).stack_size(64 << 10).spawn(beat))?;
    Ok(())
}

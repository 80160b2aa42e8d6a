//! The recorder's clock: the processor's counter where all cores agree on it, else the system's monotonic clock.
//!
//! It counts ticks and knows nothing of records. What ticks are in time, two [`Anchor`]s of one boot tell.

use super::sys;

/// What ticks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Clock {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    Monotonic = 1,
    /// The processor's counter: the time-stamp counter of x86-64, `CNTVCT_EL0` of aarch64.
    Counter = 2,
}

impl Clock {
    /// The cheapest one that can be relied on here.
    #[must_use]
    pub fn best() -> Clock {
        if counter_is_sound() { Clock::Counter } else { Clock::Monotonic }
    }

    /// The clock of a number in a file.
    #[must_use]
    pub const fn of_number(number: u32) -> Option<Clock> {
        match number {
            1 => Some(Clock::Monotonic),
            2 => Some(Clock::Counter),
            _ => None,
        }
    }

    /// Now.
    #[inline]
    #[must_use]
    pub fn ticks(self) -> u64 {
        match self {
            Clock::Monotonic => sys::monotonic_nanos(),
            Clock::Counter => counter(),
        }
    }

    /// Ticks and time, taken together: of a few tries the one that took least, as something may have come in between.
    #[must_use]
    pub fn anchor(self) -> Anchor {
        const TRIES: u32 = 5;
        let attempt = |_| {
            let before = self.ticks();
            let nanos = sys::monotonic_nanos();
            let took = self.ticks().wrapping_sub(before);
            (took, Anchor { ticks: before.wrapping_add(took / 2), nanos })
        };
        (0..TRIES)
            .map(attempt)
            .min_by_key(|(took, _)| *took)
            .map_or(Anchor { ticks: 0, nanos: 0 }, |(_, anchor)| anchor)
    }
}

/// A moment by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Ticks of the recorder's clock.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub nanos: u64,
}

/// Which start of the system this is; 0 where that is not told.
pub(super) fn boot() -> u128 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0)
}

/// Turns ticks into time.
#[derive(Clone, Copy, Debug)]
pub struct TimeLine {
    origin: Anchor,
    /// 2^48 times the nanoseconds of a tick: a day's ticks are right to a nanosecond.
    nanos_per_tick: u64,
}

impl TimeLine {
    /// Through two moments; the further they are apart the better. `None` if no time lies between them, or more of it than
    /// such a clock can have counted: one of them is not of this clock.
    #[must_use]
    pub fn through(first: Anchor, second: Anchor) -> Option<TimeLine> {
        let ticks = second.ticks.checked_sub(first.ticks).filter(|ticks| *ticks > 0)?;
        let nanos = second.nanos.checked_sub(first.nanos)?;
        let per_tick = (u128::from(nanos) << 48) / u128::from(ticks);
        let nanos_per_tick = u64::try_from(per_tick).ok().filter(|rate| (1..=RATE_MAX).contains(rate))?;
        Some(TimeLine { origin: first, nanos_per_tick })
    }

    /// `CLOCK_MONOTONIC` in nanoseconds; what cannot be is the nearest that can.
    #[must_use]
    pub fn nanos(&self, ticks: u64) -> u64 {
        let since = |ticks: u64| (u128::from(ticks) * u128::from(self.nanos_per_tick)) >> 48;
        let clamp = |nanos: u128| u64::try_from(nanos).unwrap_or(u64::MAX);
        match ticks.checked_sub(self.origin.ticks) {
            Some(after) => self.origin.nanos.saturating_add(clamp(since(after))),
            None => self.origin.nanos.saturating_sub(clamp(since(self.origin.ticks - ticks))),
        }
    }
}

/// A microsecond for a tick: no counter is that slow.
const RATE_MAX: u64 = 1000 << 48;

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; in a process that may not use it `counter_is_sound` says no first.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Whether the counter runs at one pace on all cores: the system itself keeps time by it.
#[cfg(target_arch = "x86_64")]
fn counter_is_sound() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    sys::may_read_counter() && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register that Linux lets every process read, and touches nothing else.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// The architecture has one counter for all cores.
#[cfg(target_arch = "aarch64")]
fn counter_is_sound() -> bool {
    true
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    sys::monotonic_nanos()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter_is_sound() -> bool {
    false
}

//! The recorder's clock: the processor's counter if all cores agree on it, otherwise the system's monotonic clock.
//!
//! The clock counts ticks. Two [`Anchor`]s of one boot define the conversion of ticks to time.

use super::sys;

/// Clock of a recorder: source and unit of the ticks in which it stores times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Clock {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    Monotonic = 1,
    /// The processor's counter: the time-stamp counter of x86-64, `CNTVCT_EL0` of aarch64.
    Counter = 2,
}

impl Clock {
    /// Returns the clock that is cheapest to read among those that are reliable on this machine.
    #[must_use]
    pub fn best() -> Clock {
        if counter_is_sound() { Clock::Counter } else { Clock::Monotonic }
    }

    /// Returns the clock that has this number in a recorder's file; `None` for an unknown number.
    #[must_use]
    pub const fn of_number(number: u32) -> Option<Clock> {
        match number {
            1 => Some(Clock::Monotonic),
            2 => Some(Clock::Counter),
            _ => None,
        }
    }

    /// Returns the current tick count.
    #[inline]
    #[must_use]
    pub fn ticks(self) -> u64 {
        match self {
            Clock::Monotonic => sys::monotonic_nanos(),
            Clock::Counter => counter(),
        }
    }

    /// Reads this clock's ticks and `CLOCK_MONOTONIC` for the same moment. Returns the fastest of five attempts, since
    /// the thread may be interrupted between the two reads.
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

/// One moment on two clocks: the clock of a recorder, and the system's `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Tick count of the recorder's clock at the moment.
    pub ticks: u64,
    /// Time of `CLOCK_MONOTONIC` at the moment, in nanoseconds.
    pub nanos: u64,
}

/// Returns the system's boot id; 0 if unavailable.
pub(super) fn boot() -> u128 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u128::from_str_radix(&id.trim().replace('-', ""), 16).unwrap_or(0)
}

/// Linear conversion of a recorder's ticks to times of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    origin: Anchor,
    /// Nanoseconds per tick times 2^48: precise to one nanosecond over a day.
    nanos_per_tick: u64,
}

impl Timeline {
    /// Creates the conversion from two moments; a longer distance between them gives better precision. `None` if the
    /// second moment has no higher tick count than the first, or if the resulting rate is impossible for a clock: then
    /// one of the two moments was not read from this clock.
    #[must_use]
    pub fn through(first: Anchor, second: Anchor) -> Option<Timeline> {
        let ticks = second.ticks.checked_sub(first.ticks).filter(|ticks| *ticks > 0)?;
        let nanos = second.nanos.checked_sub(first.nanos)?;
        let per_tick = (u128::from(nanos) << 48) / u128::from(ticks);
        let nanos_per_tick = u64::try_from(per_tick).ok().filter(|rate| (1..=RATE_MAX).contains(rate))?;
        Some(Timeline { origin: first, nanos_per_tick })
    }

    /// Converts ticks to `CLOCK_MONOTONIC` in nanoseconds, clamped to the range of `u64`.
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

/// One microsecond per tick: no counter is slower.
const RATE_MAX: u64 = 1000 << 48;

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; in a process that may not execute it `counter_is_sound`
    // returns false first.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns true if the counter runs at one rate on all cores: the system itself uses it as its clock source.
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

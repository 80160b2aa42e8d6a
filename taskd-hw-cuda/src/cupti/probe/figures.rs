//! What the probe counts, told as figures among the records: so whoever has the records knows what is missing in them.
//!
//! It counts nothing itself.

use super::record::{FIGURE, INSTANT, MARKER, NONE, Record};

/// How the name of each figure begins.
pub const PREFIX: &str = "cupti.";
/// How the moment is called at which the probe has given up, before the reason.
pub const UNAVAILABLE: &str = "cupti is unavailable: ";

/// The names of the figures, in the order of [`Figures::values`].
pub const NAMES: [&str; 10] = [
    "cupti.records",
    "cupti.brought",
    "cupti.off",
    "cupti.unknown",
    "cupti.untimed",
    "cupti.unjoined",
    "cupti.dropped",
    "cupti.given_up",
    "cupti.refused_requests",
    "cupti.stand_in",
];

/// The figures, each since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Records of CUPTI's that were read.
    pub records: u64,
    /// Records that were brought into the recorder.
    pub brought: u64,
    /// Records of kinds that were off by the time.
    pub off: u64,
    /// Records of kinds that nobody asked for, and such as were cut.
    pub unknown: u64,
    /// Records whose time CUPTI could not tell.
    pub untimed: u64,
    /// Ranges of which one end is missing.
    pub unjoined: u64,
    /// Records that CUPTI dropped, as it says.
    pub dropped: u64,
    /// Records for which the recorder had no room when the program ended.
    pub given_up: u64,
    /// Requests for a buffer when there was none to be had.
    pub refused_requests: u64,
    /// 1 where no GPU is behind the library.
    pub stand_in: u64,
}

impl Figures {
    /// Their values.
    #[must_use]
    pub const fn values(&self) -> [u64; 10] {
        let Figures {
            records,
            brought,
            off,
            unknown,
            untimed,
            unjoined,
            dropped,
            given_up,
            refused_requests,
            stand_in,
        } = *self;
        [records, brought, off, unknown, untimed, unjoined, dropped, given_up, refused_requests, stand_in]
    }

    /// Those that differ from what was told before.
    pub fn told_since(&self, before: Option<&Figures>, now: u64, mut number: impl FnMut(&str) -> u32) -> Vec<Record> {
        let known = before.map(Figures::values);
        let new =
            self.values().into_iter().enumerate().filter(|(at, value)| known.is_none_or(|known| known[*at] != *value));
        let record = |(at, value): (usize, u64)| Record {
            unix_nanos: now,
            value: value as f64,
            kind: MARKER,
            name: number(NAMES[at]),
            event: FIGURE,
            peer: NONE,
            device: NONE,
            stream: NONE,
            ..Record::default()
        };
        new.map(record).collect()
    }
}

/// That there is nothing to be had, and why.
pub fn unavailable(why: &str, now: u64, number: impl FnOnce(&str) -> u32) -> Record {
    let name = number(&format!("{UNAVAILABLE}{why}"));
    let (device, stream, peer) = (NONE, NONE, NONE);
    Record { unix_nanos: now, kind: MARKER, name, event: INSTANT, device, stream, peer, ..Record::default() }
}

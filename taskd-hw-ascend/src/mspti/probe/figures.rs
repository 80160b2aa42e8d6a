//! What the probe counts, told as figures among the records: so whoever has the records knows what is missing in them.
//!
//! It counts nothing itself.

use super::forms::{FIGURE, INSTANT, NONE, Record};
use super::texts::MARKER;

/// How the name of each figure begins.
pub const PREFIX: &str = "mspti.";
/// How the moment is called at which the probe has given up, before the reason.
pub const UNAVAILABLE: &str = "mspti is unavailable: ";

/// The figures, each since the process began unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Records of mspti's that were read.
    pub records: u64,
    /// Records that were brought into the recorder.
    pub brought: u64,
    /// Spans and moments of kinds that were off when they began.
    pub off: u64,
    /// Records that no other belongs to: an end without a beginning, or a beginning that was forgotten.
    pub unjoined: u64,
    /// Buffers whose end could not be read, as a record in them is of a kind that is not known.
    pub cut_buffers: u64,
    /// Bytes of these that were not read.
    pub cut_bytes: u64,
    /// Requests for a buffer when there was none to be had: what mspti records meanwhile it drops, and does not say.
    pub refused_requests: u64,
    /// Buffers that mspti has or that wait to be read, now.
    pub buffers_out: u64,
    /// Milliseconds that the probe's thread was on a CPU.
    pub busy_ms: f64,
    /// 1 where no device is behind the library.
    pub stand_in: u64,
}

impl Figures {
    /// Each with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 10] {
        [
            ("mspti.records", self.records as f64),
            ("mspti.brought", self.brought as f64),
            ("mspti.off", self.off as f64),
            ("mspti.unjoined", self.unjoined as f64),
            ("mspti.cut_buffers", self.cut_buffers as f64),
            ("mspti.cut_bytes", self.cut_bytes as f64),
            ("mspti.refused_requests", self.refused_requests as f64),
            ("mspti.buffers_out", self.buffers_out as f64),
            ("mspti.busy_ms", self.busy_ms),
            ("mspti.stand_in", self.stand_in as f64),
        ]
    }

    /// Those that differ from what was told before.
    pub fn told_since(&self, before: Option<&Figures>, now: u64, mut number: impl FnMut(&str) -> u32) -> Vec<Record> {
        let known = before.map(Figures::named);
        let differs = |at: usize, value: f64| known.is_none_or(|known| known[at].1 != value);
        let new = self.named().into_iter().enumerate().filter(|(at, (_, value))| differs(*at, *value));
        new.map(|(_, (name, value))| Record {
            unix_nanos: now,
            value,
            kind: MARKER,
            name: number(name),
            event: FIGURE,
            peer: NONE,
            ..Record::default()
        })
        .collect()
    }
}

/// That there is nothing to be had, and why.
pub fn unavailable(why: &str, now: u64, number: impl FnOnce(&str) -> u32) -> Record {
    let name = number(&format!("{UNAVAILABLE}{why}"));
    Record { unix_nanos: now, kind: MARKER, name, event: INSTANT, peer: NONE, ..Record::default() }
}

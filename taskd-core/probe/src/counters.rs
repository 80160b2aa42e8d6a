//! A probe's counters and its end, written as records: a reader of the records can see which ones are missing.

use crate::clock::{REALTIME, nanos};
use crate::libtaskd::Libtaskd;
use crate::record::{FIGURE, INSTANT, MARKER, NONE, Record};

fn marker(name: u32, event: u32, value: f64) -> Record {
    let (unix_nanos, kind) = (nanos(REALTIME), MARKER);
    Record { unix_nanos, value, kind, name, event, peer: NONE, device: NONE, stream: NONE, ..Record::default() }
}

/// Builds a trace record for each of a probe's counters whose value differs from its value in `before`, the last
/// report. If there is no `before`, builds records for all counters.
pub fn changed<const N: usize>(
    counters: [(&str, f64); N],
    before: Option<[(&str, f64); N]>,
    libtaskd: &Libtaskd,
) -> Vec<Record> {
    let is_new = |at: usize, value: f64| before.is_none_or(|before| before[at].1 != value);
    let new = counters.into_iter().enumerate().filter(|(at, (_, value))| is_new(*at, *value));
    new.map(|(_, (name, value))| marker(libtaskd.name(name.as_bytes()), FIGURE, value)).collect()
}

/// Reports to the recorder why the given kinds of trace record are not recorded, and records an instant whose name
/// is `prefix` followed by the reason `why`.
pub fn give_up(libtaskd: &Libtaskd, kinds: &[u32], prefix: &str, why: &str) {
    for kind in kinds {
        libtaskd.hooked(*kind);
        libtaskd.except(*kind, why);
    }
    let name = libtaskd.name(format!("{prefix}{why}").as_bytes());
    libtaskd.import(&[marker(name, INSTANT, 0.0)]);
}

//! Bandwidth of copies and fills by their kind, such as `Memcpy HtoD`.
//!
//! The figures are those of `HolisticTraceAnalysis` 0.5.0 (`analyzers/trace_counters.py`, `get_memory_bw_summary`): the
//! sum of the bandwidths of the copies that run, after each change at which it is above zero. The exact mode computes
//! the bandwidth from bytes and nanoseconds, without rounding; copies that end count before those that start at that
//! moment. HTA takes the bandwidth that the trace states, and adds floats: a rest such as 1e-15 after the last copy
//! counts as a value above zero, and a copy that starts in the microsecond in which another one ends runs beside it.

use super::intervals::{length, union_of};
use super::statistics::Statistics;
use crate::kineto::decimal;
use crate::kineto::event::RawEvent;
use serde::Serialize;
use std::collections::BTreeMap;

/// Copies and fills that are kept per rank. Further ones are counted and reported.
pub const COPIES_MAX: usize = 5_000_000;

/// Kinds of copies that are kept per rank. Copies of further kinds count as `Memcpy Unknown`.
pub const COPY_KINDS_MAX: usize = 64;

/// Letters of a copy's name that are its kind: `Memcpy HtoD`.
const KIND_LETTERS: usize = 11;

/// Name of the kind without a known name.
const UNKNOWN: &str = "Memcpy Unknown";

/// Copies and fills of one kind on one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CopyBandwidth {
    /// Kind of the copies: the first eleven letters of their names, `Memset`, or `Memcpy Unknown`.
    pub kind: String,
    /// Number of copies.
    pub copies: u64,
    /// Sum of the bytes that the trace states.
    pub bytes: u64,
    /// Time in which at least one of them runs, in nanoseconds.
    pub busy_ns: i64,
    /// Bandwidth of the running copies together, in GB/s (1e9 bytes), after each change at which it is above zero.
    pub gb_per_s: Statistics,
}

/// A copy or fill. `R` is the type of the bandwidth: bytes per second in the exact mode, GB/s in HTA mode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy<R> {
    /// Number of the name.
    pub(super) name: u32,
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) bytes: u64,
    pub(super) rate: R,
}

/// Returns the bytes of an event, and its bandwidth in GB/s; 0 for what it does not state.
pub(super) fn stated(event: &RawEvent<'_>) -> (u64, f64) {
    let bytes = event.argument(b"bytes").and_then(decimal::integer).and_then(|bytes| u64::try_from(bytes).ok());
    let rate = event.argument(b"memory bandwidth (GB/s)").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    (bytes.unwrap_or(0), rate.filter(|rate: &f64| rate.is_finite()).unwrap_or(0.0))
}

/// Copies that the exact mode keeps, of 40 bytes each.
#[derive(Debug, Default)]
pub(super) struct Copies {
    all: Vec<Copy<i64>>,
    /// Copies that were not kept.
    pub(super) lost: u64,
}

impl Copies {
    /// Adds a copy with the number of its name.
    pub(super) fn add(&mut self, name: u32, start: i64, end: i64, event: &RawEvent<'_>) {
        if self.all.len() >= COPIES_MAX {
            self.lost += 1;
            return;
        }
        let (bytes, stated) = stated(event);
        let duration = i128::from(end.saturating_sub(start));
        let exact = (i128::from(bytes) * 1_000_000_000).checked_div(duration).filter(|_| bytes > 0);
        #[allow(clippy::cast_possible_truncation, reason = "a cast of a float saturates")]
        let rate = exact.map_or((stated * 1e9) as i64, |rate| i64::try_from(rate).unwrap_or(i64::MAX));
        self.all.push(Copy { name, start, end, bytes, rate: rate.max(0) });
    }

    /// Returns the kinds in the order of their names. `name` returns the name of a number.
    pub(super) fn finish<'a>(self, name: impl Fn(u32) -> &'a [u8]) -> Vec<CopyBandwidth> {
        by_kind(self.all, name).into_iter().map(|(kind, copies)| exact_kind(kind, &copies)).collect()
    }
}

fn exact_kind(kind: String, copies: &[Copy<i64>]) -> CopyBandwidth {
    let changes = |copy: &Copy<i64>| [(copy.start, i128::from(copy.rate)), (copy.end, -i128::from(copy.rate))];
    let mut changes: Vec<(i64, i128)> = copies.iter().flat_map(changes).collect();
    changes.sort_unstable();
    let mut running = 0_i128;
    let after = changes.iter().map(|change| {
        running += change.1;
        running
    });
    #[allow(clippy::cast_precision_loss, reason = "a bandwidth for display")]
    let mut values: Vec<f64> = after.filter(|rate| *rate > 0).map(|rate| rate as f64 / 1e9).collect();
    CopyBandwidth { gb_per_s: Statistics::of_floats(&mut values), ..totals(kind, copies) }
}

/// Returns the kinds by HTA's rules. Times are in microseconds, and copies in the order of HTA's rows.
pub(super) fn of_hta<'a>(copies: Vec<Copy<f64>>, name: impl Fn(u32) -> &'a [u8]) -> Vec<CopyBandwidth> {
    by_kind(copies, name)
        .into_iter()
        .map(|(kind, copies)| {
            let end = |copy: &Copy<f64>| if copy.end == copy.start { copy.start.saturating_add(1) } else { copy.end };
            let starts = copies.iter().map(|copy| (copy.start, copy.rate));
            let mut changes: Vec<(i64, f64)> =
                starts.chain(copies.iter().map(|copy| (end(copy), -copy.rate))).collect();
            changes.sort_by_key(|change| change.0); // a stable sort, so starts come before ends; HTA's is not stable
            let mut running = 0.0;
            let after = changes.iter().map(|change| {
                running += change.1;
                running
            });
            let mut values: Vec<f64> = after.filter(|rate| *rate > 0.0).collect();
            let totals = totals(kind, &copies);
            let busy_ns = totals.busy_ns.saturating_mul(1000);
            CopyBandwidth { gb_per_s: Statistics::of_floats(&mut values), busy_ns, ..totals }
        })
        .filter(|kind| kind.gb_per_s.count > 0)
        .collect()
}

fn totals<R>(kind: String, copies: &[Copy<R>]) -> CopyBandwidth {
    let busy = union_of(copies.iter().map(|copy| (copy.start, copy.end)));
    CopyBandwidth {
        kind,
        copies: copies.len() as u64,
        bytes: copies.iter().fold(0, |sum, copy| sum.saturating_add(copy.bytes)),
        busy_ns: length(&busy),
        gb_per_s: Statistics::default(),
    }
}

fn by_kind<'a, R>(copies: Vec<Copy<R>>, name: impl Fn(u32) -> &'a [u8]) -> BTreeMap<String, Vec<Copy<R>>> {
    let mut kinds: BTreeMap<String, Vec<Copy<R>>> = BTreeMap::new();
    for copy in copies {
        let kind = kind(name(copy.name));
        let is_kept = kinds.len() < COPY_KINDS_MAX || kinds.contains_key(&kind);
        kinds.entry(if is_kept { kind } else { UNKNOWN.to_owned() }).or_default().push(copy);
    }
    kinds
}

/// Returns the kind of a copy (`utils/utils.py`, `get_memory_kernel_type`).
fn kind(name: &[u8]) -> String {
    if name.starts_with(b"Memset") {
        return "Memset".to_owned();
    }
    if !name.starts_with(b"Memcpy") {
        return UNKNOWN.to_owned();
    }
    String::from_utf8_lossy(name).chars().take(KIND_LETTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(number: u32) -> &'static [u8] {
        [b"Memcpy HtoD (Pinned -> Device)".as_slice(), b"Memset (Device)", b"dma_0"][number as usize]
    }

    #[test]
    fn exact_bandwidth_is_bytes_by_time() {
        let copy = |name, start, end, bytes, rate| Copy { name, start, end, bytes, rate };
        // 10 GB/s, then 10 and 30 GB/s together, then 30 GB/s; 5 GB/s begins when 30 GB/s ends.
        let gb = 1_000_000_000;
        let all = vec![
            copy(0, 0, 100, 1000, 10 * gb),
            copy(0, 50, 150, 3000, 30 * gb),
            copy(0, 150, 160, 50, 5 * gb),
            copy(1, 0, 10, 7, 700_000_000),
            copy(2, 3, 3, 9, 0),
        ];
        let found = Copies { all, lost: 0 }.finish(names);
        let kinds: Vec<(&str, u64, u64, i64)> =
            found.iter().map(|kind| (kind.kind.as_str(), kind.copies, kind.bytes, kind.busy_ns)).collect();
        assert_eq!(kinds, [("Memcpy HtoD", 3, 4050, 160), ("Memcpy Unknown", 1, 9, 0), ("Memset", 1, 7, 10)]);
        let rates = found[0].gb_per_s;
        assert_eq!((rates.count, rates.max, rates.min, rates.mean), (4, 40.0, 5.0, 21.25));
        assert_eq!((found[1].gb_per_s.count, found[2].gb_per_s.max), (0, 0.7));
    }

    #[test]
    fn hta_counts_a_rest_of_floats_and_copies_that_touch() {
        let copy = |start, end, rate| Copy { name: 0, start, end, bytes: 0, rate };
        // 0.1 + 0.2 - 0.1 - 0.2 is 2.8e-17; the last copy lasts 0 us, which count as 1.
        let found = of_hta(vec![copy(0, 10, 0.1), copy(2, 12, 0.2), copy(20, 30, 1.0), copy(30, 30, 2.0)], names);
        let rates = found[0].gb_per_s;
        assert_eq!(rates.count, 7, "{found:?}");
        assert!(rates.min > 0.0 && rates.min < 1e-15 && (rates.max - 3.0).abs() < 1e-12, "{rates:?}");
        assert_eq!((found[0].copies, found[0].busy_ns), (4, 22_000));
        assert!(of_hta(vec![copy(0, 10, 0.0)], names).is_empty(), "HTA has no row without a bandwidth");
    }
}

//! Busy and idle time of each rank's device, and its kernels by name. A rank without a device has the operators of its CPU
//! instead.
//!
//! Only a reader that sees the calls which launched the kernels can tell why a stream is idle: such a reader replaces these
//! figures.

use crate::document::{DeviceTimes, KERNEL_ROWS_MAX, KernelFigures, KernelRules, KernelTimes};
use crate::intervals::{Interval, Intervals};
use crate::model::{Event, Kind, NameId, RankTrace, Trace};
use crate::tables::{float, rounded};
use std::collections::BTreeMap;

/// Rows of kernels that each rank keeps, however many ranks there are.
const ROWS_MIN: usize = 10;

/// Returns the figures of all ranks with computation; none of the others have kernels.
pub(crate) fn figures(trace: &Trace) -> KernelFigures {
    let has_kernels = |row: &RankTrace| row.events.iter().any(|event| event.kind == Kind::Compute);
    let ranks: Vec<(&u32, &RankTrace)> = trace.ranks.iter().filter(|(_, row)| has_kernels(row)).collect();
    if ranks.is_empty() {
        return KernelFigures::default();
    }
    let share = rows_per_rank(ranks.len());
    let mut rules = KernelRules { name: "exact".to_owned(), ..KernelRules::default() };
    for (rank, row) in ranks {
        rules.devices.push(device(*rank, row));
        let kernels = by_name(*rank, row);
        rules.left_out += kernels.len().saturating_sub(share) as u64;
        rules.kernels.extend(largest(kernels, share));
    }
    KernelFigures { rules: vec![rules], differences: Vec::new() }
}

/// Returns the rows of kernels that each of this many ranks keeps.
#[must_use]
pub fn rows_per_rank(ranks: usize) -> usize {
    (KERNEL_ROWS_MAX / ranks.max(1)).max(ROWS_MIN)
}

/// Keeps the kernels of one rank with the largest sums, in the order of class and sum.
#[must_use]
pub fn largest(mut kernels: Vec<KernelTimes>, count: usize) -> Vec<KernelTimes> {
    kernels.sort_by(|one, other| other.sum_us.total_cmp(&one.sum_us).then_with(|| one.name.cmp(&other.name)));
    kernels.truncate(count);
    kernels.sort_by(|one, other| one.class.cmp(&other.class)); // a stable sort: the sums remain in order
    kernels
}

/// Returns the class of a kernel; `None` for an event of the host.
const fn class(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Compute => Some("compute"),
        Kind::Collective | Kind::Send | Kind::Receive => Some("communication"),
        Kind::Copy => Some("memory"),
        _ => None,
    }
}

fn device(rank: u32, row: &RankTrace) -> DeviceTimes {
    let of = |wanted: &str| {
        let events = row.events.iter().filter(|event| class(event.kind) == Some(wanted));
        Intervals::union_of(events.map(|event| Interval { start: event.start_ns, end: event.end_ns() }))
    };
    let [compute, communication, memory] = ["compute", "communication", "memory"].map(of);
    let busy = compute.union(&communication).union(&memory);
    let first = busy.as_slice().first().map_or(0, |interval| interval.start);
    let range = busy.as_slice().last().map_or(0, |interval| interval.end).abs_diff(first);
    DeviceTimes {
        rank,
        kernels: row.events.iter().filter(|event| class(event.kind).is_some()).count() as u64,
        range_us: us(range),
        busy_us: us(busy.total_ns()),
        idle_us: us(range.saturating_sub(busy.total_ns())),
        compute_us: us(compute.total_ns()),
        communication_us: us(communication.total_ns()),
        memory_us: us(memory.total_ns()),
        overlap_us: us(compute.intersection(&communication).total_ns()),
        host_wait_us: None,
        kernel_wait_us: None,
        other_wait_us: None,
    }
}

fn by_name(rank: u32, row: &RankTrace) -> Vec<KernelTimes> {
    let mut durations: BTreeMap<(&str, NameId), Vec<u64>> = BTreeMap::new();
    for (class, Event { name, duration_ns, .. }) in
        row.events.iter().filter_map(|event| Some((class(event.kind)?, event)))
    {
        durations.entry((class, *name)).or_default().push(*duration_ns);
    }
    durations
        .into_iter()
        .map(|((class, name), durations)| times(rank, class, row.names.get(name), &durations))
        .collect()
}

fn times(rank: u32, class: &str, name: &str, durations: &[u64]) -> KernelTimes {
    let count = durations.len() as u64;
    let sum = durations.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
    let mean = float(sum) / float(count.max(1));
    let squares: f64 = durations.iter().map(|ns| (float(*ns) - mean).powi(2)).sum();
    let deviation = if count > 1 { (squares / float(count - 1)).sqrt() } else { 0.0 };
    KernelTimes {
        rank,
        class: class.to_owned(),
        name: name.to_owned(),
        count,
        sum_us: us(sum),
        min_us: us(durations.iter().copied().min().unwrap_or(0)),
        max_us: us(durations.iter().copied().max().unwrap_or(0)),
        mean_us: rounded(mean / 1000.0),
        deviation_us: rounded(deviation / 1000.0),
    }
}

fn us(ns: u64) -> f64 {
    rounded(float(ns) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(events: &[(Kind, &str, i64, u64)]) -> Trace {
        let mut row = RankTrace::default();
        for (kind, name, start_ns, duration_ns) in events {
            let name = row.names.intern(name);
            row.events.push(Event {
                start_ns: *start_ns,
                duration_ns: *duration_ns,
                kind: *kind,
                lane: 0,
                name,
                communication: None,
            });
        }
        Trace { ranks: [(3, row)].into(), ..Trace::default() }
    }

    #[test]
    fn times_are_unions_and_kernels_have_the_statistics_of_their_durations() {
        let found = figures(&trace(&[
            (Kind::Compute, "gemm", 0, 2_000),
            (Kind::Collective, "all_reduce", 1_000, 3_000),
            (Kind::Host, "cudaLaunchKernel", 1_500, 9_000),
            (Kind::Compute, "gemm", 6_000, 4_000),
            (Kind::Copy, "Memcpy HtoD", 12_000, 1_000),
        ]));
        let device = &found.rules[0].devices[0];
        assert_eq!((device.rank, device.kernels, device.host_wait_us), (3, 4, None));
        let shown = [device.range_us, device.busy_us, device.idle_us, device.compute_us, device.overlap_us];
        assert_eq!(shown, [13.0, 9.0, 4.0, 6.0, 1.0]);
        let names: Vec<&str> = found.rules[0].kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["all_reduce", "gemm", "Memcpy HtoD"]);
        let gemm = &found.rules[0].kernels[1];
        assert_eq!((gemm.count, gemm.sum_us, gemm.min_us, gemm.max_us), (2, 6.0, 2.0, 4.0));
        assert_eq!((gemm.mean_us, gemm.deviation_us), (3.0, 1.414));
    }

    #[test]
    fn a_trace_without_computation_has_no_kernels() {
        assert_eq!(figures(&trace(&[(Kind::Host, "step", 0, 10)])), KernelFigures::default());
    }

    #[test]
    fn kernels_with_the_largest_sums_are_kept() {
        let kernel = |name: &str, sum_us: f64| KernelTimes { name: name.to_owned(), sum_us, ..KernelTimes::default() };
        let kept = largest(vec![kernel("a", 1.0), kernel("b", 3.0), kernel("c", 2.0)], 2);
        let names: Vec<String> = kept.into_iter().map(|kernel| kernel.name).collect();
        assert_eq!(names, ["b", "c"]);
        assert_eq!((rows_per_rank(4), rows_per_rank(1_000_000)), (5_000, 10));
    }
}

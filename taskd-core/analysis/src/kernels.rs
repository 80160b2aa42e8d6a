//! Busy and idle time of each rank's device, and its kernels by name. A rank without a device has the operators of its
//! CPU instead.
//!
//! Only a reader that sees the calls which launched the kernels knows why a stream is idle: such a reader makes these
//! figures itself, with a [`KernelCollector`].

mod collector;
mod launches;

pub use collector::{Durations, KernelCollector, NamedKernels, us};

use crate::document::{DeviceTimes, KernelFigures};
use crate::intervals::{Interval, Intervals};
use crate::model::{Event, Kind, NameId, RankTrace, Trace};
use std::collections::BTreeMap;

/// Returns the figures of all ranks with computation. Ranks without computation are left out.
pub(crate) fn figures(trace: &Trace) -> KernelFigures {
    let has_kernels = |row: &RankTrace| row.events.iter().any(|event| event.kind == Kind::Compute);
    let ranks: Vec<(&u32, &RankTrace)> = trace.ranks.iter().filter(|(_, row)| has_kernels(row)).collect();
    if ranks.is_empty() {
        return KernelFigures::default();
    }
    let mut collector = KernelCollector::new("exact", ranks.len());
    for (rank, row) in ranks {
        let counted = counted(row);
        let durations = by_name(&counted);
        let kernels =
            durations.iter().map(|((class, name), durations)| NamedKernels::of(class, row.names.get(*name), durations));
        collector.add(device(*rank, &counted), kernels.collect(), row.steps.len() as u64);
    }
    KernelFigures { rules: vec![collector.finish()], differences: Vec::new() }
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

/// Returns the events that count, with their classes. If the trace has the communication of the device, the calls of
/// the host, which contain waits, do not count.
fn counted(row: &RankTrace) -> Vec<(&'static str, &Event)> {
    let details = |event: &Event| event.communication.and_then(|index| row.communications.get(index as usize));
    let is_on_device = |event: &Event| details(event).is_some_and(|details| !details.is_host_call);
    let has_device = row.events.iter().any(|event| event.kind.is_communication() && is_on_device(event));
    let is_counted = |event: &&Event| !has_device || !event.kind.is_communication() || is_on_device(event);
    let events = row.events.iter().filter(is_counted);
    events.filter_map(|event| Some((class(event.kind)?, event))).collect()
}

fn device(rank: u32, counted: &[(&str, &Event)]) -> DeviceTimes {
    let of = |wanted: &str| {
        let events = counted.iter().filter(|(class, _)| *class == wanted);
        Intervals::union_of(events.map(|(_, event)| Interval { start: event.start_ns, end: event.end_ns() }))
    };
    let [compute, communication, memory] = ["compute", "communication", "memory"].map(of);
    let busy = compute.union(&communication).union(&memory);
    let first = busy.as_slice().first().map_or(0, |interval| interval.start);
    let range = busy.as_slice().last().map_or(0, |interval| interval.end).abs_diff(first);
    let us = |ns: u64| us(i64::try_from(ns).unwrap_or(i64::MAX));
    DeviceTimes {
        rank,
        kernels: counted.len() as u64,
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

fn by_name<'a>(counted: &[(&'a str, &Event)]) -> BTreeMap<(&'a str, NameId), Durations> {
    let mut all: BTreeMap<(&str, NameId), Durations> = BTreeMap::new();
    for (class, event) in counted {
        let duration = i64::try_from(event.duration_ns).unwrap_or(i64::MAX);
        all.entry((class, event.name)).or_default().add(duration, 1);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::KernelRules;
    use crate::model::Communication;

    fn trace(events: &[(Kind, &str, i64, u64)]) -> Trace {
        let mut row = RankTrace::default();
        for (kind, name, start_ns, duration_ns) in events {
            let name = row.names.intern(name);
            let (start_ns, duration_ns) = (*start_ns, *duration_ns);
            row.events.push(Event { start_ns, duration_ns, kind: *kind, lane: 0, name, communication: None });
        }
        Trace { ranks: [(3, row)].into(), ..Trace::default() }
    }

    fn names(rules: &KernelRules) -> Vec<&str> {
        rules.kernels.iter().map(|kernel| rules.names[kernel.name as usize].as_str()).collect()
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
        let rules = &found.rules[0];
        let device = &rules.devices[0];
        assert_eq!((device.rank, device.kernels, device.host_wait_us), (3, 4, None));
        let shown = [device.range_us, device.busy_us, device.idle_us, device.compute_us, device.overlap_us];
        assert_eq!(shown, [13.0, 9.0, 4.0, 6.0, 1.0]);
        assert_eq!(names(rules), ["all_reduce", "gemm", "Memcpy HtoD"]);
        let gemm = &rules.kernels[1];
        assert_eq!((gemm.count, gemm.sum_us, gemm.min_us, gemm.max_us), (2, 6.0, 2.0, 4.0));
        assert_eq!((gemm.mean_us, gemm.deviation_us), (3.0, 1.414));
        let total = &rules.totals[0];
        assert_eq!((rules.names[total.name as usize].as_str(), total.count, total.sum_us), ("gemm", 2, 6.0));
    }

    #[test]
    fn calls_of_the_host_do_not_count_beside_the_communication_of_the_device() {
        let mut trace = trace(&[
            (Kind::Compute, "gemm", 0, 2_000),
            (Kind::Collective, "call", 0, 9_000),
            (Kind::Collective, "kernel", 2_000, 1_000),
        ]);
        let row = trace.ranks.get_mut(&3).unwrap();
        let host = Communication { is_host_call: true, ..Communication::default() };
        row.communications = vec![host, Communication::default()];
        (row.events[1].communication, row.events[2].communication) = (Some(0), Some(1));
        assert_eq!(names(&figures(&trace).rules[0]), ["kernel", "gemm"]);
        trace.ranks.get_mut(&3).unwrap().events.pop();
        assert_eq!(names(&figures(&trace).rules[0]), ["call", "gemm"], "the device's are not recorded");
    }

    #[test]
    fn a_trace_without_computation_has_no_kernels() {
        assert_eq!(figures(&trace(&[(Kind::Host, "step", 0, 10)])), KernelFigures::default());
    }
}

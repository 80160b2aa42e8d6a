//! Launches, queues, copies and annotations as the report shows them, and where both sets of rules differ.

use super::{AnnotationRow, RankBreakdown, Statistics};
use taskd_core::analysis::document::{CopyFigures, LaunchFigures, QueueFigures, Spread};
use taskd_core::analysis::kernels::{KernelCollector, NamedKernels, us};

/// Bandwidths that differ by less than this share are not reported as different.
const SHARE_MIN: f64 = 0.01;

/// Adds the figures of a rank.
pub(super) fn add(collector: &mut KernelCollector, rank: &RankBreakdown) {
    if let Some(launches) = &rank.launches {
        collector.add_launches(LaunchFigures {
            rank: rank.rank,
            call_us: spread(&launches.call_ns, 1000.0),
            kernel_us: spread(&launches.kernel_ns, 1000.0),
            delay_us: spread(&launches.delay_ns, 1000.0),
            short_kernels: launches.short_kernels,
            slow_calls: launches.slow_calls,
            late_kernels: launches.late_kernels,
        });
    }
    let queues = rank.queues.iter().map(|queue| QueueFigures {
        rank: rank.rank,
        stream: queue.stream,
        lengths: spread(&queue.lengths, 1.0),
        full_us: us(queue.full_ns),
    });
    collector.add_queues(queues.collect());
    let copies = rank.bandwidth.iter().map(|kind| CopyFigures {
        rank: rank.rank,
        kind: kind.kind.clone(),
        copies: kind.copies,
        bytes: kind.bytes,
        busy_us: us(kind.busy_ns),
        gb_per_s: spread(&kind.gb_per_s, 1.0),
    });
    collector.add_copies(copies.collect());
    collector.add_annotations(rank.rank, rank.annotations.iter().map(annotation).collect());
}

fn annotation(row: &AnnotationRow) -> NamedKernels<'_> {
    NamedKernels {
        class: if row.is_on_device { "device" } else { "host" },
        name: &row.name,
        count: row.count,
        sum_ns: row.sum_ns,
        min_ns: row.min_ns,
        max_ns: row.max_ns,
        mean_ns: row.mean_ns,
        deviation_ns: row.deviation_ns,
    }
}

/// Returns the statistics in a unit of `parts` of the original one, with three decimals, like all figures of the document.
fn spread(statistics: &Statistics, parts: f64) -> Spread {
    let rounded = |value: f64| (value / parts * 1000.0).round() / 1000.0;
    Spread {
        count: statistics.count,
        mean: rounded(statistics.mean),
        deviation: rounded(statistics.deviation),
        min: rounded(statistics.min),
        lower_quartile: rounded(statistics.lower_quartile),
        median: rounded(statistics.median),
        upper_quartile: rounded(statistics.upper_quartile),
        max: rounded(statistics.max),
    }
}

/// Returns sentences about launches, queues and copies of the exact rules and of HTA's, each about the rank with the
/// largest difference.
pub(super) fn differences(pairs: &[(&RankBreakdown, &RankBreakdown)]) -> Vec<String> {
    [launches(pairs), missing_queue(pairs), ties(pairs), bandwidth(pairs)].into_iter().flatten().collect()
}

fn launches(pairs: &[(&RankBreakdown, &RankBreakdown)]) -> Option<String> {
    let count = |rank: &RankBreakdown| rank.launches.map_or(0, |launches| launches.call_ns.count);
    let (exact, hta) = pairs.iter().max_by_key(|(exact, hta)| count(exact).abs_diff(count(hta)))?;
    let (all, counted) = (count(exact), count(hta));
    (all != counted).then(|| {
        format!(
            "Rank {} has {all} launches, by HTA's rules {counted}: HTA counts calls of five names before the last \
             step, and joins all calls and kernels of one correlation.",
            exact.rank
        )
    })
}

fn missing_queue(pairs: &[(&RankBreakdown, &RankBreakdown)]) -> Option<String> {
    let mut without = pairs.iter().filter(|(exact, hta)| !exact.queues.is_empty() && hta.queues.is_empty());
    let (first, _) = without.next()?;
    let more = without.count();
    Some(format!(
        "HTA has no queue of rank {} and {more} others: it counts calls of eleven names, and fails if two of them have \
         one correlation.",
        first.rank
    ))
}

fn ties(pairs: &[(&RankBreakdown, &RankBreakdown)]) -> Option<String> {
    let queues = pairs.iter().flat_map(|(_, hta)| hta.queues.iter().map(|queue| (hta.rank, queue)));
    let (rank, queue) = queues.max_by_key(|(_, queue)| queue.ties).filter(|(_, queue)| queue.ties > 0)?;
    Some(format!(
        "In {} microseconds a call and a kernel of stream {} of rank {rank} start: the lengths of HTA's queues depend \
         on the order of its sort there, and calls come first here.",
        queue.ties, queue.stream
    ))
}

fn bandwidth(pairs: &[(&RankBreakdown, &RankBreakdown)]) -> Option<String> {
    let kinds = pairs.iter().flat_map(|(exact, hta)| {
        exact.bandwidth.iter().filter_map(|kind| {
            let other = hta.bandwidth.iter().find(|other| other.kind == kind.kind)?;
            Some((exact.rank, kind, other.gb_per_s.mean))
        })
    });
    let apart = |(_, kind, other): &(u32, &super::CopyBandwidth, f64)| {
        (kind.gb_per_s.mean - other).abs() / kind.gb_per_s.mean.max(f64::MIN_POSITIVE)
    };
    let most = kinds.max_by(|one, other| apart(one).total_cmp(&apart(other)))?;
    (apart(&most) >= SHARE_MIN).then(|| {
        let (rank, kind, other) = most;
        format!(
            "Mean bandwidth of {} of rank {rank} is {:.3} GB/s, by HTA's rules {other:.3} GB/s: HTA takes the \
             bandwidth that the trace states, counts copies that touch as simultaneous, and leaves out the last step.",
            kind.kind, kind.gb_per_s.mean
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::{CopyBandwidth, LaunchTimes, QueueLengths};
    use super::*;

    fn statistics(count: u64, mean: f64) -> Statistics {
        Statistics { count, mean, ..Statistics::default() }
    }

    fn rank(launches: u64, queues: Vec<QueueLengths>, mean: f64) -> RankBreakdown {
        let times = LaunchTimes { call_ns: statistics(launches, 2_000.0), ..LaunchTimes::default() };
        let gb_per_s = statistics(1, mean);
        let bandwidth = vec![CopyBandwidth { kind: "Memset".into(), gb_per_s, ..CopyBandwidth::default() }];
        RankBreakdown { rank: 3, launches: Some(times), queues, bandwidth, ..RankBreakdown::default() }
    }

    #[test]
    fn each_difference_has_a_sentence() {
        let queue = QueueLengths { stream: 7, lengths: statistics(4, 1.0), full_ns: 1_500, ties: 2 };
        let (exact, hta) = (rank(9, vec![queue], 20.0), rank(4, vec![queue], 25.0));
        let found = differences(&[(&exact, &hta)]);
        let begins = [
            "Rank 3 has 9 launches, by HTA's rules 4: ",
            "In 2 microseconds a call and a kernel of stream 7 of rank 3 start: ",
            "Mean bandwidth of Memset of rank 3 is 20.000 GB/s, by HTA's rules 25.000 GB/s: ",
        ];
        assert!(
            found.len() == 3 && found.iter().zip(begins).all(|(found, begin)| found.starts_with(begin)),
            "{found:?}"
        );
        let without = differences(&[(&exact, &rank(9, vec![], 20.1))]);
        assert!(
            without.len() == 1 && without[0].starts_with("HTA has no queue of rank 3 and 0 others: "),
            "{without:?}"
        );
        assert!(differences(&[(&exact, &rank(9, vec![QueueLengths { ties: 0, ..queue }], 20.0))]).is_empty());
    }

    #[test]
    fn figures_of_the_report_are_in_microseconds() {
        let queue = QueueLengths { stream: 7, lengths: statistics(4, 1.25), full_ns: 1_500, ties: 0 };
        let mut collector = KernelCollector::new("exact", 1);
        add(&mut collector, &rank(9, vec![queue], 20.0));
        let host = collector.finish().host;
        assert_eq!((host.launches[0].rank, host.launches[0].call_us.count, host.launches[0].call_us.mean), (3, 9, 2.0));
        assert_eq!((host.queues[0].stream, host.queues[0].lengths.mean, host.queues[0].full_us), (7, 1.25, 1.5));
        assert_eq!((host.copies[0].kind.as_str(), host.copies[0].gb_per_s.mean), ("Memset", 20.0));
    }
}

//! The breakdown as the report shows it, and where both sets of rules differ.

use super::hta_table::OTHERS;
use super::{Breakdown, Class, Mode, RankBreakdown, StreamIdle, launch_figures};
use std::collections::BTreeMap;
use taskd_core::analysis::document::{DeviceTimes, KernelRules};
use taskd_core::analysis::kernels::{KernelCollector, NamedKernels, us};

/// Shares of the time that differ by less than this are not reported as different.
const SHARE_MIN: f64 = 0.001;

impl Breakdown {
    /// Returns the figures for the report.
    #[must_use]
    pub fn rules(&self) -> KernelRules {
        let name = match self.mode {
            Mode::Exact => "exact",
            Mode::Hta => "hta",
        };
        let mut collector = KernelCollector::new(name, self.ranks.len());
        for rank in &self.ranks {
            let kernels = rank.kernels.iter().map(|row| NamedKernels {
                class: class_name(row.class),
                name: &row.name,
                count: row.count,
                sum_ns: row.sum_ns,
                min_ns: row.min_ns,
                max_ns: row.max_ns,
                mean_ns: row.mean_ns,
                deviation_ns: row.deviation_ns,
            });
            collector.add(device(rank), kernels.collect(), rank.steps.len() as u64);
            launch_figures::add(&mut collector, rank);
        }
        collector.finish()
    }

    /// Returns where the figures by HTA's rules differ from these exact ones, and which of its rules concern the
    /// figure, each as a sentence about the rank with the largest difference.
    #[must_use]
    pub fn differences(&self, hta: &Breakdown) -> Vec<String> {
        let others: BTreeMap<u32, &RankBreakdown> = hta.ranks.iter().map(|rank| (rank.rank, rank)).collect();
        let known = |rank: &&RankBreakdown| others.contains_key(&rank.rank);
        let mut sentences = Vec::new();
        let mut unknown = self.ranks.iter().filter(|rank| !known(rank));
        if let Some(first) = unknown.next() {
            let more = unknown.count();
            sentences.push(format!(
                "HTA counts no kernel of rank {} and {more} others: no recorded call launched any before the last step.",
                first.rank
            ));
        }
        let pairs: Vec<Pair<'_>> =
            self.ranks.iter().filter_map(|rank| Some((rank, *others.get(&rank.rank)?))).collect();
        sentences.extend(counts(&pairs));
        sentences.extend(FIGURES.iter().filter_map(|figure| share_sentence(&pairs, figure)));
        sentences.extend(names(&pairs));
        sentences.extend(launch_figures::differences(&pairs));
        sentences
    }
}

/// The exact figures of a rank, and those by HTA's rules.
type Pair<'a> = (&'a RankBreakdown, &'a RankBreakdown);

/// A figure that both rules have.
struct Figure {
    name: &'static str,
    of: fn(&RankBreakdown) -> i64,
    /// The rules of HTA that concern it.
    rules: &'static str,
}

const FIGURES: [Figure; 5] = [
    Figure {
        name: "Idle time",
        of: |rank| rank.idle_ns,
        rules: "HTA rounds starts up and ends down to microseconds, so gaps are longer, and counts synchronizations as \
                busy",
    },
    Figure {
        name: "Computation",
        of: |rank| rank.compute_ns,
        rules: "HTA rounds kernels to shorter microseconds, and takes every name that it does not know for computation",
    },
    Figure {
        name: "Communication",
        of: |rank| rank.communication_ns,
        rules: "HTA rounds kernels to shorter microseconds, and only names like nccl...Kernel count",
    },
    Figure {
        name: "Memory",
        of: |rank| rank.memory_ns,
        rules: "HTA rounds copies to shorter microseconds, and only names that begin with Memcpy, Memset or dma count",
    },
    Figure { name: "Overlap", of: |rank| rank.overlap_ns, rules: "it follows from computation and communication" },
];

/// Returns sentences about kernels that HTA leaves out or adds.
fn counts(pairs: &[Pair<'_>]) -> Vec<String> {
    let size = |(exact, hta): &&Pair<'_>| exact.count.abs_diff(hta.count);
    let mut sentences = Vec::new();
    if let Some((exact, hta)) = pairs.iter().filter(|(exact, hta)| exact.count > hta.count).max_by_key(size) {
        sentences.push(format!(
            "Rank {} has {} kernels, of which HTA counts {}: it leaves out those that were launched in the last step, or \
             by no recorded call.",
            exact.rank, exact.count, hta.count
        ));
    }
    if let Some((exact, hta)) = pairs.iter().filter(|(exact, hta)| exact.count < hta.count).max_by_key(size) {
        sentences.push(format!(
            "Rank {} has {} kernels, and HTA counts {}: it counts synchronizations, too, and repeats a kernel that \
             several calls launched.",
            exact.rank, exact.count, hta.count
        ));
    }
    sentences
}

fn share_sentence(pairs: &[Pair<'_>], figure: &Figure) -> Option<String> {
    let apart = |(exact, hta): &Pair<'_>| (share(exact, figure) - share(hta, figure)).abs();
    let most = pairs.iter().max_by(|one, other| apart(one).total_cmp(&apart(other)));
    let (exact, hta) = most.filter(|pair| apart(pair) >= SHARE_MIN)?;
    let (ours, theirs) = (share(exact, figure) * 100.0, share(hta, figure) * 100.0);
    let Figure { name, rules, .. } = figure;
    Some(format!("{name} of rank {} is {ours:.1} % of the time, by HTA's rules {theirs:.1} %: {rules}.", exact.rank))
}

#[allow(clippy::cast_precision_loss, reason = "a ratio for display")]
fn share(rank: &RankBreakdown, figure: &Figure) -> f64 {
    if rank.kernel_time_ns == 0 { 0.0 } else { (figure.of)(rank) as f64 / rank.kernel_time_ns as f64 }
}

/// Returns a sentence about the class in which HTA's table puts the most names together.
fn names(pairs: &[Pair<'_>]) -> Option<String> {
    let others = pairs.iter().flat_map(|(_, hta)| hta.kernels.iter().map(move |row| (hta, row)));
    let (hta, most) = others.filter(|(_, row)| row.name == OTHERS).max_by_key(|(_, row)| row.count)?;
    let of_class = hta.kernels.iter().filter(|row| row.class == most.class).count() as u64;
    let (listed, class) = (of_class.saturating_sub(1), class_name(most.class));
    Some(format!(
        "HTA's table has {} names of {class} kernels of rank {}: it lists {listed} and puts the rest together as \
         {OTHERS}. In this class its counts, extremes, means and deviations are those of sums per name, not of durations.",
        listed.saturating_add(most.count),
        hta.rank
    ))
}

const fn class_name(class: Class) -> &'static str {
    match class {
        Class::Communication => "communication",
        Class::Compute => "compute",
        Class::Memory => "memory",
        Class::Other => "other",
    }
}

fn device(rank: &RankBreakdown) -> DeviceTimes {
    let is_known = rank.has_launches && !rank.idle.is_empty();
    let streams =
        |of: fn(&StreamIdle) -> i64| is_known.then(|| us(rank.idle.iter().map(of).fold(0, i64::saturating_add)));
    DeviceTimes {
        rank: rank.rank,
        kernels: rank.count,
        range_us: us(rank.kernel_time_ns),
        busy_us: us(rank.busy_ns),
        idle_us: us(rank.idle_ns),
        compute_us: us(rank.compute_ns),
        communication_us: us(rank.communication_ns),
        memory_us: us(rank.memory_ns),
        overlap_us: us(rank.overlap_ns),
        host_wait_us: streams(|stream| stream.host_wait_ns),
        kernel_wait_us: streams(|stream| stream.kernel_wait_ns),
        other_wait_us: streams(|stream| stream.other_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::super::KernelRow;
    use super::*;

    fn rank(rank: u32, count: u64, idle_ns: i64) -> RankBreakdown {
        RankBreakdown { rank, count, kernel_time_ns: 1_000_000, idle_ns, ..RankBreakdown::default() }
    }

    fn of(mode: Mode, ranks: Vec<RankBreakdown>) -> Breakdown {
        Breakdown { mode, ranks, ..Breakdown::default() }
    }

    fn differences(exact: Vec<RankBreakdown>, hta: Vec<RankBreakdown>) -> Vec<String> {
        of(Mode::Exact, exact).differences(&of(Mode::Hta, hta))
    }

    fn row(name: &str) -> KernelRow {
        let (rank, class, name) = (0, Class::Compute, name.to_owned());
        KernelRow { rank, class, name, count: 1, sum_ns: 1, min_ns: 1, max_ns: 1, mean_ns: 1.0, deviation_ns: 0.0 }
    }

    #[test]
    fn equal_figures_have_no_sentence() {
        assert!(differences(vec![rank(0, 5, 1000)], vec![rank(0, 5, 1000)]).is_empty());
    }

    #[test]
    fn the_rank_with_the_largest_difference_is_named() {
        let exact = vec![rank(0, 5, 100_000), rank(1, 5, 100_000)];
        let found = differences(exact, vec![rank(0, 5, 200_000), rank(1, 5, 350_000)]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("Idle time of rank 1 is 10.0 % of the time, by HTA's rules 35.0 %: "),
            "{found:?}"
        );
    }

    #[test]
    fn kernels_that_hta_leaves_out_or_adds_are_counted() {
        let found = differences(vec![rank(0, 9, 0), rank(1, 4, 0), rank(2, 7, 0)], vec![rank(0, 6, 0), rank(1, 5, 0)]);
        assert!(found[0].starts_with("HTA counts no kernel of rank 2 and 0 others: "), "{found:?}");
        assert!(found[1].starts_with("Rank 0 has 9 kernels, of which HTA counts 6: it leaves out"), "{found:?}");
        assert!(found[2].starts_with("Rank 1 has 4 kernels, and HTA counts 5: it counts sync"), "{found:?}");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn names_that_hta_puts_together_are_counted() {
        let all: Vec<KernelRow> = (0..12).map(|number| row(&number.to_string())).collect();
        let others = KernelRow { count: 3, ..row(OTHERS) };
        let listed: Vec<KernelRow> = all[..9].iter().cloned().chain([others]).collect();
        let exact = RankBreakdown { kernels: all, ..rank(0, 12, 0) };
        let found = differences(vec![exact], vec![RankBreakdown { kernels: listed, ..rank(0, 12, 0) }]);
        let expected = "HTA's table has 12 names of compute kernels of rank 0: it lists 9 and puts";
        assert!(found[0].starts_with(expected), "{found:?}");
    }

    #[test]
    fn waits_are_unknown_without_the_calls_that_launch_kernels() {
        let idle = vec![StreamIdle { stream: 7, host_wait_ns: 4_000, ..StreamIdle::default() }];
        let with = RankBreakdown { idle, has_launches: true, ..rank(0, 1, 0) };
        let without = RankBreakdown { has_launches: false, ..with.clone() };
        let rules = of(Mode::Exact, vec![with, without]).rules();
        assert_eq!(rules.devices[0].host_wait_us, Some(4.0));
        assert_eq!(rules.devices[1].host_wait_us, None);
    }
}

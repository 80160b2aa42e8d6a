//! The breakdown as the report shows it, and where both sets of rules differ.

use super::{Breakdown, Class, HTA_NAMES_LISTED, KernelRow, Mode, RankBreakdown, StreamIdle};
use std::collections::BTreeMap;
use taskd_core::analysis::document::{DeviceTimes, KernelRules, KernelTimes};
use taskd_core::analysis::kernels::{largest, rows_per_rank};

/// Shares of the time that differ by less than this are not reported as different.
const SHARE_MIN: f64 = 0.001;

impl Breakdown {
    /// Returns the figures for the report. Of each rank, the kernels with the largest sums are kept.
    #[must_use]
    pub fn rules(&self) -> KernelRules {
        let share = rows_per_rank(self.ranks.len());
        let mut rules = KernelRules {
            name: match self.mode {
                Mode::Exact => "exact",
                Mode::Hta => "hta",
            }
            .to_owned(),
            ..KernelRules::default()
        };
        for rank in &self.ranks {
            rules.devices.push(device(rank));
            rules.left_out += rank.kernels.len().saturating_sub(share) as u64;
            rules.kernels.extend(largest(rank.kernels.iter().map(kernel).collect(), share));
        }
        rules
    }

    /// Returns where the figures of HTA's rules differ from these exact ones, and why, each as a sentence about the rank
    /// with the largest difference.
    #[must_use]
    pub fn differences(&self, hta: &Breakdown) -> Vec<String> {
        let others: BTreeMap<u32, &RankBreakdown> = hta.ranks.iter().map(|rank| (rank.rank, rank)).collect();
        let pairs: Vec<(&RankBreakdown, &RankBreakdown)> =
            self.ranks.iter().filter_map(|rank| Some((rank, *others.get(&rank.rank)?))).collect();
        let mut sentences = Vec::new();
        let fewer = pairs.iter().filter(|(exact, hta)| exact.count != hta.count);
        if let Some((exact, hta)) = fewer.max_by_key(|(exact, hta)| exact.count.abs_diff(hta.count)) {
            sentences.push(format!(
                "Rank {} has {} kernels, of which HTA counts {}: it drops kernels that were launched in the last step, and \
                 repeats one that several calls launched.",
                exact.rank, exact.count, hta.count
            ));
        }
        for (name, of, why) in SHARES {
            let apart = |(exact, hta): &(&RankBreakdown, &RankBreakdown)| (share(exact, of) - share(hta, of)).abs();
            let most = pairs.iter().max_by(|one, other| apart(one).total_cmp(&apart(other)));
            if let Some((exact, hta)) = most.filter(|pair| apart(pair) >= SHARE_MIN) {
                let (ours, theirs) = (share(exact, of) * 100.0, share(hta, of) * 100.0);
                sentences.push(format!(
                    "{name} of rank {} is {ours:.1} % of the time, by HTA's rules {theirs:.1} %: {why}.",
                    exact.rank
                ));
            }
        }
        sentences.extend(pairs.iter().find_map(|(exact, _)| many_names(exact)));
        sentences
    }
}

/// A figure of a rank.
type Figure = fn(&RankBreakdown) -> i64;

/// Figures that both rules have, with the reason for a difference.
const SHARES: [(&str, Figure, &str); 5] = [
    ("Idle time", |rank| rank.idle_ns, "HTA rounds starts up and ends down to microseconds, which lengthens each gap"),
    (
        "Computation",
        |rank| rank.compute_ns,
        "HTA shortens each kernel by rounding, and classifies kernels by their names alone",
    ),
    (
        "Communication",
        |rank| rank.communication_ns,
        "HTA shortens each kernel by rounding, and takes kernels named nccl...Kernel only for communication",
    ),
    ("Memory", |rank| rank.memory_ns, "HTA shortens each copy by rounding, and classifies copies by their names alone"),
    ("Overlap", |rank| rank.overlap_ns, "it follows from computation and communication"),
];

#[allow(clippy::cast_precision_loss, reason = "a ratio for display")]
fn share(rank: &RankBreakdown, of: Figure) -> f64 {
    if rank.kernel_time_ns == 0 { 0.0 } else { of(rank) as f64 / rank.kernel_time_ns as f64 }
}

/// Returns a sentence if HTA's table puts names of the rank together.
fn many_names(exact: &RankBreakdown) -> Option<String> {
    let count = |class: Class| exact.kernels.iter().filter(|row| row.class == class).count();
    let most = [Class::Communication, Class::Compute, Class::Memory].into_iter().map(count).max()?;
    (most > HTA_NAMES_LISTED).then(|| {
        format!(
            "Rank {} has {most} names of one class: HTA lists {HTA_NAMES_LISTED} and puts the rest together as others; its \
             extremes, means and deviations are then those of sums per name, not of durations.",
            exact.rank
        )
    })
}

fn device(rank: &RankBreakdown) -> DeviceTimes {
    let streams = |of: fn(&StreamIdle) -> i64| Some(us(rank.idle.iter().map(of).fold(0, i64::saturating_add)));
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

fn kernel(row: &KernelRow) -> KernelTimes {
    KernelTimes {
        rank: row.rank,
        class: match row.class {
            Class::Communication => "communication",
            Class::Compute => "compute",
            Class::Memory => "memory",
            Class::Other => "other",
        }
        .to_owned(),
        name: row.name.clone(),
        count: row.count,
        sum_us: us(row.sum_ns),
        min_us: us(row.min_ns),
        max_us: us(row.max_ns),
        mean_us: rounded(row.mean_ns / 1000.0),
        deviation_us: rounded(row.deviation_ns / 1000.0),
    }
}

#[allow(clippy::cast_precision_loss, reason = "nanoseconds below 2^53, 104 days, are exact")]
fn us(ns: i64) -> f64 {
    rounded(ns as f64 / 1000.0)
}

/// Returns the value with three decimals: such a value has a short decimal form, which readers of JSON return exactly.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

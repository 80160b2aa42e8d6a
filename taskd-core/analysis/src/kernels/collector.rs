//! Collects the kernels of all ranks for the document, within its bounds.

use crate::document::{
    DeviceTimes, KERNEL_NAME_MAX, KERNEL_ROWS_MAX, KERNEL_TOTALS_MAX, KernelRules, KernelTimes, KernelTotal,
};
use crate::tables::{float, rounded};
use std::collections::BTreeMap;

/// Rows of kernels that each rank keeps, however many ranks there are.
const ROWS_MIN: usize = 10;
/// Distinct names that are kept while the ranks are read. Kernels of further ones count under [`BEYOND`].
const NAMES_MAX: usize = 200_000;
/// Name of the kernels without a kept name.
const BEYOND: &str = "(further names)";

/// Statistics of durations in any unit, without the durations themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Durations {
    /// Number of durations.
    pub count: u64,
    /// Their sum.
    pub sum: i128,
    /// Sum of their squares.
    pub squares: i128,
    /// Shortest duration; 0 without any.
    pub min: i64,
    /// Longest duration; 0 without any.
    pub max: i64,
}

impl Durations {
    /// Adds `count` equal durations.
    #[inline]
    pub fn add(&mut self, duration: i64, count: u64) {
        if count == 0 {
            return;
        }
        self.min = if self.count == 0 { duration } else { self.min.min(duration) };
        self.max = if self.count == 0 { duration } else { self.max.max(duration) };
        self.count += count;
        let (duration, times) = (i128::from(duration), i128::from(count));
        self.sum = self.sum.saturating_add(duration * times);
        self.squares = self.squares.saturating_add((duration * duration).saturating_mul(times));
    }

    /// Returns the arithmetic mean; 0 without durations.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a mean of durations for display")]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// Returns the sample standard deviation; 0 for a single duration.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "the difference is exact; its square root is for display")]
    pub fn deviation(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let count = i128::from(self.count);
        let scaled = count.saturating_mul(self.squares).saturating_sub(self.sum.saturating_mul(self.sum));
        (scaled.max(0) as f64 / (self.count as f64 * (self.count as f64 - 1.0))).sqrt()
    }
}

/// Kernels of one name on one rank. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct NamedKernels<'a> {
    /// Class, as in [`KernelTimes::class`].
    pub class: &'a str,
    /// Name of the kernels.
    pub name: &'a str,
    /// Number of kernels.
    pub count: u64,
    /// Sum of their durations.
    pub sum_ns: i64,
    /// Shortest duration.
    pub min_ns: i64,
    /// Longest duration.
    pub max_ns: i64,
    /// Mean of the durations.
    pub mean_ns: f64,
    /// Standard deviation of the durations, of a sample; 0 for one kernel.
    pub deviation_ns: f64,
}

impl<'a> NamedKernels<'a> {
    /// Creates the kernels of a name from their durations in nanoseconds.
    #[must_use]
    pub fn of(class: &'a str, name: &'a str, durations: &Durations) -> NamedKernels<'a> {
        NamedKernels {
            class,
            name,
            count: durations.count,
            sum_ns: i64::try_from(durations.sum).unwrap_or(i64::MAX),
            min_ns: durations.min,
            max_ns: durations.max,
            mean_ns: durations.mean(),
            deviation_ns: durations.deviation(),
        }
    }
}

/// Collects the figures of all ranks by one set of rules.
#[derive(Debug)]
pub struct KernelCollector {
    pub(super) rules: KernelRules,
    pub(super) ranks: usize,
    rows_per_rank: usize,
    numbers: BTreeMap<String, u32>,
    totals: BTreeMap<(String, u32), (u64, f64)>,
    steps: u64,
}

impl KernelCollector {
    /// Creates a collector for a job of this many ranks with kernels. `name` is that of the rules.
    #[must_use]
    pub fn new(name: &str, ranks: usize) -> KernelCollector {
        KernelCollector {
            rules: KernelRules { name: name.to_owned(), ..KernelRules::default() },
            ranks,
            rows_per_rank: (KERNEL_ROWS_MAX / ranks.max(1)).max(ROWS_MIN),
            numbers: BTreeMap::new(),
            totals: BTreeMap::new(),
            steps: 0,
        }
    }

    /// Adds one rank with its kernels and its number of steps. The kernels with the largest sums are kept.
    pub fn add(&mut self, device: DeviceTimes, mut kernels: Vec<NamedKernels<'_>>, steps: u64) {
        for kernel in &kernels {
            let key = (kernel.class.to_owned(), self.number(kernel.name));
            let (count, sum) = self.totals.entry(key).or_default();
            *count = count.saturating_add(kernel.count);
            *sum += us(kernel.sum_ns);
        }
        kernels.sort_by(|one, other| (other.sum_ns, one.name).cmp(&(one.sum_ns, other.name)));
        self.rules.left_out += kernels.len().saturating_sub(self.rows_per_rank) as u64;
        kernels.truncate(self.rows_per_rank);
        kernels.sort_by_key(|kernel| kernel.class); // a stable sort: the sums remain in order
        for kernel in kernels {
            let row = self.row(device.rank, kernel);
            self.rules.kernels.push(row);
        }
        self.rules.devices.push(device);
        self.steps = self.steps.saturating_add(steps);
    }

    /// Returns a row of the document.
    pub(super) fn row(&mut self, rank: u32, kernel: NamedKernels<'_>) -> KernelTimes {
        KernelTimes {
            rank,
            class: kernel.class.to_owned(),
            name: self.number(kernel.name),
            count: kernel.count,
            sum_us: us(kernel.sum_ns),
            min_us: us(kernel.min_ns),
            max_us: us(kernel.max_ns),
            mean_us: rounded(kernel.mean_ns / 1000.0),
            deviation_us: rounded(kernel.deviation_ns / 1000.0),
        }
    }

    /// Returns the figures.
    #[must_use]
    pub fn finish(mut self) -> KernelRules {
        self.rules.steps = rounded(float(self.steps) / float(self.rules.devices.len().max(1) as u64));
        let total = |((class, name), (count, sum_us))| KernelTotal { class, name, count, sum_us: rounded(sum_us) };
        let mut totals: Vec<KernelTotal> = std::mem::take(&mut self.totals).into_iter().map(total).collect();
        totals.sort_by(|one, other| other.sum_us.total_cmp(&one.sum_us));
        self.rules.totals_left_out = totals.len().saturating_sub(KERNEL_TOTALS_MAX) as u64;
        totals.truncate(KERNEL_TOTALS_MAX);
        self.rules.totals = totals;
        self.keep_used_names();
        self.rules
    }

    /// Returns the index of a name.
    fn number(&mut self, name: &str) -> u32 {
        let is_long = name.chars().nth(KERNEL_NAME_MAX).is_some();
        let kept: String =
            if is_long { name.chars().take(KERNEL_NAME_MAX - 1).chain(['…']).collect() } else { name.to_owned() };
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        match self.numbers.get(&kept) {
            Some(number) => *number,
            None if self.numbers.len() >= NAMES_MAX => *self.numbers.entry(BEYOND.to_owned()).or_insert(next),
            None => *self.numbers.entry(kept).or_insert(next),
        }
    }

    /// Lists the names that rows refer to.
    fn keep_used_names(&mut self) {
        let mut texts = vec![""; self.numbers.len()];
        for (text, number) in &self.numbers {
            if let Some(place) = texts.get_mut(*number as usize) {
                *place = text;
            }
        }
        let mut kept: BTreeMap<u32, u32> = BTreeMap::new();
        let rules = &mut self.rules;
        let of_rows = rules.kernels.iter_mut().map(|row| &mut row.name);
        let of_totals = rules.totals.iter_mut().map(|total| &mut total.name);
        let of_annotations = rules.host.annotations.iter_mut().map(|row| &mut row.name);
        for name in of_rows.chain(of_totals).chain(of_annotations) {
            let next = u32::try_from(kept.len()).unwrap_or(u32::MAX);
            let number = *kept.entry(*name).or_insert_with(|| {
                rules.names.push(texts.get(*name as usize).map_or_else(String::new, ToString::to_string));
                next
            });
            *name = number;
        }
    }
}

/// Returns nanoseconds in microseconds with three decimals, as figures of the document are.
#[must_use]
pub fn us(ns: i64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "nanoseconds below 2^53, 104 days, are exact")]
    let us = ns as f64 / 1000.0;
    rounded(us)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, duration: i64) -> NamedKernels<'_> {
        let mut durations = Durations::default();
        durations.add(duration, 1);
        NamedKernels::of("compute", name, &durations)
    }

    #[test]
    fn deviation_is_that_of_a_sample() {
        let mut durations = Durations::default();
        for duration in [2, 4, 4, 4, 5, 5, 7, 9] {
            durations.add(duration, 1);
        }
        assert!((durations.mean() - 5.0).abs() < 1e-12);
        assert!((durations.deviation() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn kernels_with_the_largest_sums_are_kept_and_all_are_in_the_totals() {
        let names: Vec<String> = (0..15).map(|number| format!("k{number:02}")).collect();
        let mut collector = KernelCollector::new("exact", 1_000_000);
        for rank in 0..2 {
            let kernels = names.iter().zip(1..).map(|(name, length)| kernel(name, length * 1000)).collect();
            collector.add(DeviceTimes { rank, ..DeviceTimes::default() }, kernels, 4);
        }
        let rules = collector.finish();
        assert_eq!((rules.kernels.len(), rules.left_out, rules.steps), (20, 10, 4.0));
        let first = &rules.kernels[0];
        assert_eq!((rules.names[first.name as usize].as_str(), first.sum_us), ("k14", 15.0));
        assert_eq!((rules.totals.len(), rules.totals_left_out, rules.names.len()), (15, 0, 15));
        let last = rules.totals.last().unwrap();
        assert_eq!((rules.names[last.name as usize].as_str(), last.count, last.sum_us), ("k00", 2, 2.0));
    }

    #[test]
    fn long_names_are_cut_and_counted_as_one() {
        let names = ["x", "y"].map(|last| "template<".repeat(60) + last);
        let mut collector = KernelCollector::new("exact", 1);
        let kernels = names.iter().map(|name| kernel(name, 1000)).collect();
        collector.add(DeviceTimes::default(), kernels, 0);
        let rules = collector.finish();
        assert_eq!((rules.names.len(), rules.totals[0].count), (1, 2));
        assert_eq!(rules.names[0].chars().count(), KERNEL_NAME_MAX);
    }

    #[test]
    fn totals_beyond_the_limit_are_counted() {
        let names: Vec<String> = (0..KERNEL_TOTALS_MAX + 7).map(|number| number.to_string()).collect();
        let mut collector = KernelCollector::new("exact", 1_000_000);
        collector.add(DeviceTimes::default(), names.iter().map(|name| kernel(name, 1000)).collect(), 0);
        let rules = collector.finish();
        assert_eq!((rules.totals.len(), rules.totals_left_out), (KERNEL_TOTALS_MAX, 7));
    }
}

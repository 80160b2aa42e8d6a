//! Tables of `HolisticTraceAnalysis` 0.5.0 by name (`analyzers/breakdown_analysis.py`, `_aggr_gpu_kernel_time`):
//! kernels and annotations.

use super::annotations::AnnotationRow;
use super::kernels::Kernels;
use super::{Class, KernelRow};
use taskd_core::analysis::kernels::Durations;

/// Kernel names of a class that HTA's table lists on their own, unless it is configured.
const NAMES_LISTED: usize = 10;

/// Names of annotations that HTA's table lists on their own, unless it is configured.
const ANNOTATIONS_LISTED: usize = 1000;

/// Name of the row in which HTA's table puts the other names of a class together.
pub(super) const OTHERS: &str = "others";

/// An annotation, in whole microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotated {
    /// Selected by the launch, not by the start.
    pub(super) is_launched: bool,
    pub(super) name: u32,
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) correlation: i64,
}

/// Returns HTA's table of kernels. With more than ten names of a type, its columns are statistics of the sums per name,
/// not of durations.
pub(super) fn kernel_table(names: &Kernels, rank: u32) -> Vec<KernelRow> {
    let classes = [Class::Communication, Class::Compute, Class::Memory];
    classes.iter().flat_map(|class| rows(names, *class, NAMES_LISTED, rank)).collect()
}

/// Returns HTA's tables of annotations, first that of the device. The class of `names` is that of their [`place`].
pub(super) fn annotation_table(names: &Kernels, rank: u32) -> Vec<AnnotationRow> {
    let of = |is_on_device| {
        let rows = rows(names, place(is_on_device), ANNOTATIONS_LISTED, rank);
        rows.into_iter().map(move |row| AnnotationRow::new(row, is_on_device))
    };
    of(true).chain(of(false)).collect()
}

/// Returns the class under which annotations of a place are kept.
pub(super) const fn place(is_on_device: bool) -> Class {
    if is_on_device { Class::Compute } else { Class::Other }
}

/// Returns the rows of one class, of which this number of names is listed.
fn rows(names: &Kernels, class: Class, listed: usize, rank: u32) -> Vec<KernelRow> {
    let mut of_class: Vec<(&[u8], Durations)> =
        names.iter().filter(|row| row.0 == class).map(|(_, name, durations)| (name, *durations)).collect();
    of_class.sort_by(|one, other| (-one.1.sum, one.0).cmp(&(-other.1.sum, other.0)));
    if of_class.len() > listed {
        of_class = collapsed(&of_class, listed);
    }
    of_class.sort_by(|one, other| one.0.cmp(other.0));
    let row = |(name, durations): (&[u8], Durations)| KernelRow {
        rank,
        class,
        name: String::from_utf8_lossy(name).into_owned(),
        count: durations.count,
        sum_ns: i64::try_from(durations.sum * 1000).unwrap_or(i64::MAX),
        min_ns: durations.min.saturating_mul(1000),
        max_ns: durations.max.saturating_mul(1000),
        mean_ns: durations.mean() * 1000.0,
        deviation_ns: durations.deviation() * 1000.0,
    };
    of_class.into_iter().map(row).collect()
}

/// Collapses the names beyond the listed number, or beyond the 80 % quantile of the running sum, into `others`.
fn collapsed<'a>(rows: &[(&'a [u8], Durations)], listed: usize) -> Vec<(&'a [u8], Durations)> {
    let mut running = 0_i128;
    let sums: Vec<i128> = rows
        .iter()
        .map(|row| {
            running += row.1.sum;
            running
        })
        .collect();
    // Sums below zero, of kernels that last -1 us, make the running sum fall at the end.
    let mut sorted = sums.clone();
    sorted.sort_unstable();
    let limit = quantile(&sorted);
    let mut others = Durations::default();
    let mut out = Vec::new();
    for (index, ((name, durations), running)) in rows.iter().zip(&sums).enumerate() {
        let sum = i64::try_from(durations.sum).unwrap_or(i64::MAX);
        #[allow(clippy::cast_precision_loss, reason = "compared as floats, as HTA does")]
        let is_small = index >= listed || *running as f64 > limit;
        // Its list of names that are never collapsed is `sum < 0`, which short kernels make true.
        if is_small && sum >= 0 {
            others.add(sum, 1);
        } else {
            let mut single = Durations::default();
            single.add(sum, 1);
            out.push((*name, single));
        }
    }
    out.push((OTHERS.as_bytes(), others));
    out
}

/// Returns the 80 % quantile of sorted values with linear interpolation.
#[allow(clippy::cast_precision_loss, reason = "compared as floats, as HTA does")]
fn quantile(sorted: &[i128]) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let (below, rest) = (last * 4 / 5, last * 4 % 5);
    let at = |index: usize| sorted.get(index.min(last)).map_or(0.0, |value| *value as f64);
    let fraction = rest as f64 / 5.0;
    at(below) + (at(below + 1) - at(below)) * fraction
}

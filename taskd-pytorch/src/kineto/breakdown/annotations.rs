//! Annotations: ranges that the program or PyTorch named, such as `ProfilerStep#3` or `Optimizer.step#AdamW.step`, on
//! the host and on the device (`user_annotation` and `gpu_user_annotation`).
//!
//! The figures are those of `HolisticTraceAnalysis` 0.5.0 (`analyzers/breakdown_analysis.py`,
//! `get_gpu_user_annotation_breakdown`). The exact mode lists every name; HTA puts names together beyond a thousand,
//! and leaves out ranges that begin in the last step.

use super::KernelRow;
use super::kernels::Kernels;
use serde::Serialize;

/// Annotations of one name on one rank. Times are in nanoseconds; in HTA mode they are multiples of 1000.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnnotationRow {
    /// Global rank.
    pub rank: u32,
    /// True for the range on the device from the first kernel to the last one that the annotated code launched.
    pub is_on_device: bool,
    /// Name of the annotation.
    pub name: String,
    /// Number of ranges. In HTA mode the number of sums, if it puts names together.
    pub count: u64,
    /// Sum of the durations.
    pub sum_ns: i64,
    /// Shortest duration.
    pub min_ns: i64,
    /// Longest duration.
    pub max_ns: i64,
    /// Mean of the durations.
    pub mean_ns: f64,
    /// Standard deviation of the durations, of a sample; 0 for one range.
    pub deviation_ns: f64,
}

impl AnnotationRow {
    pub(super) fn new(row: KernelRow, is_on_device: bool) -> Self {
        let KernelRow { rank, name, count, sum_ns, min_ns, max_ns, mean_ns, deviation_ns, .. } = row;
        Self { rank, is_on_device, name, count, sum_ns, min_ns, max_ns, mean_ns, deviation_ns }
    }
}

/// Returns the place of annotations of this category: true for the device. `None`: the category has no annotations.
#[inline]
pub(super) fn place(category: &[u8]) -> Option<bool> {
    match category {
        b"user_annotation" => Some(false),
        b"gpu_user_annotation" => Some(true),
        _ => None,
    }
}

/// Annotations by name, on the host and on the device.
#[derive(Debug, Default)]
pub(super) struct Annotations {
    host: Kernels,
    device: Kernels,
}

impl Annotations {
    /// Adds a range.
    pub(super) fn add(&mut self, is_on_device: bool, name: &[u8], duration: i64) {
        let names = if is_on_device { &mut self.device } else { &mut self.host };
        let (number, _) = names.number(0, name, || super::Class::Other);
        names.record(number, duration, 1);
    }

    /// Returns the number of ranges without a kept name.
    pub(super) const fn beyond(&self) -> u64 {
        self.host.beyond + self.device.beyond
    }

    /// Returns one row per name: those of the device first, and the largest sum first in each place.
    pub(super) fn into_rows(self, rank: u32) -> Vec<AnnotationRow> {
        let rows = |names: Kernels, is_on_device| {
            names.into_rows(rank).into_iter().map(move |row| AnnotationRow::new(row, is_on_device))
        };
        rows(self.device, true).chain(rows(self.host, false)).collect()
    }
}

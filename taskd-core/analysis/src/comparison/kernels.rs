//! Kernels that changed most between two runs, by name.

use super::percent;
use crate::document::{Analysis, KernelTotal};
use crate::tables::{float, rounded};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of kernels in the comparison.
const KERNELS_MAX: usize = 32;
/// Changes of less than this share of the longest time of a kernel are not listed.
const SHARE_MIN: f64 = 1e-3;

/// Kernels of one name in both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelChange {
    /// Class of the kernel, as in [`KernelTotal`].
    pub class: String,
    /// Name of the kernel.
    pub name: String,
    /// In the earlier run; `None`: the run has no kernel of the name, or it is not among those with the largest sums.
    pub before: Option<KernelUse>,
    /// In the later run.
    pub after: Option<KernelUse>,
    /// Change of the time in percent; `None` if the earlier run has no time of the name.
    pub change_percent: Option<f64>,
}

/// Kernels of one name, on average over the ranks and steps of a run; those before the first step count, too.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelUse {
    /// Time per rank and step, in microseconds.
    pub us_per_step: f64,
    /// Runs per rank and step.
    pub runs_per_step: f64,
    /// Mean duration in microseconds.
    pub mean_us: f64,
}

/// Returns the kernels with the largest changes of their time, the largest first, and the number of those that are left
/// out.
pub(super) fn changes(before: &Analysis, after: &Analysis) -> (Vec<KernelChange>, u64) {
    let steps = [before, after].map(|run| run.kernels.rules.first().map_or(0.0, |rules| rules.steps));
    if (steps[0] > 0.0) != (steps[1] > 0.0) {
        return (Vec::new(), 0); // times of a step cannot be compared with those of a whole trace
    }
    let (before, after) = (uses(before), uses(after));
    if before.is_empty() || after.is_empty() {
        return (Vec::new(), 0);
    }
    let names: BTreeSet<&(&str, &str)> = before.keys().chain(after.keys()).collect();
    let time = |used: Option<KernelUse>| used.map_or(0.0, |used| used.us_per_step);
    let longest = before.values().chain(after.values()).map(|used| used.us_per_step).fold(0.0, f64::max);
    let change = |name: &(&str, &str)| {
        let (before, after) = (before.get(name).copied(), after.get(name).copied());
        let change_percent = before.and_then(|before| percent(before.us_per_step, time(after)));
        KernelChange { class: name.0.to_owned(), name: name.1.to_owned(), before, after, change_percent }
    };
    let size = |change: &KernelChange| (time(change.after) - time(change.before)).abs();
    let mut changes: Vec<KernelChange> =
        names.into_iter().map(change).filter(|change| size(change) > SHARE_MIN * longest).collect();
    changes.sort_by(|one, other| size(other).total_cmp(&size(one)));
    let left_out = changes.len().saturating_sub(KERNELS_MAX) as u64;
    changes.truncate(KERNELS_MAX);
    (changes, left_out)
}

/// Returns the kernels by class and name.
fn uses(analysis: &Analysis) -> BTreeMap<(&str, &str), KernelUse> {
    let Some(rules) = analysis.kernels.rules.first() else { return BTreeMap::new() };
    let ranks = float(rules.devices.len().max(1) as u64);
    let cells = ranks * rules.steps.max(1.0);
    let used = |total: &KernelTotal| KernelUse {
        us_per_step: rounded(total.sum_us / cells),
        runs_per_step: rounded(float(total.count) / cells),
        mean_us: rounded(total.sum_us / float(total.count.max(1))),
    };
    let named = |total: &KernelTotal| rules.names.get(total.name as usize).map_or("", String::as_str);
    rules.totals.iter().map(|total| ((total.class.as_str(), named(total)), used(total))).collect()
}

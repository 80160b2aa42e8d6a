//! The comparison of two runs: medians of their figures, and the ranks and kernels that changed most.

mod kernels;

pub use kernels::{KernelChange, KernelUse};

use crate::document::{Analysis, Table};
use crate::tables::{float, median, rounded};
use serde::{Deserialize, Serialize};

/// Maximum number of ranks in the comparison.
const RANKS_MAX: usize = 16;
/// A figure of a rank that is shorter than this share of its step, in percent, is not compared per rank.
const OF_STEP_MIN_PERCENT: f64 = 1.0;
/// A change of the step's time below this, in percent, is called none.
const SAME_PERCENT: f64 = 2.0;

/// The comparison of two runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Title of the earlier run.
    pub before: String,
    /// Title of the later run.
    pub after: String,
    /// The result in one sentence.
    pub sentence: String,
    /// Medians over all ranks and steps, the first step left out.
    pub figures: Vec<Change>,
    /// Ranks with the largest changes of figures, the largest change in microseconds first.
    pub ranks: Vec<RankChange>,
    /// Number of changes of ranks that were left out because of the document's limit.
    pub ranks_left_out: u64,
    /// Kernels with the largest changes of their time, the largest first; empty if none changed, or if one of the runs has
    /// no kernels.
    #[serde(default)]
    pub kernels: Vec<KernelChange>,
    /// Number of changes of kernels that were left out because of the document's limit.
    #[serde(default)]
    pub kernels_left_out: u64,
    /// Differences that make the runs hard to compare, each as a sentence.
    pub notes: Vec<String>,
}

/// One figure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Name of the figure, such as `step`.
    pub figure: String,
    /// Unit of the values.
    pub unit: String,
    /// Value in the earlier run; `None`: the run does not have the figure.
    pub before: Option<f64>,
    /// Value in the later run.
    pub after: Option<f64>,
    /// Change from the earlier to the later run in percent; `None` without both values, or if the earlier one is 0.
    pub change_percent: Option<f64>,
}

/// One figure of one rank in both runs, in microseconds: the median over the steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankChange {
    /// Global rank.
    pub rank: u32,
    /// Name of the figure.
    pub figure: String,
    /// Median in the earlier run, in microseconds.
    pub before_us: f64,
    /// Median in the later run, in microseconds.
    pub after_us: f64,
    /// Change in percent; `None` if the earlier value is 0.
    pub change_percent: Option<f64>,
}

/// Name and table of each figure that is compared.
fn tables(analysis: &Analysis) -> [(&'static str, &Table); 14] {
    let (breakdown, overlap) = (&analysis.breakdown, &analysis.overlap);
    [
        ("step", &breakdown.total_us),
        ("interval", &breakdown.interval_us),
        ("forward and backward", &breakdown.forward_backward_us),
        ("tail", &breakdown.tail_us),
        ("data loader", &breakdown.data_loader_us),
        ("checkpoint", &breakdown.save_checkpoint_us),
        ("idle", &breakdown.idle_us),
        ("computation", &overlap.computation_us),
        ("communication alone", &overlap.communication_alone_us),
        ("receive alone", &overlap.receive_alone_us),
        ("collective alone", &overlap.collective_alone_us),
        ("overlapped", &overlap.overlapped_us),
        ("transfer", &analysis.communication.transfer_us),
        ("wait", &analysis.communication.wait_us),
    ]
}

/// Compares two runs. Ranks are compared by their number, and steps are not paired: each run has its own.
#[must_use]
pub fn compare(before: &Analysis, after: &Analysis) -> Comparison {
    let mut comparison =
        Comparison { before: before.title.clone(), after: after.title.clone(), ..Comparison::default() };
    for ((figure, before_us), (_, after_us)) in tables(before).into_iter().zip(tables(after)) {
        let all = |table: &Table| median(table.iter().flat_map(|row| steady(row)).collect());
        let (before, after) = (all(before_us), all(after_us));
        if before.is_some() || after.is_some() {
            comparison.figures.push(change(figure, "us", before, after));
        }
    }
    let bandwidth = |analysis: &Analysis| {
        median(analysis.communication.links.iter().filter_map(|link| link.bytes_per_second).collect())
    };
    let rates = (bandwidth(before), bandwidth(after));
    if rates != (None, None) {
        comparison.figures.push(change("link bandwidth", "bytes/s", rates.0, rates.1));
    }
    ranks(before, after, &mut comparison);
    (comparison.kernels, comparison.kernels_left_out) = kernels::changes(before, after);
    comparison.notes = notes(before, after);
    comparison.sentence = sentence(&comparison);
    comparison
}

/// Values of a row without the first step, if there are others.
fn steady(row: &[Option<u64>]) -> impl Iterator<Item = f64> + '_ {
    let first = usize::from(row.iter().skip(1).any(Option::is_some));
    row.iter().skip(first).flatten().copied().map(float)
}

fn change(figure: &str, unit: &str, before: Option<f64>, after: Option<f64>) -> Change {
    let change_percent = before.zip(after).and_then(|(before, after)| percent(before, after));
    Change { figure: figure.to_owned(), unit: unit.to_owned(), before, after, change_percent }
}

fn percent(before: f64, after: f64) -> Option<f64> {
    (before > 0.0).then(|| rounded((after / before - 1.0) * 100.0))
}

/// Adds the largest changes of single ranks. The step itself is left out: it is as long on all ranks.
fn ranks(before: &Analysis, after: &Analysis, comparison: &mut Comparison) {
    let mut changes = Vec::new();
    for (row, info) in before.ranks.iter().enumerate() {
        let Ok(other) = after.ranks.binary_search_by_key(&info.rank, |info| info.rank) else { continue };
        let of = |table: &Table, row: usize| median(table.get(row).into_iter().flat_map(|row| steady(row)).collect());
        let step = of(&before.breakdown.total_us, row).unwrap_or_default();
        for ((figure, first), (_, second)) in tables(before).into_iter().zip(tables(after)).skip(1) {
            let (Some(before_us), Some(after_us)) = (of(first, row), of(second, other)) else { continue };
            if before_us.max(after_us) * 100.0 >= OF_STEP_MIN_PERCENT * step && before_us.total_cmp(&after_us).is_ne() {
                let (figure, change_percent) = (figure.to_owned(), percent(before_us, after_us));
                changes.push(RankChange { rank: info.rank, figure, before_us, after_us, change_percent });
            }
        }
    }
    let size = |change: &RankChange| (change.after_us - change.before_us).abs();
    changes.sort_by(|a, b| size(b).total_cmp(&size(a)));
    comparison.ranks_left_out = changes.len().saturating_sub(RANKS_MAX) as u64;
    changes.truncate(RANKS_MAX);
    comparison.ranks = changes;
}

fn notes(before: &Analysis, after: &Analysis) -> Vec<String> {
    let mut notes = Vec::new();
    let (ranks, other_ranks) = (before.ranks.len(), after.ranks.len());
    if !before.ranks.iter().map(|info| info.rank).eq(after.ranks.iter().map(|info| info.rank)) {
        notes.push(format!(
            "The runs have different ranks ({ranks} and {other_ranks}): only common ones are compared singly."
        ));
    }
    let (steps, other_steps) = (before.steps.len(), after.steps.len());
    if steps != other_steps {
        notes.push(format!("The runs have {steps} and {other_steps} steps: medians are compared, not sums."));
    }
    let stages = |analysis: &Analysis| analysis.pipeline.stages.len();
    if stages(before) != stages(after) {
        notes.push(format!("The runs have {} and {} pipeline stages.", stages(before), stages(after)));
    }
    if before.sources != after.sources {
        notes.push("The runs were recorded by different tools, which may measure different events.".to_owned());
    }
    notes
}

fn sentence(comparison: &Comparison) -> String {
    let step = comparison.figures.iter().find(|change| change.figure == "step");
    let Some((step, percent)) = step.and_then(|step| Some((step, step.change_percent?))) else {
        return "The runs have no common step time: they cannot be compared.".to_owned();
    };
    let (before, after) = (step.before.unwrap_or_default() / 1000.0, step.after.unwrap_or_default() / 1000.0);
    let times = format!("{before:.2} ms before, {after:.2} ms after");
    if percent.abs() < SAME_PERCENT {
        return format!("The steps take as long as before ({times}).");
    }
    let word = if percent > 0.0 { "longer" } else { "less" };
    let size = |change: &&Change| (change.after.unwrap_or_default() - change.before.unwrap_or_default()).abs();
    let of_time = comparison.figures.iter().filter(|change| change.unit == "us" && change.figure != "step");
    let largest = of_time.filter(|change| change.before.is_some()).max_by(|a, b| size(a).total_cmp(&size(b)));
    let most = largest.map_or_else(String::new, |change| {
        let (before, after) = (change.before.unwrap_or_default() / 1000.0, change.after.unwrap_or_default() / 1000.0);
        format!("; of the parts, {} changed most ({before:.2} ms before, {after:.2} ms after)", change.figure)
    });
    format!("A step takes {:.1} % {word} ({times}){most}.", percent.abs())
}

#[cfg(test)]
mod tests {
    use super::compare;
    use crate::analyze;
    use crate::document::{Analysis, KernelTotal};
    use crate::synthetic::{Fault, Job, trace};

    fn analysis(job: &Job) -> Analysis {
        analyze(&trace(job, 3), &Default::default())
    }

    #[test]
    fn run_equals_itself() {
        let run = analysis(&Job::default());
        let comparison = compare(&run, &run);
        assert!(comparison.figures.iter().all(|change| change.change_percent.is_none_or(|percent| percent == 0.0)));
        assert!(comparison.ranks.is_empty() && comparison.kernels.is_empty() && comparison.notes.is_empty());
        assert!(comparison.sentence.starts_with("The steps take as long as before"), "{}", comparison.sentence);
    }

    #[test]
    fn slower_rank_is_the_largest_change() {
        let fault = Fault::SlowRank { rank: 5, from_step: 1, percent: 50 };
        let comparison = compare(&analysis(&Job::default()), &analysis(&Job::default().with_fault(fault)));
        let step = &comparison.figures[0];
        assert_eq!(step.figure, "step");
        assert!((20.0..60.0).contains(&step.change_percent.unwrap()), "{step:?}");
        let computation = comparison.ranks.iter().find(|change| change.figure == "computation").unwrap();
        assert_eq!(computation.rank, 5);
        assert!((45.0..55.0).contains(&computation.change_percent.unwrap()), "{computation:?}");
        assert!(comparison.sentence.contains("% longer"), "{}", comparison.sentence);
    }

    #[test]
    fn kernels_that_are_slower_and_new_ones_are_listed() {
        let before = analysis(&Job::default());
        let mut after = before.clone();
        let rules = &mut after.kernels.rules[0];
        let slower = rules.totals.iter_mut().find(|total| total.class == "compute").unwrap();
        slower.sum_us *= 2.0;
        let slower = rules.names[slower.name as usize].clone();
        let name = u32::try_from(rules.names.len()).unwrap();
        rules.names.push("new".into());
        rules.totals.push(KernelTotal { name, ..rules.totals[0].clone() });
        let changes = compare(&before, &after).kernels;
        let names: Vec<(&str, Option<f64>)> =
            changes.iter().map(|change| (change.name.as_str(), change.change_percent)).collect();
        assert!(names.contains(&(slower.as_str(), Some(100.0))) && names.contains(&("new", None)), "{changes:?}");
        assert_eq!(changes.len(), 2);
    }

    #[test]
    fn runs_of_other_shapes_have_notes() {
        let other = Job { dp: 1, pp: 1, steps: 5, ..Job::default() };
        let comparison = compare(&analysis(&Job::default()), &analysis(&other));
        assert_eq!(comparison.notes.len(), 3, "{:?}", comparison.notes);
        let text = serde_json::to_string(&comparison).unwrap();
        assert_eq!(serde_json::from_str::<super::Comparison>(&text).unwrap(), comparison);
    }
}

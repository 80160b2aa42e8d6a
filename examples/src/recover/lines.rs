//! The script's record of its steps: one file for each process, with a line for each step that it has completed.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A completed step.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    /// When, on the machine's monotonic clock, in seconds. For a step that this process has copied rather than
    /// computed: when it had the state.
    pub t: f64,
    /// Its number.
    pub step: u64,
    /// The loss, if this process has computed the step: a new process has not.
    pub loss: Option<f64>,
    /// The hash of all that the next step depends on: model, optimizer and random numbers. Not for large states.
    pub sha256: Option<String>,
}

/// Returns the completed steps of each rank, in the order of their times.
pub fn read(dir: &Path) -> BTreeMap<u32, Vec<Line>> {
    let mut ranks: BTreeMap<u32, Vec<Line>> = BTreeMap::new();
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let rank = name.strip_prefix("steps.").and_then(|rest| rest.split('.').next()?.parse().ok());
        let (Some(rank), Ok(text)) = (rank, fs::read_to_string(file.path())) else { continue };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        ranks.entry(rank).or_default().extend(lines);
    }
    ranks.values_mut().for_each(|lines| lines.sort_by(|a, b| a.t.total_cmp(&b.t)));
    ranks
}

/// Returns the first step that `ranks` ranks have computed since then, and when the last of them had.
pub fn first_common<'a>(
    lines: impl IntoIterator<Item = (u32, &'a Line)>,
    since: f64,
    ranks: usize,
) -> Option<(u64, f64)> {
    let mut steps: BTreeMap<u64, BTreeMap<u32, f64>> = BTreeMap::new();
    for (rank, line) in lines.into_iter().filter(|(_, line)| line.t > since && line.loss.is_some()) {
        steps.entry(line.step).or_default().insert(rank, line.t);
    }
    let common = steps.into_iter().filter(|(_, times)| times.len() >= ranks);
    let ends = common.filter_map(|(step, times)| Some((step, times.into_values().reduce(f64::max)?)));
    ends.min_by(|(_, one), (_, other)| one.total_cmp(other))
}

/// Returns the time of the machine's monotonic clock in seconds, as Python reads it.
pub fn now() -> f64 {
    crate::clock::monotonic().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_once_all_have_computed_it_themselves() {
        let line = |rank, step, t, loss| (rank, Line { t, step, loss, sha256: None });
        // Rank 0 had computed step 7 before the fault, and recorded it after that; rank 1 copied it.
        let lines =
            [line(0, 7, 0.9, Some(0.1)), line(1, 7, 2.0, None), line(0, 8, 2.5, Some(0.1)), line(1, 8, 2.6, Some(0.1))];
        let common = |ranks| first_common(lines.iter().map(|(rank, line)| (*rank, line)), 1.0, ranks);
        assert_eq!(common(2), Some((8, 2.6)));
        assert_eq!(common(3), None, "a third one has not");
    }
}

//! Compares a rank's calls between two similar calls with its earlier ones, to find omitted calls.
//!
//! It considers one rank alone.

use super::RankReport;
use super::group::{Stuck, shape};
use crate::trace::Call;
use std::cmp::Reverse;

/// Minimum number of earlier observations for a habit.
const TIMES_MIN: usize = 2;

/// Returns true if a rank omitted calls: since its last call like the one in which it waits now, it has made fewer
/// calls like those in `place` than between any two earlier ones.
pub(super) fn is_short(report: &RankReport, waits: (&str, &Call), place: &Stuck<'_>) -> bool {
    let history = history(report);
    let is_like = |(group, call): &(&str, &Call)| *group == waits.0 && shape(call) == shape(waits.1);
    let in_place = |(group, call): &(&str, &Call)| *group == place.group.name && place.is_called_as(call);
    // Nothing is known about calls before the oldest recorded one of that group.
    let Some(known_from) = history.iter().position(|(group, _)| *group == place.group.name) else { return false };
    let until = history.iter().position(|(group, call)| *group == waits.0 && call.sequence == waits.1.sequence);
    let history = &history[known_from..until.map_or(known_from, |at| (at + 1).max(known_from))];
    let turns: Vec<usize> = (0..history.len()).filter(|at| is_like(&history[*at])).collect();
    let made = |turn: &[usize]| history[turn[0]..turn[1]].iter().filter(|made| in_place(made)).count();
    let counts: Vec<usize> = turns.windows(2).map(made).collect();
    let Some((now, before)) = counts.split_last() else { return false };
    before.len() >= TIMES_MIN && before.iter().all(|count| now < count)
}

/// Returns a rank's calls in all groups, oldest first.
fn history(report: &RankReport) -> Vec<(&str, &Call)> {
    let groups = report.groups.iter().flatten();
    let calls = groups.flat_map(|group| group.recent.iter().map(|call| (group.group.as_str(), call)));
    let mut calls: Vec<(&str, &Call)> = calls.collect();
    calls.sort_by_key(|(_, call)| Reverse(call.begun));
    calls
}

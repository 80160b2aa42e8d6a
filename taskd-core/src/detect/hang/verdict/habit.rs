//! What a rank usually calls between two calls of one kind, and whether some of that is missing this time.
//!
//! It looks at one rank alone.

use super::RankReport;
use super::group::{Stuck, shape};
use crate::trace::Call;
use std::cmp::Reverse;

/// Fewest times that something must have been so, to be a habit.
const TIMES_MIN: usize = 2;

/// Whether a rank that waits in a call has made fewer calls like those in `place`, since the last call like the one in which
/// it waits, than between any two of these before.
pub(super) fn is_short(report: &RankReport, waits: (&str, &Call), place: &Stuck<'_>) -> bool {
    let history = history(report);
    let is_like = |(group, call): &(&str, &Call)| *group == waits.0 && shape(call) == shape(waits.1);
    let in_place = |(group, call): &(&str, &Call)| *group == place.group.name && place.is_called_as(call);
    // Of calls before the oldest that is known in that group nothing can be said.
    let Some(known_from) = history.iter().position(|(group, _)| *group == place.group.name) else { return false };
    let until = history.iter().position(|(group, call)| *group == waits.0 && call.sequence == waits.1.sequence);
    let history = &history[known_from..until.map_or(known_from, |at| (at + 1).max(known_from))];
    let turns: Vec<usize> = (0..history.len()).filter(|at| is_like(&history[*at])).collect();
    let made = |turn: &[usize]| history[turn[0]..turn[1]].iter().filter(|made| in_place(made)).count();
    let counts: Vec<usize> = turns.windows(2).map(made).collect();
    let Some((now, before)) = counts.split_last() else { return false };
    before.len() >= TIMES_MIN && before.iter().all(|count| now < count)
}

/// A rank's calls in all groups, oldest first.
fn history(report: &RankReport) -> Vec<(&str, &Call)> {
    let groups = report.groups.iter().flatten();
    let calls = groups.flat_map(|group| group.recent.iter().map(|call| (group.group.as_str(), call)));
    let mut calls: Vec<(&str, &Call)> = calls.collect();
    calls.sort_by_key(|(_, call)| Reverse(call.begun));
    calls
}

//! Compares a rank's calls between two similar calls with its earlier ones, to find omitted calls.
//!
//! It considers one rank alone.

use super::RankReport;
use super::group::{Stuck, shape};
use crate::trace::{Call, RECENT_CALLS};
use std::cmp::Reverse;

/// Minimum number of earlier observations for a habit.
const TIMES_MIN: usize = 2;
/// Maximum number of calls by which a point of the program is recognised.
const CONTEXT_MAX: usize = 32;

/// Returns true if a rank omitted calls: by their number, or by their place in the sequence of its calls.
pub(super) fn has_omitted(report: &RankReport, waits: (&str, &Call), place: &Stuck<'_>) -> bool {
    let history = history(report);
    is_short(&history, waits, place) || leaves_sequence(report, &history, waits, place)
}

/// Returns true if the rank, since its last call like the one in which it waits now, has made fewer calls like those in
/// `place` than between any two earlier ones.
fn is_short(history: &[(&str, &Call)], waits: (&str, &Call), place: &Stuck<'_>) -> bool {
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

/// Returns true if the latest calls before the one in which the rank waits were always followed by a call like those in
/// `place`. The longest sequence of latest calls that occurred before decides: a step of a pipeline repeats the same send
/// many times, and the calls before them show the point of the program.
fn leaves_sequence(report: &RankReport, history: &[(&str, &Call)], waits: (&str, &Call), place: &Stuck<'_>) -> bool {
    // Earlier calls of a group with as many records as are kept are unknown.
    let full = report.groups.iter().flatten().filter(|group| group.recent.len() >= RECENT_CALLS);
    let begins = full.filter_map(|group| {
        let first = group.recent.first()?;
        history.iter().position(|(name, call)| *name == group.group && call.sequence == first.sequence)
    });
    let known_from = begins.max().unwrap_or(0);
    let until = history.iter().position(|(group, call)| *group == waits.0 && call.sequence == waits.1.sequence);
    let Some(made) = until.and_then(|until| history.get(known_from..until)) else { return false };
    let is_same = |a: &(&str, &Call), b: &(&str, &Call)| a.0 == b.0 && shape(a.1) == shape(b.1);
    for length in (1..=CONTEXT_MAX.min(made.len())).rev() {
        let latest = &made[made.len() - length..];
        let occurred = |at: &usize| made[*at..*at + length].iter().zip(latest).all(|(a, b)| is_same(a, b));
        let next: Vec<_> = (0..made.len() - length).filter(occurred).map(|at| made[at + length]).collect();
        if next.len() >= TIMES_MIN {
            return next.iter().all(|(group, call)| *group == place.group.name && place.is_called_as(call));
        }
    }
    false
}

/// Returns a rank's calls in all groups, oldest first.
fn history(report: &RankReport) -> Vec<(&str, &Call)> {
    let groups = report.groups.iter().flatten();
    let calls = groups.flat_map(|group| group.recent.iter().map(|call| (group.group.as_str(), call)));
    let mut calls: Vec<(&str, &Call)> = calls.collect();
    calls.sort_by_key(|(_, call)| Reverse(call.begun));
    calls
}

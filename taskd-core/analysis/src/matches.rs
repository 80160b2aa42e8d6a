//! Finds the same collective on all of its members.
//!
//! Two events are the same collective if they have the same group and sequence number. Without sequence numbers the k-th
//! operation of a name in a step is the same on all members, but only where all of them ran it equally often: a member
//! with other counts would be compared with the wrong call. A call that only one rank recorded, or that one rank
//! recorded twice, has no match. Calls without a group are calls of one group of all ranks with collectives, if all of
//! them have the call: the residual of the clocks shows whether that is so.

use crate::index::Index;
use crate::model::{Communication, Event, Kind, NameId, RankTrace};
use std::collections::BTreeMap;

/// No step: the event is outside of all steps.
const OUTSIDE: u32 = u32::MAX;
/// Group of the calls for which the trace names no group.
const UNNAMED: u32 = u32::MAX;
/// Operations that end at different times on their members, because data flows in one direction.
const ONE_WAY: [&str; 4] = ["broadcast", "reduce", "gather", "scatter"];
/// Parts of the names of operations that contain a name of [`ONE_WAY`] and end on all members together.
const ALL_TO_ALL: [&str; 4] = ["all", "reduce_scatter", "reducescatter", "barrier"];

/// A communication event of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) event: &'a Event,
    pub(crate) details: Option<&'a Communication>,
    /// Column of the step that holds the event's start.
    pub(crate) column: Option<usize>,
}

/// The same collective on several rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Range of the members in [`Matches::members`].
    first: usize,
    end: usize,
    /// Number of the group: equal for all runs of one group.
    pub(crate) group: u32,
    /// True if all members end together.
    pub(crate) is_synchronous: bool,
}

/// All communication of a trace, and the matched collectives.
#[derive(Debug, Default)]
pub(crate) struct Matches<'a> {
    /// Communication events of each row in the order of their starts.
    pub(crate) calls: Vec<Vec<Call<'a>>>,
    /// Matched collectives, sorted by group.
    pub(crate) runs: Vec<Run>,
    /// Row and index in `calls` of the members of all runs.
    members: Vec<(u32, u32)>,
    /// Number of collectives without a match.
    pub(crate) unmatched: u64,
}

/// Identifies a call; equal for the same call on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    group: u32,
    /// Name and step; both are `u32::MAX` for a call with a sequence number.
    name: u32,
    column: u32,
    /// Sequence number, or number of the call among those with the same name in the step.
    number: u64,
}

impl<'a> Matches<'a> {
    /// Matches the collectives of a trace.
    pub(crate) fn new(index: &Index<'a>) -> Matches<'a> {
        let mut matches = Matches::default();
        let mut keys = Keys::default();
        let mut entries: Vec<(Key, u32, u32)> = Vec::new();
        for (row, rank) in index.rows.iter().enumerate() {
            let is_communication = |event: &&Event| event.kind.is_communication();
            let calls: Vec<Call<'_>> = rank
                .events
                .iter()
                .filter(is_communication)
                .map(|event| Call {
                    event,
                    details: index.details(row, event),
                    column: index.column_of(row, event.start_ns),
                })
                .collect();
            keys.next_row(rank);
            for (at, call) in (0..).zip(&calls).filter(|(_, call)| call.event.kind == Kind::Collective) {
                match keys.key(rank, call) {
                    Some(key) => entries.push((key, narrow(row), at)),
                    None => matches.unmatched += 1,
                }
            }
            matches.calls.push(calls);
        }
        entries.sort_unstable();
        matches.collect(index, &entries);
        matches
    }

    /// Forms a run of each set of entries with one key.
    fn collect(&mut self, index: &Index<'a>, entries: &[(Key, u32, u32)]) {
        let same = |a: &(Key, u32, u32), b: &(Key, u32, u32)| {
            (a.0.group, a.0.name, a.0.column) == (b.0.group, b.0.name, b.0.column)
        };
        let has_collectives = |calls: &&Vec<Call<'_>>| calls.iter().any(|call| call.event.kind == Kind::Collective);
        let rows = self.calls.iter().filter(has_collectives).count();
        for calls in entries.chunk_by(same) {
            let is_numbered = calls[0].0.name != u32::MAX;
            let mut runs = calls.chunk_by(|a, b| a.0 == b.0).peekable();
            let members = runs.peek().map_or(0, |first| first.len());
            let is_aligned = !is_numbered || calls.chunk_by(|a, b| a.0 == b.0).all(|run| run.len() == members);
            for run in runs {
                let is_once = run.windows(2).all(|pair| pair[0].1 != pair[1].1);
                let is_whole = run[0].0.group != UNNAMED || run.len() == rows;
                if run.len() < 2 || !is_once || !is_aligned || !is_whole {
                    self.unmatched += run.len() as u64;
                    continue;
                }
                let first = self.members.len();
                self.members.extend(run.iter().map(|&(_, row, at)| (row, at)));
                let (row, at) = (run[0].1 as usize, run[0].2 as usize);
                let is_synchronous = is_synchronous(index.rows[row], &self.calls[row][at]);
                self.runs.push(Run { first, end: self.members.len(), group: run[0].0.group, is_synchronous });
            }
        }
    }

    /// Returns the members of a run as row and index in [`Matches::calls`], sorted by row.
    pub(crate) fn members(&self, run: &Run) -> &[(u32, u32)] {
        &self.members[run.first..run.end]
    }

    /// Returns the event of a member of a run.
    pub(crate) fn event(&self, (row, at): (u32, u32)) -> &'a Event {
        self.calls[row as usize][at as usize].event
    }
}

/// Gives numbers to groups and names, and counts calls.
#[derive(Debug, Default)]
struct Keys<'a> {
    groups: BTreeMap<(&'a str, &'a [u32]), u32>,
    names: BTreeMap<&'a str, u32>,
    row_groups: Vec<u32>,
    row_names: BTreeMap<NameId, u32>,
    counts: BTreeMap<(u32, u32, u32), u64>,
}

impl<'a> Keys<'a> {
    fn next_row(&mut self, rank: &'a RankTrace) {
        self.counts.clear();
        self.row_names.clear();
        self.row_groups.clear();
        for group in &rank.groups {
            let next = narrow(self.groups.len());
            let number = self.groups.entry((&group.name, &group.members)).or_insert(next);
            self.row_groups.push(*number);
        }
    }

    /// Returns the key of a call; `None`: the trace has neither its group and sequence number nor its step.
    fn key(&mut self, rank: &'a RankTrace, call: &Call<'_>) -> Option<Key> {
        let group = call.details.and_then(|details| self.row_groups.get(details.group? as usize).copied());
        if let Some(group) = group
            && let Some(number) = call.details.and_then(|details| details.sequence)
        {
            return Some(Key { group, name: u32::MAX, column: u32::MAX, number });
        }
        let column = call.column.map_or(OUTSIDE, narrow);
        if column == OUTSIDE {
            return None;
        }
        let name = match self.row_names.get(&call.event.name) {
            Some(name) => *name,
            None => {
                let next = narrow(self.names.len());
                let name = *self.names.entry(rank.names.get(call.event.name)).or_insert(next);
                self.row_names.insert(call.event.name, name);
                name
            }
        };
        let group = group.unwrap_or(UNNAMED);
        let count = self.counts.entry((group, name, column)).or_default();
        *count += 1;
        Some(Key { group, name, column, number: *count - 1 })
    }
}

/// Returns true if the operation ends on all members together.
fn is_synchronous(rank: &RankTrace, call: &Call<'_>) -> bool {
    let operation = call.details.map_or("", |details| rank.names.get(details.operation));
    let name = if operation.is_empty() { rank.names.get(call.event.name) } else { operation };
    let name = name.to_ascii_lowercase();
    ALL_TO_ALL.iter().any(|part| name.contains(part)) || !ONE_WAY.iter().any(|part| name.contains(part))
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::Matches;
    use crate::index::Index;
    use crate::model::{Communication, Event, Group, Kind, RankTrace, StepSpan, Trace};

    /// Ranks with one group and these calls: name, sequence and start.
    fn trace(ranks: &[&[(&str, Option<u64>, i64)]]) -> Trace {
        let mut trace = Trace::default();
        for (number, calls) in (0u32..).zip(ranks) {
            let mut rank = RankTrace::default();
            rank.groups.push(Group { name: "g".to_owned(), ..Group::default() });
            rank.steps.push(StepSpan { number: 1, start_ns: 0, duration_ns: 100 });
            for (at, &(name, sequence, start_ns)) in (0..).zip(*calls) {
                let name = rank.names.intern(name);
                let details = Communication { operation: name, group: Some(0), sequence, ..Communication::default() };
                rank.communications.push(details);
                let kind = Kind::Collective;
                rank.events.push(Event { start_ns, duration_ns: 5, kind, lane: 0, name, communication: Some(at) });
            }
            trace.ranks.insert(number, rank);
        }
        trace
    }

    fn starts(trace: &Trace) -> (Vec<Vec<i64>>, u64) {
        let index = Index::new(trace);
        let matches = Matches::new(&index);
        let of = |run| matches.members(run).iter().map(|member| matches.event(*member).start_ns).collect();
        (matches.runs.iter().map(of).collect(), matches.unmatched)
    }

    #[test]
    fn calls_of_one_sequence_match() {
        let (runs, unmatched) = starts(&trace(&[
            &[("all_reduce", Some(4), 1), ("all_reduce", Some(5), 11)],
            &[("all_reduce", Some(5), 12), ("all_reduce", Some(6), 20)],
        ]));
        assert_eq!(runs, [[11, 12]]);
        assert_eq!(unmatched, 2);
    }

    #[test]
    fn calls_without_sequence_match_by_their_order_in_the_step() {
        let (runs, unmatched) = starts(&trace(&[
            &[("a", None, 1), ("b", None, 5), ("a", None, 11)],
            &[("b", None, 2), ("a", None, 3), ("a", None, 14)],
        ]));
        assert_eq!(runs, [[1, 3], [11, 14], [5, 2]]);
        assert_eq!(unmatched, 0);
    }

    #[test]
    fn calls_with_different_counts_do_not_match() {
        let (runs, unmatched) = starts(&trace(&[&[("a", None, 1), ("a", None, 11)], &[("a", None, 12)]]));
        assert!(runs.is_empty());
        assert_eq!(unmatched, 3);
    }

    #[test]
    fn calls_without_a_group_match_if_all_ranks_have_them() {
        let mut trace = trace(&[&[("a", None, 1)], &[("a", None, 3)], &[("b", None, 4)]]);
        for rank in trace.ranks.values_mut() {
            rank.communications.iter_mut().for_each(|details| details.group = None);
        }
        assert_eq!(starts(&trace), (vec![], 3));
        trace.ranks.remove(&2);
        assert_eq!(starts(&trace), (vec![vec![1, 3]], 0));
    }

    #[test]
    fn operation_of_one_direction_is_not_synchronous() {
        let is_synchronous = |name| {
            let trace = trace(&[&[(name, Some(1), 1)], &[(name, Some(1), 2)]]);
            let index = Index::new(&trace);
            Matches::new(&index).runs[0].is_synchronous
        };
        for name in ["all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all", "AllReduce"] {
            assert!(is_synchronous(name), "{name}");
        }
        for name in ["broadcast", "reduce", "gather", "scatter"] {
            assert!(!is_synchronous(name), "{name}");
        }
    }
}

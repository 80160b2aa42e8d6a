//! One process group, and the call in which it is stuck, with the position of each member.
//!
//! This module blames no rank.

use super::{Culprit, HangCause, RankReport, words};
use crate::job::Rank;
use crate::trace::{Call, GroupPosition, is_point_to_point};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// Operations for which all members pass the same number of elements of one type. For other operations only the name is
/// compared.
const SAME_SIZE: [&str; 5] = ["allreduce", "reduce", "broadcast", "allgather_base", "reduce_scatter_base"];

/// The properties of a call that all members of a group must agree on.
pub(super) type Shape<'a> = (&'a str, Option<(u64, &'a str)>);

pub(super) fn shape(call: &Call) -> Shape<'_> {
    let is_sized = SAME_SIZE.contains(&call.operation.as_str());
    (&call.operation, is_sized.then_some((call.elements, &call.data_type)))
}

/// A group, identified by its name and members.
pub(super) struct Group<'a> {
    pub(super) name: &'a str,
    pub(super) members: BTreeSet<u32>,
    /// True for the sends and receives between two ranks.
    pub(super) is_point_to_point: bool,
    /// The latest calls of each member, by rank; members that report none are missing.
    calls: BTreeMap<u32, &'a [Call]>,
}

impl<'a> Group<'a> {
    pub(super) fn gather(reports: &'a [RankReport]) -> Vec<Group<'a>> {
        let mut groups: BTreeMap<(&str, &[u32]), Group<'a>> = BTreeMap::new();
        for report in reports {
            for GroupPosition { group: name, members, recent } in report.groups.iter().flatten() {
                let new = || Group {
                    name,
                    members: members.iter().copied().collect(),
                    is_point_to_point: is_point_to_point(name, members),
                    calls: BTreeMap::new(),
                };
                let group = groups.entry((name, members)).or_insert_with(new);
                group.calls.insert(report.rank.0, recent);
                if members.is_empty() {
                    group.members.insert(report.rank.0); // the source does not report the members
                }
            }
        }
        groups.into_values().collect()
    }

    /// Finds the oldest call that has been in progress for at least `pending_min`, and the position of each member.
    pub(super) fn stuck(&'a self, reports: &[RankReport], pending_min: Duration) -> Option<Stuck<'a>> {
        let all = self.calls.values().flat_map(|calls| calls.iter());
        let over: BTreeSet<u64> = all.filter(|call| !call.is_pending).map(|call| call.sequence).collect();
        let pending = self.calls.values().filter_map(|calls| first_pending(calls, &over));
        let sequence = pending.filter(|call| call.begun >= pending_min).map(|call| call.sequence).min()?;
        let mut stuck = Stuck {
            group: self,
            sequence,
            calling: BTreeMap::new(),
            odd: BTreeMap::new(),
            absent: BTreeSet::new(),
            unknown: BTreeSet::new(),
            shapes: BTreeMap::new(),
        };
        let known: BTreeSet<u32> = reports.iter().filter(|r| r.groups.is_some()).map(|r| r.rank.0).collect();
        let mut called: BTreeMap<u32, &Call> = BTreeMap::new();
        for member in &self.members {
            let calls = self.calls.get(member).copied().unwrap_or_default();
            let is_past = calls.last().is_some_and(|last| last.sequence > sequence);
            if let Some(call) = calls.iter().find(|call| call.sequence == sequence) {
                called.insert(*member, call);
            } else if !known.contains(member) || self.is_point_to_point && !self.calls.contains_key(member) {
                // A rank without any call of this exchange may receive from any source, which has no number.
                stuck.unknown.insert(*member);
            } else if !is_past {
                stuck.absent.insert(*member);
            }
        }
        for (member, call) in &called {
            stuck.shapes.entry(shape(call)).or_default().push((*member, *call));
        }
        let usual = stuck.usual();
        for (member, call) in called {
            if usual.is_some_and(|usual| usual != shape(call)) {
                stuck.odd.insert(member, call);
            } else if call.is_pending {
                stuck.calling.insert(member, call);
            }
        }
        Some(stuck)
    }
}

/// Returns the oldest call in progress. A call that has completed on another member, and is followed by a completed one
/// here, has completed as well: only the report of its end was lost.
fn first_pending<'a>(calls: &'a [Call], over: &BTreeSet<u64>) -> Option<&'a Call> {
    let last_over = calls.iter().rposition(|call| !call.is_pending);
    let mut pending = calls.iter().enumerate().filter(|(_, call)| call.is_pending);
    pending.find(|(at, call)| last_over.is_none_or(|last| last < *at) || !over.contains(&call.sequence)).map(|(_, c)| c)
}

/// The call in which a group is stuck.
pub(super) struct Stuck<'a> {
    pub(super) group: &'a Group<'a>,
    pub(super) sequence: u64,
    /// Members that are in the call, in the majority's form.
    pub(super) calling: BTreeMap<u32, &'a Call>,
    /// Members that have called something else.
    pub(super) odd: BTreeMap<u32, &'a Call>,
    /// Members that have not reached the call.
    pub(super) absent: BTreeSet<u32>,
    /// Members about which nothing is known.
    pub(super) unknown: BTreeSet<u32>,
    /// Callers by the form of their call: operation, and size and data type if all members must pass the same.
    pub(super) shapes: BTreeMap<Shape<'a>, Vec<(u32, &'a Call)>>,
}

impl<'a> Stuck<'a> {
    /// Returns the form that the majority of the callers used, if there is one.
    fn usual(&self) -> Option<Shape<'a>> {
        let called: usize = self.shapes.values().map(Vec::len).sum();
        self.shapes.iter().find(|(_, who)| who.len() * 2 > called).map(|(shape, _)| *shape)
    }

    /// Returns true if different calls were made, and none by a majority.
    pub(super) fn is_tied(&self) -> bool {
        self.shapes.len() > 1 && self.usual().is_none()
    }

    /// Returns each different call with its callers.
    pub(super) fn sides(&self) -> impl Iterator<Item = (String, Vec<Rank>)> {
        self.shapes.values().map(|callers| {
            let call = callers.first().map_or_else(String::new, |(_, call)| words(call));
            (call, callers.iter().map(|(rank, _)| Rank(*rank)).collect())
        })
    }

    /// Returns true if that call usually follows the omitted one.
    pub(super) fn skips_to(&self, odd: &Call) -> bool {
        let follows = |calls: &[Call], call: &Call| {
            let before = calls.iter().take_while(|earlier| earlier.sequence < self.sequence);
            let before: Vec<&Call> = before.collect();
            let left_out = |pair: &&[&Call]| shape(pair[0]) == shape(call) && pair[1].sequence == pair[0].sequence + 1;
            before.windows(2).rfind(left_out).is_some_and(|pair| shape(pair[1]) == shape(odd))
        };
        self.calling.iter().any(|(rank, call)| self.group.calls.get(rank).is_some_and(|calls| follows(calls, call)))
    }

    /// Returns true if a call has the majority's form.
    pub(super) fn is_called_as(&self, call: &Call) -> bool {
        self.usual() == Some(shape(call))
    }

    /// Returns the smaller side, callers or absent members; `None` if both have the same size.
    pub(super) fn minority(&self) -> Option<BTreeSet<u32>> {
        let calling = || self.calling.keys().copied().collect();
        match self.calling.len().cmp(&self.absent.len()) {
            std::cmp::Ordering::Less => Some(calling()),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(self.absent.clone()),
        }
    }

    /// Returns the longest time that a member has been in the call.
    pub(super) fn since(&self) -> Duration {
        self.calling.values().chain(self.odd.values()).map(|call| call.begun).max().unwrap_or_default()
    }

    pub(super) fn culprit(&self, rank: u32, cause: HangCause, text: String) -> Culprit {
        let waiting = self.calling.keys().copied().filter(|waiting| *waiting != rank).map(Rank).collect();
        let (group, sequence, since) = (self.group.name.to_owned(), self.sequence, self.since());
        Culprit { rank: Rank(rank), cause, group, sequence, waiting, since, text }
    }
}

/// Example: `allreduce of 1024 f32, number 8 of group default`.
impl fmt::Display for Stuck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.calling.values().chain(self.odd.values()).next().map(|call| words(call));
        write!(f, "{}, number {} of group {}", call.as_deref().unwrap_or("a call"), self.sequence, self.group.name)
    }
}

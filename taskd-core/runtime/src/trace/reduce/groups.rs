//! The last calls of a process in each of its groups, and in its sends and receives with each other rank.
//!
//! Comparing the ranks' positions is left to detectors, which have the positions of all ranks.

use super::{GROUPS_MAX, PAIRS_MAX, PendingCall};
use crate::trace::recorder::{Communication, DataType, NameId, Op};
use crate::trace::{Call, GroupPosition, NameTable, RECENT_CALLS};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use taskd_kernel::trace::{point_to_point_name, split_group_name};

/// Operation of every send and receive: both sides of a pair give a call the same name.
const SEND_AND_RECEIVE: &str = "send and receive";

/// Groups and pairs of ranks.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Global rank of the process.
    pub(super) rank: u32,
    places: BTreeMap<Place, Group>,
    /// True if the process has received from any source. Its receives from one rank are then only a part of the messages
    /// that this rank has sent to it, and their numbers mean nothing.
    receives_from_any: bool,
}

/// Calls that are counted together: the collectives of a group, or the sends or receives with one other rank there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    group: NameId,
    pair: Option<Pair>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    is_send: bool,
    /// Global rank of the other side.
    peer: u32,
}

/// The last calls of one group, oldest first.
#[derive(Debug, Default)]
struct Group {
    recent: VecDeque<Made>,
    last_call: u64,
}

/// A call of this process.
#[derive(Debug)]
struct Made {
    range: u64,
    name: NameId,
    sequence: u64,
    elements: u64,
    data_type: DataType,
    begun: u64,
    is_pending: bool,
    /// True if the call was already reported as pending for too long.
    was_reported: bool,
}

impl Groups {
    /// Adds a call that has a number. Returns true if another group or pair was forgotten for it.
    pub(super) fn call(&mut self, range: u64, name: NameId, what: &Communication, now: u64) -> bool {
        let Some((place, sequence)) = self.place(what) else { return false };
        let max = if place.pair.is_some() { PAIRS_MAX } else { GROUPS_MAX };
        let alike = |known: &Place| known.pair.is_some() == place.pair.is_some();
        let must_forget =
            !self.places.contains_key(&place) && self.places.keys().filter(|known| alike(known)).count() >= max;
        if must_forget {
            let others = self.places.iter().filter(|(known, _)| alike(known));
            let silent = others.min_by_key(|(_, group)| group.last_call).map(|(known, _)| *known);
            silent.and_then(|silent| self.places.remove(&silent));
        }
        let group = self.places.entry(place).or_default();
        if group.recent.len() >= RECENT_CALLS {
            group.recent.pop_front();
        }
        let (elements, data_type) = (what.elements, what.data_type);
        let (is_pending, was_reported) = (true, false);
        group.recent.push_back(Made {
            range,
            name,
            sequence,
            elements,
            data_type,
            begun: now,
            is_pending,
            was_reported,
        });
        group.last_call = now;
        must_forget
    }

    /// Returns where a call is counted, and its number.
    fn place(&mut self, what: &Communication) -> Option<(Place, u64)> {
        let (group, is_send) = (what.group, what.op == Op::Send);
        if !is_send && what.op != Op::Recv {
            return Some((Place { group, pair: None }, what.sequence?));
        }
        let numbered = what.peer.zip(what.sequence);
        if !is_send && numbered.is_none() && !self.receives_from_any {
            self.receives_from_any = true;
            self.places.retain(|place, _| place.pair.is_none_or(|pair| pair.is_send));
        }
        let (peer, sequence) = numbered.filter(|_| is_send || !self.receives_from_any)?;
        Some((Place { group, pair: Some(Pair { is_send, peer }) }, sequence))
    }

    /// Marks a call as not pending: it has ended, or its end is unknown.
    pub(super) fn over(&mut self, group: Option<NameId>, range: u64) {
        let Some(group) = group else { return };
        let places = self.places.range_mut(Place { group, pair: None }..);
        let places = places.take_while(|(place, _)| place.group == group);
        let mut calls = places.flat_map(|(_, group)| group.recent.iter_mut().rev());
        if let Some(made) = calls.find(|made| made.range == range) {
            made.is_pending = false;
        }
    }

    pub(super) fn positions(&self, now: u64, names: &NameTable) -> Vec<GroupPosition> {
        let newest = self.newest(names);
        let of_newest = self.places.iter().filter(|(place, _)| newest.contains(&place.group));
        let position = |(place, group): (&Place, &Group)| {
            let (name, members) = self.name(*place, names);
            let recent = group.recent.iter().map(|made| made.call(*place, now, names)).collect();
            GroupPosition { group: name, members, recent }
        };
        let mut positions: Vec<GroupPosition> = of_newest.map(position).collect();
        positions.sort_by(|a, b| a.group.cmp(&b.group));
        positions
    }

    /// Returns the name and the members of a group or pair.
    fn name(&self, place: Place, names: &NameTable) -> (String, Vec<u32>) {
        let (name, members) = split_group_name(names.get(place.group));
        let Some(Pair { is_send, peer }) = place.pair else { return (name.to_owned(), members) };
        let (from, to) = if is_send { (self.rank, peer) } else { (peer, self.rank) };
        (point_to_point_name(name, from, to), vec![from, to])
    }

    /// Returns the newest of each group that recoveries have recreated: calls that were pending in older ones were
    /// aborted.
    fn newest(&self, names: &NameTable) -> BTreeSet<NameId> {
        let of = |id: NameId| split_generation(split_group_name(names.get(id)).0);
        let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, generation) in self.places.keys().map(|place| of(place.group)) {
            let known = newest.entry(name).or_default();
            *known = generation.max(*known);
        }
        let ids = self.places.keys().map(|place| place.group);
        ids.filter(|id| newest.get(of(*id).0) == Some(&of(*id).1)).collect()
    }

    pub(super) fn pending(&mut self, now: u64, longer_than: Duration, names: &NameTable) -> Vec<PendingCall> {
        let longer_than = u64::try_from(longer_than.as_nanos()).unwrap_or(u64::MAX);
        let newest = self.newest(names);
        let mut found = Vec::new();
        for (place, group) in self.places.iter_mut().filter(|(place, _)| newest.contains(&place.group)) {
            let is_new = |made: &&mut Made| made.is_pending && !made.was_reported;
            for made in group.recent.iter_mut().filter(is_new) {
                if now.saturating_sub(made.begun) >= longer_than {
                    made.was_reported = true;
                    found.push((*place, made.sequence, made.begun));
                }
            }
        }
        let call = |(place, sequence, begun)| PendingCall { group: self.name(place, names).0, sequence, begun };
        found.into_iter().map(call).collect()
    }
}

impl Made {
    fn call(&self, place: Place, now: u64, names: &NameTable) -> Call {
        let (operation, elements, data_type) = match place.pair {
            // A receiver may have room for more than is sent.
            Some(_) => (SEND_AND_RECEIVE, 0, ""),
            None => (names.get(self.name), self.elements, self.data_type.name()),
        };
        Call {
            sequence: self.sequence,
            operation: operation.to_owned(),
            elements,
            data_type: data_type.to_owned(),
            begun: Duration::from_nanos(now.saturating_sub(self.begun)),
            is_pending: self.is_pending,
        }
    }
}

/// Splits off the generation for which a group was recreated: `dp_1#7` is group `dp_1` of generation 7. Before the
/// first recovery there is none, and 0 is returned.
fn split_generation(name: &str) -> (&str, u64) {
    name.rsplit_once('#').and_then(|(name, generation)| Some((name, generation.parse().ok()?))).unwrap_or((name, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(op: Op, peer: Option<u32>, sequence: Option<u64>) -> Communication {
        Communication { op, data_type: DataType::F32, group: NameId(1), elements: 4, bytes: 16, peer, sequence }
    }

    #[test]
    fn sends_and_receives_have_positions_for_each_pair() {
        let (mut groups, mut names) = (Groups { rank: 2, ..Groups::default() }, NameTable::default());
        names.push("pp|0,2");
        let name = names.push("send");
        groups.call(1, name, &exchange(Op::Send, Some(0), Some(7)), 10);
        groups.call(2, name, &exchange(Op::Recv, Some(0), Some(3)), 20);
        groups.over(Some(NameId(1)), 1);
        let positions = groups.positions(30, &names);
        let shown: Vec<_> = positions
            .iter()
            .map(|p| (p.group.as_str(), &p.members[..], p.recent[0].sequence, p.recent[0].is_pending))
            .collect();
        assert_eq!(shown, [("pp from 0 to 2", &[0, 2][..], 3, true), ("pp from 2 to 0", &[2, 0][..], 7, false)]);
        assert_eq!((&*positions[0].recent[0].operation, positions[0].recent[0].elements), (SEND_AND_RECEIVE, 0));
        let pending = groups.pending(100, Duration::from_nanos(80), &names);
        assert_eq!(pending, [PendingCall { group: "pp from 0 to 2".into(), sequence: 3, begun: 20 }]);
        // What was received from any source is missing from the receives from rank 0: none of them counts any more.
        groups.call(3, name, &exchange(Op::Recv, None, None), 40);
        groups.call(4, name, &exchange(Op::Recv, Some(0), Some(4)), 50);
        let left: Vec<String> = groups.positions(60, &names).into_iter().map(|p| p.group).collect();
        assert_eq!(left, ["pp from 2 to 0"]);
    }

    #[test]
    fn pairs_do_not_replace_groups() {
        let (mut groups, mut names) = (Groups::default(), NameTable::default());
        let group = names.push("default|0-999");
        let what = Communication { op: Op::AllReduce, group, ..exchange(Op::Send, None, Some(1)) };
        groups.call(0, group, &what, 0);
        let forgotten = (1..)
            .take(PAIRS_MAX + 2)
            .filter(|peer: &u32| groups.call(u64::from(*peer), group, &exchange(Op::Send, Some(*peer), Some(0)), 1));
        assert_eq!(forgotten.count(), 2);
        assert_eq!(groups.positions(5, &names).len(), PAIRS_MAX + 1);
    }

    #[test]
    fn older_versions_of_a_recreated_group_are_not_pending() {
        let (mut groups, mut names) = (Groups::default(), NameTable::default());
        let mut call = |groups: &mut Groups, range, group: &str, sequence| {
            let (group, operation) = (names.push(group), names.push("all_reduce"));
            let (op, data_type, sequence) = (Op::AllReduce, DataType::F32, Some(sequence));
            let what = Communication { op, data_type, group, elements: 1, bytes: 4, peer: None, sequence };
            groups.call(range, operation, &what, 0);
        };
        call(&mut groups, 1, "0|0-3", 400); // aborted: it never ends
        call(&mut groups, 2, "0#7|0,2-3", 12);
        call(&mut groups, 3, "dp|0-1", 9);
        let positions: Vec<_> = groups.positions(10, &names).into_iter().map(|p| (p.group, p.members)).collect();
        assert_eq!(positions, [("0#7".to_owned(), vec![0, 2, 3]), ("dp".to_owned(), vec![0, 1])]);
        let pending = groups.pending(1_000, Duration::ZERO, &names);
        assert_eq!(pending.iter().map(|call| call.sequence).collect::<Vec<_>>(), [12, 9]);
    }
}

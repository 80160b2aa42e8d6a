//! The last calls of a process in each of its groups.
//!
//! Comparing the ranks' positions is left to detectors, which have the positions of all ranks.

use super::{GROUPS_MAX, PendingCall};
use crate::trace::recorder::{Communication, DataType, NameId, Op};
use crate::trace::{Call, GroupPosition, NameTable, RECENT_CALLS};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use taskd_kernel::trace::split_group_name;

/// Groups, by the numbers of their names.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: BTreeMap<NameId, Group>,
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
    /// Adds a call, unless it is a point-to-point operation, whose sequence numbers are counted separately. Returns
    /// true if another group was forgotten for it.
    pub(super) fn call(&mut self, range: u64, name: NameId, what: &Communication, now: u64) -> bool {
        let Some(sequence) = what.sequence.filter(|_| !matches!(what.op, Op::Send | Op::Recv)) else { return false };
        let must_forget = self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&what.group);
        if must_forget
            && let Some(silent) = self.groups.iter().min_by_key(|(_, group)| group.last_call).map(|(id, _)| *id)
        {
            self.groups.remove(&silent);
        }
        let group = self.groups.entry(what.group).or_default();
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

    /// Marks a call as not pending: it has ended, or its end is unknown.
    pub(super) fn over(&mut self, group: Option<NameId>, range: u64) {
        let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) else { return };
        if let Some(made) = group.recent.iter_mut().find(|made| made.range == range) {
            made.is_pending = false;
        }
    }

    pub(super) fn positions(&self, now: u64, names: &NameTable) -> Vec<GroupPosition> {
        let position = |(id, group): (&NameId, &Group)| {
            let (name, members) = split_group_name(names.get(*id));
            let recent = group.recent.iter().map(|made| made.call(now, names)).collect();
            GroupPosition { group: name.to_owned(), members, recent }
        };
        let newest = self.newest(names);
        let mut positions: Vec<GroupPosition> =
            self.groups.iter().filter(|(id, _)| newest.contains(id)).map(position).collect();
        positions.sort_by(|a, b| a.group.cmp(&b.group));
        positions
    }

    /// Returns the newest of each group that recoveries have recreated: calls that were pending in older ones were
    /// aborted.
    fn newest(&self, names: &NameTable) -> BTreeSet<NameId> {
        let of = |id: &NameId| split_generation(split_group_name(names.get(*id)).0);
        let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, generation) in self.groups.keys().map(of) {
            let known = newest.entry(name).or_default();
            *known = generation.max(*known);
        }
        let is_newest = |id: &&NameId| newest.get(of(id).0) == Some(&of(id).1);
        self.groups.keys().filter(is_newest).copied().collect()
    }

    pub(super) fn pending(&mut self, now: u64, longer_than: Duration, names: &NameTable) -> Vec<PendingCall> {
        let longer_than = u64::try_from(longer_than.as_nanos()).unwrap_or(u64::MAX);
        let mut found = Vec::new();
        let newest = self.newest(names);
        for (id, group) in self.groups.iter_mut().filter(|(id, _)| newest.contains(id)) {
            let is_new = |made: &&mut Made| made.is_pending && !made.was_reported;
            for made in group.recent.iter_mut().filter(is_new) {
                if now.saturating_sub(made.begun) >= longer_than {
                    made.was_reported = true;
                    let group = split_group_name(names.get(*id)).0.to_owned();
                    found.push(PendingCall { group, sequence: made.sequence, begun: made.begun });
                }
            }
        }
        found
    }
}

impl Made {
    fn call(&self, now: u64, names: &NameTable) -> Call {
        Call {
            sequence: self.sequence,
            operation: names.get(self.name).to_owned(),
            elements: self.elements,
            data_type: self.data_type.name().to_owned(),
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

//! Transfer and wait per rank and step, and the operations with the largest total time.

use crate::document::{CommunicationFigures, OperationFigures, Table};
use crate::index::Index;
use crate::matches::Matches;
use crate::model::NameId;
use crate::tables::{empty, or_none};
use crate::waits::Waits;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of operations of one rank in the document.
pub(crate) const OPERATIONS_MAX: usize = 16;

/// Sums of one operation, in nanoseconds and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: u64,
    total_ns: u64,
    wait_ns: u64,
    bytes: u64,
}

/// Returns the figures of all communication without the links.
pub(crate) fn figures(index: &Index<'_>, matches: &Matches<'_>, waits: &Waits) -> CommunicationFigures {
    let (mut transfer_us, mut wait_us) = (table(index), table(index));
    let mut figures = CommunicationFigures::default();
    let mut columns = BTreeSet::new();
    for (row, (calls, waits)) in matches.calls.iter().zip(waits).enumerate() {
        let mut operations: BTreeMap<(Option<u32>, NameId), Sums> = BTreeMap::new();
        let mut steps: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for (call, wait) in calls.iter().zip(waits) {
            let (length, wait) = (call.event.duration_ns, wait.unwrap_or_default());
            let sums = operations.entry((call.details.and_then(|details| details.group), call.event.name)).or_default();
            sums.count += 1;
            sums.total_ns = sums.total_ns.saturating_add(length);
            sums.wait_ns = sums.wait_ns.saturating_add(wait);
            sums.bytes = sums.bytes.saturating_add(call.details.map_or(0, |details| details.bytes));
            if let Some(column) = call.column {
                let transit = call.details.and_then(|details| details.transit_ns);
                let step = steps.entry(column).or_default();
                step.0 = step.0.saturating_add(transit.unwrap_or(length.saturating_sub(wait)));
                step.1 = step.1.saturating_add(wait);
                columns.insert(column);
            }
        }
        if calls.is_empty() {
            continue; // Unknown, not 0: the rank recorded no communication.
        }
        let knows_waits = waits.iter().any(Option::is_some);
        for window in &index.windows[row] {
            let (transfer, wait) = steps.get(&window.column).copied().unwrap_or_default();
            transfer_us[row][window.column] = Some(transfer / 1000);
            wait_us[row][window.column] = knows_waits.then_some(wait / 1000);
        }
        add_operations(index, row, operations, &mut figures);
    }
    figures.transfer_us = or_none(transfer_us);
    figures.wait_us = or_none(wait_us);
    figures.steps = columns.len() as u64;
    figures.operations.sort_by_key(|operation| std::cmp::Reverse(operation.total_us));
    figures
}

fn table(index: &Index<'_>) -> Table {
    empty(index.ranks.len(), index.steps.len())
}

fn add_operations(
    index: &Index<'_>,
    row: usize,
    operations: BTreeMap<(Option<u32>, NameId), Sums>,
    figures: &mut CommunicationFigures,
) {
    let rank = index.rows[row];
    let mut sorted: Vec<((Option<u32>, NameId), Sums)> = operations.into_iter().collect();
    sorted.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.total_ns));
    figures.operations_left_out += sorted.len().saturating_sub(OPERATIONS_MAX) as u64;
    sorted.truncate(OPERATIONS_MAX);
    figures.operations.extend(sorted.into_iter().map(|((group, name), sums)| {
        let group = group.and_then(|group| rank.groups.get(group as usize));
        OperationFigures {
            rank: index.ranks[row],
            name: rank.names.get(name).to_owned(),
            group: group.map_or_else(String::new, |group| group.name.clone()),
            count: sums.count,
            total_us: sums.total_ns / 1000,
            wait_us: sums.wait_ns / 1000,
            bytes: sums.bytes,
        }
    }));
}

#[cfg(test)]
mod tests {
    use crate::model::{Communication, Event, Group, Kind, RankTrace, StepSpan, Trace};
    use crate::{analyze, document::CommunicationFigures};

    /// Ranks in one group, with these calls of `all_reduce` (sequence, start and length in us), in steps of 100 us.
    fn figures(ranks: &[&[(u64, i64, u64)]]) -> CommunicationFigures {
        let mut trace = Trace::default();
        for (number, calls) in (0u32..).zip(ranks) {
            let mut rank = RankTrace::default();
            rank.groups.push(Group { name: "dp".to_owned(), ..Group::default() });
            rank.steps = (0..2)
                .map(|at| StepSpan { number: at, start_ns: 100_000 * at.cast_signed(), duration_ns: 100_000 })
                .collect();
            let name = rank.names.intern("all_reduce");
            for (at, &(sequence, start_us, us)) in (0..).zip(*calls) {
                let (group, sequence) = (Some(0), Some(sequence));
                let details = Communication { operation: name, group, sequence, bytes: 10, ..Communication::default() };
                rank.communications.push(details);
                rank.events.push(Event {
                    start_ns: start_us * 1000,
                    duration_ns: us * 1000,
                    kind: Kind::Collective,
                    lane: 1,
                    name,
                    communication: Some(at),
                });
            }
            trace.ranks.insert(number, rank);
        }
        analyze(&trace, &Default::default()).communication
    }

    #[test]
    fn early_member_waits_for_the_latest_start() {
        let figures = figures(&[&[(0, 10, 50), (1, 150, 20)], &[(0, 40, 20), (1, 145, 25)], &[]]);
        assert_eq!(figures.wait_us, [[Some(30), Some(0)].to_vec(), [Some(0), Some(5)].to_vec(), [None, None].to_vec()]);
        assert_eq!(figures.transfer_us[0], [Some(20), Some(20)]);
        assert_eq!(figures.transfer_us[1], [Some(20), Some(20)]);
        assert_eq!(figures.steps, 2);
        let first = &figures.operations[0];
        assert_eq!((first.rank, first.name.as_str(), first.group.as_str()), (0, "all_reduce", "dp"));
        assert_eq!((first.count, first.total_us, first.wait_us, first.bytes), (2, 70, 30, 20));
    }

    #[test]
    fn call_without_a_match_counts_as_transfer() {
        let figures = figures(&[&[(0, 10, 50)], &[(7, 20, 30)]]);
        assert_eq!(figures.transfer_us, [[Some(50), Some(0)], [Some(30), Some(0)]]);
        assert!(figures.wait_us.is_empty());
        assert_eq!(figures.steps, 1);
    }
}

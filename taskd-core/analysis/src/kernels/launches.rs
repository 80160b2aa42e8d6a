//! Collects launches, queues, copies and annotations of all ranks for the document, within its bounds.

use super::{KernelCollector, NamedKernels};
use crate::document::{CopyFigures, LAUNCH_ROWS_MAX, LaunchFigures, QueueFigures};
use std::cmp::Reverse;

/// Rows of each table that each rank keeps, however many ranks there are.
const ROWS_MIN: usize = 10;

impl KernelCollector {
    /// Adds the launches of one rank.
    pub fn add_launches(&mut self, launches: LaunchFigures) {
        self.rules.host.launches.push(launches);
    }

    /// Adds the queues of one rank. Those with the most launches are kept.
    pub fn add_queues(&mut self, mut queues: Vec<QueueFigures>) {
        queues.sort_by_key(|queue| Reverse(queue.lengths.count));
        self.rules.host.queues_left_out += cut(&mut queues, self.ranks);
        queues.sort_by_key(|queue| queue.stream);
        self.rules.host.queues.append(&mut queues);
    }

    /// Adds the copies and fills of one rank. The kinds with the most bytes are kept.
    pub fn add_copies(&mut self, mut copies: Vec<CopyFigures>) {
        copies.sort_by_key(|copy| Reverse(copy.bytes));
        self.rules.host.copies_left_out += cut(&mut copies, self.ranks);
        copies.sort_by(|one, other| one.kind.cmp(&other.kind));
        self.rules.host.copies.append(&mut copies);
    }

    /// Adds the annotations of one rank, with `device` or `host` as their class. Those with the largest sums are kept.
    pub fn add_annotations(&mut self, rank: u32, mut annotations: Vec<NamedKernels<'_>>) {
        annotations.sort_by(|one, other| (other.sum_ns, one.name).cmp(&(one.sum_ns, other.name)));
        self.rules.host.annotations_left_out += cut(&mut annotations, self.ranks);
        annotations.sort_by_key(|row| row.class);
        for annotation in annotations {
            let row = self.row(rank, annotation);
            self.rules.host.annotations.push(row);
        }
    }
}

/// Keeps the first rows of a rank, and returns the number of the others.
fn cut<T>(rows: &mut Vec<T>, ranks: usize) -> u64 {
    let kept = (LAUNCH_ROWS_MAX / ranks.max(1)).max(ROWS_MIN);
    let left_out = rows.len().saturating_sub(kept) as u64;
    rows.truncate(kept);
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Spread;
    use crate::kernels::Durations;

    #[test]
    fn rows_beyond_the_share_of_a_rank_are_counted() {
        let mut collector = KernelCollector::new("exact", 1_000_000);
        let queue = |stream: i64| QueueFigures {
            stream,
            lengths: Spread { count: stream.unsigned_abs(), ..Spread::default() },
            ..QueueFigures::default()
        };
        collector.add_queues((0..12).map(queue).collect());
        let copy = |kind: u64| CopyFigures { kind: format!("{kind:02}"), bytes: 100 - kind, ..CopyFigures::default() };
        collector.add_copies((0..13).map(copy).collect());
        let names: Vec<String> = (0..14).map(|number| format!("range {number:02}")).collect();
        let annotations = names.iter().zip(1..).map(|(name, length)| {
            let mut durations = Durations::default();
            durations.add(length * 1000, 1);
            NamedKernels::of(if length % 2 == 0 { "device" } else { "host" }, name, &durations)
        });
        collector.add_annotations(3, annotations.collect());
        let rules = collector.finish();
        let host = &rules.host;
        assert_eq!((host.queues_left_out, host.copies_left_out, host.annotations_left_out), (2, 3, 4));
        let streams: Vec<i64> = host.queues.iter().map(|queue| queue.stream).collect();
        assert_eq!(streams, (2..12).collect::<Vec<i64>>(), "those of the fewest launches are left out");
        assert_eq!(host.copies.iter().map(|copy| copy.kind.as_str()).max(), Some("09"));
        let first = &host.annotations[0];
        assert_eq!((first.rank, first.class.as_str(), first.sum_us), (3, "device", 14.0));
        assert_eq!(rules.names[first.name as usize], "range 13");
        assert_eq!(rules.names.len(), 10, "only names of kept rows are listed");
    }
}

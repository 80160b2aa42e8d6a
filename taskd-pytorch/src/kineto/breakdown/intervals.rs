//! Union of intervals that arrive in almost any order. Memory depends on the number of gaps, not of intervals.

use super::Label;

/// Intervals that are collected before they are merged.
const PENDING: usize = 4096;

/// A set of points in time, as disjoint intervals `[start, end)` in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals {
    merged: Vec<(i64, i64)>,
    pending: Vec<(i64, i64)>,
}

impl Intervals {
    /// Adds an interval.
    #[inline]
    pub(super) fn insert(&mut self, start: i64, end: i64) {
        if end <= start {
            return;
        }
        if let Some(last) = self.pending.last_mut()
            && last.0 <= start
            && start <= last.1
        {
            last.1 = last.1.max(end);
            return;
        }
        self.pending.push((start, end));
        if self.pending.len() >= PENDING.max(self.merged.len()) {
            self.compact();
        }
    }

    fn compact(&mut self) {
        self.pending.sort_unstable();
        let old = std::mem::take(&mut self.merged);
        let new = std::mem::take(&mut self.pending);
        self.merged = union(&old, &new);
    }

    /// Returns the disjoint intervals in the order of time.
    pub(super) fn finish(mut self) -> Vec<(i64, i64)> {
        self.compact();
        self.merged
    }
}

/// Returns the union of intervals in any order. Those that do not end after their start are left out.
pub(super) fn union_of(intervals: impl Iterator<Item = (i64, i64)>) -> Vec<(i64, i64)> {
    let mut union = Intervals::default();
    intervals.for_each(|(start, end)| union.insert(start, end));
    union.finish()
}

/// Returns the union of two lists, each in the order of the starts.
pub(super) fn union(left: &[(i64, i64)], right: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let mut out: Vec<(i64, i64)> = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.iter().copied().peekable(), right.iter().copied().peekable());
    loop {
        let next = match (left.peek(), right.peek()) {
            (Some(one), Some(other)) if other < one => right.next(),
            (Some(_), _) => left.next(),
            (None, _) => right.next(),
        };
        let Some((start, end)) = next else { break };
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out.shrink_to_fit();
    out
}

/// Returns the length of disjoint intervals within `[from, to)`.
pub(super) fn length_within(intervals: &[(i64, i64)], from: i64, to: i64) -> i64 {
    let first = intervals.partition_point(|(_, end)| *end <= from);
    let inside = intervals.get(first..).unwrap_or_default().iter().take_while(|(start, _)| *start < to);
    inside.map(|(start, end)| end.min(&to) - start.max(&from)).sum()
}

/// Returns the length of disjoint intervals.
pub(super) fn length(intervals: &[(i64, i64)]) -> i64 {
    intervals.iter().map(|(start, end)| end - start).sum()
}

/// Returns the time in each status: the sum of the numbers of the labels with a running interval. The intervals of one
/// label are disjoint; an interval that ends before it starts counts negatively, as HTA counts it. Times of zero are
/// omitted.
pub(super) fn running(types: &[(Label, &[(i64, i64)])]) -> Vec<(i64, i64)> {
    let mut changes: Vec<(i64, i64)> = Vec::new();
    for (label, intervals) in types {
        let value = label.status();
        changes.extend(intervals.iter().flat_map(|(start, end)| [(*start, value), (*end, -value)]));
    }
    changes.sort_unstable_by_key(|change| change.0);
    let mut times: Vec<(i64, i64)> = Vec::new();
    let mut status = 0;
    for pair in changes.windows(2) {
        let [now, next] = pair else { continue };
        status += now.1;
        let time = next.0 - now.0;
        match times.iter_mut().find(|row| row.0 == status) {
            Some(row) => row.1 += time,
            None => times.push((status, time)),
        }
    }
    times.retain(|row| row.1 != 0);
    times.sort_unstable();
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn union_has_the_points_of_all_intervals(
            added in prop::collection::vec((0..200_i64, 0..20_i64), 0..60),
            window in (0..200_i64, 0..60_i64),
        ) {
            let mut set = Intervals::default();
            let mut points = [false; 256];
            for (start, length) in &added {
                set.insert(*start, start + length);
                for point in points.iter_mut().skip(usize::try_from(*start).unwrap()).take(usize::try_from(*length).unwrap()) {
                    *point = true;
                }
            }
            let merged = set.finish();
            prop_assert!(merged.windows(2).all(|pair| pair[0].1 < pair[1].0));
            prop_assert_eq!(length(&merged), i64::try_from(points.iter().filter(|point| **point).count()).unwrap());
            let (from, to) = (window.0, window.0 + window.1);
            let inside = (from..to.min(256)).filter(|at| points[usize::try_from(*at).unwrap()]).count();
            prop_assert_eq!(length_within(&merged, from, to), i64::try_from(inside).unwrap());
        }
    }

    #[test]
    fn memory_depends_on_gaps_not_on_intervals() {
        let mut set = Intervals::default();
        for number in 0..100_000_i64 {
            set.insert(number % 1_000 * 10, number % 1_000 * 10 + 9);
        }
        assert!(set.merged.capacity() + set.pending.capacity() < 4 * PENDING);
        assert_eq!(length(&set.finish()), 9_000);
    }
}

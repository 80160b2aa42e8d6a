//! Sets of time: sorted, disjoint, half-open intervals in integer nanoseconds.

/// A half-open interval of time, `start <= t < end`, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// Start in nanoseconds.
    pub start: i64,
    /// End in nanoseconds, which does not belong to the interval.
    pub end: i64,
}

/// A set of time: the intervals are sorted, not empty, and do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(Vec<Interval>);

impl Intervals {
    /// Returns the union of intervals in any order. Intervals that do not end after their start are empty.
    #[must_use]
    pub fn union_of(intervals: impl IntoIterator<Item = Interval>) -> Intervals {
        let mut sorted: Vec<Interval> = intervals.into_iter().filter(|span| span.start < span.end).collect();
        if !sorted.is_sorted_by_key(|span| span.start) {
            sorted.sort_unstable();
        }
        let mut union = Intervals::default();
        for span in sorted {
            union.append(span);
        }
        union.0.shrink_to_fit();
        union
    }

    /// Returns the time that is in this set or in the other one.
    #[must_use]
    pub fn union(&self, other: &Intervals) -> Intervals {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut union = Intervals(Vec::with_capacity(self.0.len() + other.0.len()));
        loop {
            let next = match (left.peek(), right.peek()) {
                (Some(a), Some(b)) if a.start <= b.start => left.next(),
                (Some(_), None) => left.next(),
                (_, Some(_)) => right.next(),
                (None, None) => return union,
            };
            if let Some(span) = next {
                union.append(*span);
            }
        }
    }

    /// Returns the time that is in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Intervals) -> Intervals {
        let (mut at, mut other_at) = (0, 0);
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (self.0.get(at), other.0.get(other_at)) {
            let (start, end) = (a.start.max(b.start), a.end.min(b.end));
            if start < end {
                both.push(Interval { start, end });
            }
            if a.end < b.end {
                at += 1;
            } else {
                other_at += 1;
            }
        }
        Intervals(both)
    }

    /// Returns the time that is in this set and not in the other one.
    #[must_use]
    pub fn minus(&self, other: &Intervals) -> Intervals {
        let mut rest = Vec::with_capacity(self.0.len());
        let mut holes = other.0.iter().copied().peekable();
        for span in &self.0 {
            let mut start = span.start;
            while let Some(hole) = holes.peek().copied().filter(|hole| hole.start < span.end) {
                if hole.start > start {
                    rest.push(Interval { start, end: hole.start });
                }
                start = start.max(hole.end);
                if hole.end > span.end {
                    break; // It may also cover the next interval.
                }
                holes.next();
            }
            if start < span.end {
                rest.push(Interval { start, end: span.end });
            }
        }
        Intervals(rest)
    }

    /// Returns the length of the set in nanoseconds, at most `u64::MAX`.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.0.iter().fold(0, |sum, span| sum.saturating_add(span.end.abs_diff(span.start)))
    }

    /// Returns the intervals in the order of time.
    #[must_use]
    pub fn as_slice(&self) -> &[Interval] {
        &self.0
    }

    /// Adds an interval that does not start before the last one.
    fn append(&mut self, span: Interval) {
        match self.0.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => self.0.push(span),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Interval, Intervals};
    use proptest::prelude::*;

    fn set(spans: &[(i64, i64)]) -> Intervals {
        Intervals::union_of(spans.iter().map(|&(start, end)| Interval { start, end }))
    }

    /// The naive model: one flag for each nanosecond from 0 to 63.
    fn flags(set: &Intervals) -> u64 {
        let inside = |at: i64| set.as_slice().iter().any(|span| span.start <= at && at < span.end);
        (0..64).filter(|at| inside(*at)).fold(0, |flags, at| flags | 1 << at)
    }

    fn is_normal(set: &Intervals) -> bool {
        set.as_slice().iter().all(|span| span.start < span.end)
            && set.as_slice().windows(2).all(|pair| pair[0].end < pair[1].start)
    }

    #[test]
    fn union_of_touching_spans_is_one_interval() {
        assert_eq!(set(&[(5, 9), (0, 3), (3, 5), (7, 8)]).as_slice(), [Interval { start: 0, end: 9 }]);
        assert_eq!(set(&[(4, 4), (9, 2)]).as_slice(), []);
    }

    #[test]
    fn minus_of_a_hole_over_two_spans_cuts_both() {
        let rest = set(&[(0, 10), (20, 30)]).minus(&set(&[(2, 4), (8, 22)]));
        assert_eq!(rest, set(&[(0, 2), (4, 8), (22, 30)]));
    }

    #[test]
    fn total_of_extreme_times_saturates() {
        assert_eq!(set(&[(i64::MIN, i64::MAX)]).total_ns(), u64::MAX);
        assert_eq!(set(&[(i64::MIN, -1), (0, i64::MAX)]).total_ns(), u64::MAX - 1);
    }

    fn spans() -> impl Strategy<Value = Vec<(i64, i64)>> {
        prop::collection::vec((0i64..64, 0i64..16), 0..12)
            .prop_map(|spans| spans.into_iter().map(|(start, length)| (start, (start + length).min(64))).collect())
    }

    proptest! {
        #[test]
        fn sets_equal_the_naive_model(a in spans(), b in spans()) {
            let naive = |spans: &[(i64, i64)]| {
                spans.iter().fold(0u64, |flags, span| (span.0..span.1).fold(flags, |flags, at| flags | 1 << at))
            };
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(flags(&x), naive(&a));
            prop_assert_eq!(x.total_ns(), u64::from(naive(&a).count_ones()));
            for (result, expected) in [
                (x.union(&y), naive(&a) | naive(&b)),
                (x.intersection(&y), naive(&a) & naive(&b)),
                (x.minus(&y), naive(&a) & !naive(&b)),
            ] {
                prop_assert_eq!(flags(&result), expected);
                prop_assert!(is_normal(&result), "{:?}", result);
            }
        }
    }
}

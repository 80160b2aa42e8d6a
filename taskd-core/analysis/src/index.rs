//! Ranks and steps of a trace as rows and columns, and the events of each step.
//!
//! An event belongs to the step in which it starts, from the step's start to before its end. Its whole length counts
//! there in sums of lengths. Sets of time (overlap, idle) are cut at the boundary instead: each nanosecond counts in the step that holds
//! it, so that no figure of a step is longer than the step.

use crate::model::{Communication, Event, RankTrace, Trace};

/// Largest number of cells (ranks times steps) of a table. If a trace has more, the last steps are analyzed.
pub(crate) const CELLS_MAX: usize = 1_000_000;
/// Number of ranks that a sentence lists.
const RANKS_LISTED_MAX: usize = 8;

/// A step of one rank, in nanoseconds by the rank's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Column of the step.
    pub(crate) column: usize,
    pub(crate) start: i64,
    pub(crate) end: i64,
}

/// Ranks and steps of a trace.
#[derive(Debug)]
pub(crate) struct Index<'a> {
    /// Global ranks, sorted: the rows.
    pub(crate) ranks: Vec<u32>,
    /// Events of each row.
    pub(crate) rows: Vec<&'a RankTrace>,
    /// Numbers of the steps, sorted: the columns.
    pub(crate) steps: Vec<u64>,
    /// Steps of each row in the order of their starts.
    pub(crate) windows: Vec<Vec<Window>>,
    /// True if no rank has steps: the one column is the whole trace.
    pub(crate) is_pseudo: bool,
    /// What the trace lacks, as sentences.
    pub(crate) missing: Vec<String>,
}

impl<'a> Index<'a> {
    /// Reads the ranks and steps of a trace. With more than [`CELLS_MAX`] cells the first steps are left out.
    pub(crate) fn new(trace: &'a Trace) -> Index<'a> {
        let ranks: Vec<u32> = trace.ranks.keys().copied().collect();
        let rows: Vec<&RankTrace> = trace.ranks.values().collect();
        let mut index =
            Index { ranks, rows, steps: Vec::new(), windows: Vec::new(), is_pseudo: false, missing: Vec::new() };
        index.is_pseudo = index.rows.iter().all(|row| row.steps.is_empty());
        if index.is_pseudo {
            index.whole_trace();
        } else {
            index.read_steps();
        }
        index
    }

    fn whole_trace(&mut self) {
        let has_events = self.rows.iter().any(|row| !row.events.is_empty());
        if has_events {
            self.steps = vec![0];
            self.missing.push(
                "The trace has no steps: the whole trace is shown as step 0. Mark steps, for example with the profiler's \
                 step()."
                    .to_owned(),
            );
        }
        let whole = |row: &&RankTrace| {
            let start = row.events.first()?.start_ns;
            // A step holds the starts of its events, also that of an instant at its end.
            let end = row.events.iter().map(|event| event.end_ns().max(event.start_ns.saturating_add(1))).max()?;
            Some(Window { column: 0, start, end })
        };
        self.windows = self.rows.iter().map(|row| whole(row).into_iter().collect()).collect();
    }

    fn read_steps(&mut self) {
        let mut steps: Vec<u64> = self.rows.iter().flat_map(|row| row.steps.iter().map(|step| step.number)).collect();
        steps.sort_unstable();
        steps.dedup();
        let kept = (CELLS_MAX / self.rows.len().max(1)).max(1);
        if steps.len() > kept {
            let all = steps.len();
            steps.drain(..all - kept);
            self.missing.push(format!(
                "The report has the last {kept} of {all} steps: a table holds at most {CELLS_MAX} ranks times steps."
            ));
        }
        self.steps = steps;
        let mut repeated = Vec::new();
        let windows = self.rows.iter().zip(&self.ranks).map(|(row, rank)| {
            let mut windows: Vec<Window> = Vec::with_capacity(row.steps.len());
            for step in &row.steps {
                let Ok(column) = self.steps.binary_search(&step.number) else { continue };
                let end = step.start_ns.saturating_add_unsigned(step.duration_ns);
                windows.push(Window { column, start: step.start_ns, end });
            }
            windows.sort_by_key(|window| (window.column, window.start));
            let all = windows.len();
            // Of a repeated number, as after a restart, the later step counts.
            windows.reverse();
            windows.dedup_by_key(|window| window.column);
            windows.sort_by_key(|window| (window.start, window.end));
            // A step that overlaps its successor ends where that begins.
            for at in 1..windows.len() {
                windows[at - 1].end = windows[at - 1].end.min(windows[at].start);
            }
            if windows.len() < all {
                repeated.push(*rank);
            }
            windows
        });
        self.windows = windows.collect();
        if !repeated.is_empty() {
            let ranks = list(&repeated);
            self.missing.push(format!("{ranks} recorded a step twice, as after a restart: the later one counts."));
        }
        let without: Vec<u32> = self.ranks_where(|row| row.steps.is_empty());
        if !without.is_empty() {
            self.missing.push(format!("{} recorded no steps: their figures per step are empty.", list(&without)));
        }
    }

    /// Returns the ranks for which the predicate is true.
    pub(crate) fn ranks_where(&self, is: impl Fn(&RankTrace) -> bool) -> Vec<u32> {
        self.rows.iter().zip(&self.ranks).filter(|(row, _)| is(row)).map(|(_, rank)| *rank).collect()
    }

    /// Returns the row of a rank.
    pub(crate) fn row_of(&self, rank: u32) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    /// Returns the column of the step to which an event of this start belongs.
    pub(crate) fn column_of(&self, row: usize, start: i64) -> Option<usize> {
        let windows = self.windows.get(row)?;
        let after = windows.partition_point(|window| window.start <= start);
        windows[..after].last().filter(|window| start < window.end).map(|window| window.column)
    }

    /// Returns the details of a communication event.
    pub(crate) fn details(&self, row: usize, event: &Event) -> Option<&'a Communication> {
        self.rows[row].communications.get(event.communication? as usize)
    }
}

/// Lists ranks in words: `Rank 3`, `Ranks 3, 5 and 7`, or the first ranks and the number of the others.
pub(crate) fn list(ranks: &[u32]) -> String {
    let words: Vec<String> = ranks.iter().take(RANKS_LISTED_MAX).map(u32::to_string).collect();
    match words.as_slice() {
        [] => "No rank".to_owned(),
        [one] => format!("Rank {one}"),
        _ if ranks.len() > words.len() => {
            format!("Ranks {} and {} others", words.join(", "), ranks.len() - words.len())
        }
        [first @ .., last] => format!("Ranks {} and {last}", first.join(", ")),
    }
}

/// Returns a moment in microseconds, rounded down.
pub(crate) const fn moment_us(ns: i64) -> i64 {
    ns.div_euclid(1000)
}

#[cfg(test)]
mod tests {
    use super::{Index, Window, list};
    use crate::model::{Event, Kind, NameId, RankTrace, StepSpan, Trace};

    fn event(start_ns: i64, duration_ns: u64, kind: Kind) -> Event {
        Event { start_ns, duration_ns, kind, lane: 0, name: NameId(0), communication: None }
    }

    fn trace(steps: &[(u64, i64, u64)]) -> Trace {
        let steps =
            steps.iter().map(|&(number, start_ns, duration_ns)| StepSpan { number, start_ns, duration_ns }).collect();
        let rank = RankTrace { steps, events: vec![event(3, 50, Kind::Compute)], ..RankTrace::default() };
        Trace { ranks: [(4, rank)].into(), ..Trace::default() }
    }

    #[test]
    fn event_on_a_boundary_belongs_to_the_later_step() {
        let trace = trace(&[(7, 0, 10), (8, 10, 10), (9, 25, 5)]);
        let index = Index::new(&trace);
        assert_eq!(index.steps, [7, 8, 9]);
        let columns: Vec<_> = [-1, 0, 9, 10, 19, 20, 24, 25, 29, 30].map(|at| index.column_of(0, at)).into();
        let expected = [None, Some(0), Some(0), Some(1), Some(1), None, None, Some(2), Some(2), None];
        assert_eq!(columns, expected);
    }

    #[test]
    fn trace_without_steps_has_one_step_over_all() {
        let trace = trace(&[]);
        let index = Index::new(&trace);
        assert!(index.is_pseudo);
        assert_eq!(index.windows, [[Window { column: 0, start: 3, end: 53 }]]);
        assert!(index.missing[0].contains("no steps"), "{:?}", index.missing);
    }

    #[test]
    fn repeated_step_counts_the_later_one() {
        let trace = trace(&[(1, 0, 10), (2, 10, 10), (2, 40, 10)]);
        let index = Index::new(&trace);
        assert_eq!(index.windows[0][1], Window { column: 1, start: 40, end: 50 });
        assert_eq!(index.missing.len(), 1);
    }

    #[test]
    fn ranks_in_words_are_bounded() {
        assert_eq!(list(&[3]), "Rank 3");
        assert_eq!(list(&[3, 5, 7]), "Ranks 3, 5 and 7");
        let many: Vec<u32> = (0..100).collect();
        assert_eq!(list(&many), "Ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 others");
    }
}

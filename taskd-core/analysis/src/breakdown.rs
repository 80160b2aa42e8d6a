//! Time of each step on each rank, and its parts.
//!
//! `interval` is from the step's start to the start of the first forward pass, `tail` from the end of the last backward
//! pass to the step's end, and `forward_backward` is between the two (MindSpore Insight's step trace). The three add up
//! to the step. Without a backward pass, as in inference, the forward passes end the middle part.

use crate::activity::Activity;
use crate::document::{Breakdown, Table};
use crate::index::{Index, Window, moment_us};
use crate::intervals::{Interval, Intervals};
use crate::model::{Event, Kind};
use crate::tables::{empty, or_none};

/// Collects the breakdown row by row.
#[derive(Debug)]
pub(crate) struct Collector {
    figures: Breakdown,
    /// Kinds that a row has in some step: a part of an observed kind is 0 in a step without it, and not unknown.
    observed: Vec<[bool; 2]>,
}

impl Collector {
    pub(crate) fn new(index: &Index<'_>) -> Collector {
        let table = || empty(index.ranks.len(), index.steps.len());
        let has = |kind| move |event: &Event| event.kind == kind;
        let observed = index.rows.iter().map(|row| {
            [Kind::DataLoader, Kind::SaveCheckpoint].map(|kind| row.events.iter().any(|event| has(kind)(event)))
        });
        Collector {
            figures: Breakdown {
                start_us: table(),
                total_us: table(),
                interval_us: table(),
                forward_backward_us: table(),
                tail_us: table(),
                data_loader_us: table(),
                save_checkpoint_us: table(),
                idle_us: table(),
            },
            observed: observed.collect(),
        }
    }

    /// Adds one step of a row. `offset` is the offset of the rank's clock; `knows_compute`: the trace of the rank has
    /// computation, so that idle time is known.
    pub(crate) fn add(
        &mut self,
        row: usize,
        window: Window,
        (activity, events): (&Activity, &[Event]),
        offset: i64,
        knows_compute: bool,
    ) {
        let figures = &mut self.figures;
        let set = |table: &mut Table, us: u64| table[row][window.column] = Some(us);
        let at = |ns: i64| moment_us(ns.saturating_sub(offset));
        let between = |from: i64, to: i64| at(from).abs_diff(at(to.max(from)));
        figures.start_us[row][window.column] = u64::try_from(at(window.start)).ok();
        set(&mut figures.total_us, between(window.start, window.end));
        if let Some((forward, backward)) = passes(events, window) {
            set(&mut figures.interval_us, between(window.start, forward));
            set(&mut figures.forward_backward_us, between(forward, backward));
            set(&mut figures.tail_us, between(backward, window.end));
        }
        let [loads, saves] = self.observed[row];
        if loads {
            set(&mut figures.data_loader_us, length_of(events, Kind::DataLoader) / 1000);
        }
        if saves {
            set(&mut figures.save_checkpoint_us, length_of(events, Kind::SaveCheckpoint) / 1000);
        }
        if knows_compute {
            let busy = activity.compute.union(&activity.receive).union(&activity.other);
            let step = window.end.abs_diff(window.start.min(window.end));
            set(&mut figures.idle_us, step.saturating_sub(busy.total_ns()) / 1000);
        }
    }

    /// Returns the tables; a part that no rank has is an empty table.
    pub(crate) fn finish(self) -> Breakdown {
        let figures = self.figures;
        Breakdown {
            start_us: or_none(figures.start_us),
            total_us: or_none(figures.total_us),
            interval_us: or_none(figures.interval_us),
            forward_backward_us: or_none(figures.forward_backward_us),
            tail_us: or_none(figures.tail_us),
            data_loader_us: or_none(figures.data_loader_us),
            save_checkpoint_us: or_none(figures.save_checkpoint_us),
            idle_us: or_none(figures.idle_us),
        }
    }
}

/// Returns the start of the first forward pass and the end of the last backward pass, inside of the step.
fn passes(events: &[Event], window: Window) -> Option<(i64, i64)> {
    let forward = events.iter().find(|event| event.kind == Kind::Forward)?.start_ns;
    let end = |kind| events.iter().filter(|event| event.kind == kind).map(Event::end_ns).max();
    let backward = end(Kind::Backward).or_else(|| end(Kind::Forward))?;
    Some((forward, backward.clamp(forward, window.end.max(forward))))
}

/// Length of the events of a kind; nested ones count once.
pub(crate) fn length_of(events: &[Event], kind: Kind) -> u64 {
    let spans = events.iter().filter(|event| event.kind == kind);
    Intervals::union_of(spans.map(|event| Interval { start: event.start_ns, end: event.end_ns() })).total_ns()
}

#[cfg(test)]
mod tests {
    use crate::analyze;
    use crate::model::{Event, Kind, NameId, RankTrace, StepSpan, Trace};

    fn event(kind: Kind, start_us: i64, us: u64) -> Event {
        Event {
            start_ns: start_us * 1000,
            duration_ns: us * 1000,
            kind,
            lane: kind as u32,
            name: NameId(0),
            communication: None,
        }
    }

    fn trace(steps: &[(i64, u64)], events: &[Event]) -> Trace {
        let steps = steps.iter().zip(1..).map(|(&(start, us), number)| StepSpan {
            number,
            start_ns: start * 1000,
            duration_ns: us * 1000,
        });
        let mut events = events.to_vec();
        events.sort_by_key(|event| event.start_ns);
        let rank = RankTrace { steps: steps.collect(), events, ..RankTrace::default() };
        Trace { ranks: [(0, rank)].into(), ..Trace::default() }
    }

    #[test]
    fn step_is_split_at_the_passes() {
        let trace = trace(
            &[(100, 100)],
            &[
                event(Kind::DataLoader, 102, 8),
                event(Kind::Forward, 115, 20),
                event(Kind::Compute, 116, 18),
                event(Kind::Backward, 140, 30),
                event(Kind::Compute, 141, 29),
                event(Kind::Collective, 165, 15),
            ],
        );
        let breakdown = analyze(&trace, &Default::default()).breakdown;
        assert_eq!(breakdown.start_us, [[Some(100)]]);
        assert_eq!(breakdown.total_us, [[Some(100)]]);
        assert_eq!(breakdown.interval_us, [[Some(15)]]);
        assert_eq!(breakdown.forward_backward_us, [[Some(55)]]);
        assert_eq!(breakdown.tail_us, [[Some(30)]]);
        assert_eq!(breakdown.data_loader_us, [[Some(8)]]);
        assert!(breakdown.save_checkpoint_us.is_empty());
        // Busy: 116..134 and 141..180.
        assert_eq!(breakdown.idle_us, [[Some(100 - 18 - 39)]]);
    }

    #[test]
    fn span_over_a_boundary_is_cut_in_sets_and_whole_in_sums() {
        let trace = trace(
            &[(0, 10), (10, 10)],
            &[event(Kind::Compute, 5, 10), event(Kind::DataLoader, 8, 4), event(Kind::SaveCheckpoint, 19, 7)],
        );
        let breakdown = analyze(&trace, &Default::default()).breakdown;
        assert_eq!(breakdown.idle_us, [[Some(5), Some(5)]]);
        assert_eq!(breakdown.data_loader_us, [[Some(4), Some(0)]]);
        assert_eq!(breakdown.save_checkpoint_us, [[Some(0), Some(7)]]);
    }

    #[test]
    fn step_without_computation_has_no_idle_time() {
        let analysis = analyze(&trace(&[(0, 10)], &[event(Kind::Collective, 2, 3)]), &Default::default());
        assert!(analysis.breakdown.idle_us.is_empty());
        assert!(analysis.overlap.overlapped_us.is_empty());
        assert!(analysis.missing.iter().any(|text| text.contains("no computation")), "{:?}", analysis.missing);
    }

    #[test]
    fn trace_without_steps_has_the_figures_of_its_whole_length() {
        let analysis =
            analyze(&trace(&[], &[event(Kind::Compute, 5, 10), event(Kind::Compute, 25, 10)]), &Default::default());
        assert_eq!(analysis.steps, [0]);
        assert_eq!(analysis.breakdown.total_us, [[Some(30)]]);
        assert_eq!(analysis.breakdown.idle_us, [[Some(10)]]);
    }
}

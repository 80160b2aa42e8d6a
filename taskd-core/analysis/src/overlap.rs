//! Overlap of computation and communication: the five indicators of MindSpore Insight, and the overlapped time.
//!
//! A rank without computation in its trace has none of them: all of its communication would seem to be alone.

use crate::activity::{Activity, Computation};
use crate::document::{Overlap, Table};
use crate::index::{Index, Window};
use crate::tables::{empty, or_none};

/// Collects the indicators row by row.
#[derive(Debug)]
pub(crate) struct Collector {
    figures: Overlap,
    /// The time that the rank itself needs: the step without communication that is not overlapped. For a rank with
    /// passes only it is the passes without receives and collectives, which a pass waits for on other lanes, plus the
    /// input and the checkpoints; for a rank with neither, the step without communication.
    own_us: Table,
}

impl Collector {
    pub(crate) fn new(index: &Index<'_>) -> Collector {
        let table = || empty(index.ranks.len(), index.steps.len());
        Collector {
            figures: Overlap {
                computation_us: table(),
                communication_alone_us: table(),
                stage_us: table(),
                receive_alone_us: table(),
                collective_alone_us: table(),
                overlapped_us: table(),
            },
            own_us: table(),
        }
    }

    /// Adds one step of a row. `host_ns`: time of the input and of checkpoints.
    pub(crate) fn add(
        &mut self,
        row: usize,
        window: Window,
        activity: &Activity,
        computation: &Computation,
        host_ns: u64,
    ) {
        let Activity { compute, receive, other, collective } = activity;
        let step = window.end.abs_diff(window.start.min(window.end));
        let communication = receive.union(other);
        let alone = communication.minus(compute).total_ns();
        let receive_alone = receive.minus(&compute.union(other)).total_ns();
        let set = |table: &mut Table, ns: u64| table[row][window.column] = Some(ns / 1000);
        let own = match computation {
            Computation::Kernels => step.saturating_sub(alone),
            Computation::Passes(_) => compute.minus(&receive.union(collective)).total_ns().saturating_add(host_ns),
            Computation::Unknown => step.saturating_sub(communication.total_ns()),
        };
        set(&mut self.own_us, own);
        if *computation != Computation::Unknown {
            let figures = &mut self.figures;
            set(&mut figures.computation_us, step.saturating_sub(alone));
            set(&mut figures.communication_alone_us, alone);
            set(&mut figures.stage_us, step.saturating_sub(receive_alone));
            set(&mut figures.receive_alone_us, receive_alone);
            set(&mut figures.collective_alone_us, other.minus(compute).total_ns());
            set(&mut figures.overlapped_us, communication.total_ns().saturating_sub(alone));
        }
    }

    /// Returns the tables, and the own time of each rank.
    pub(crate) fn finish(self) -> (Overlap, Table) {
        let figures = self.figures;
        let overlap = Overlap {
            computation_us: or_none(figures.computation_us),
            communication_alone_us: or_none(figures.communication_alone_us),
            stage_us: or_none(figures.stage_us),
            receive_alone_us: or_none(figures.receive_alone_us),
            collective_alone_us: or_none(figures.collective_alone_us),
            overlapped_us: or_none(figures.overlapped_us),
        };
        (overlap, self.own_us)
    }
}

#[cfg(test)]
mod tests {
    use crate::analyze;
    use crate::model::{Event, Kind, NameId, RankTrace, StepSpan, Trace};
    use proptest::prelude::*;

    fn trace(end_us: u64, events: &[(Kind, u32, i64, u64)]) -> Trace {
        let mut events: Vec<Event> = events
            .iter()
            .map(|&(kind, lane, start_us, us)| Event {
                start_ns: start_us * 1000,
                duration_ns: us * 1000,
                kind,
                lane,
                name: NameId(0),
                communication: None,
            })
            .collect();
        events.sort_by_key(|event| event.start_ns);
        let steps = vec![StepSpan { number: 1, start_ns: 0, duration_ns: end_us * 1000 }];
        Trace { ranks: [(0, RankTrace { steps, events, ..RankTrace::default() })].into(), ..Trace::default() }
    }

    #[test]
    fn indicators_of_a_hand_made_step_are_exact() {
        // Computation 10..40, a receive 30..60, a collective 50..80.
        let trace =
            trace(100, &[(Kind::Compute, 7, 10, 30), (Kind::Receive, 8, 30, 30), (Kind::Collective, 9, 50, 30)]);
        let overlap = analyze(&trace, &Default::default()).overlap;
        assert_eq!(overlap.communication_alone_us, [[Some(40)]]);
        assert_eq!(overlap.receive_alone_us, [[Some(10)]]);
        assert_eq!(overlap.collective_alone_us, [[Some(30)]]);
        assert_eq!(overlap.computation_us, [[Some(60)]]);
        assert_eq!(overlap.stage_us, [[Some(90)]]);
        assert_eq!(overlap.overlapped_us, [[Some(10)]]);
    }

    #[test]
    fn pass_of_a_host_excludes_communication_on_its_lane() {
        // Lane 0 blocks in a collective 20..30; the one on lane 5 runs beside the pass.
        let trace =
            trace(50, &[(Kind::Forward, 0, 10, 30), (Kind::Collective, 0, 20, 10), (Kind::Collective, 5, 32, 6)]);
        let overlap = analyze(&trace, &Default::default()).overlap;
        assert_eq!(overlap.communication_alone_us, [[Some(10)]]);
        assert_eq!(overlap.overlapped_us, [[Some(6)]]);
    }

    proptest! {
        #[test]
        fn indicators_equal_the_naive_model(
            spans in prop::collection::vec((0u8..3, -8i64..48, 0u64..16), 1..16),
        ) {
            let kinds = [Kind::Compute, Kind::Receive, Kind::Collective];
            let mut events: Vec<_> = spans.iter().map(|&(kind, at, us)| (kinds[usize::from(kind)], u32::from(kind), at, us)).collect();
            events.push((Kind::Compute, 0, 0, 1));
            let in_kind = |kind: Kind, at: i64| {
                events.iter().any(|event| event.0 == kind && event.2 <= at && at < event.2 + event.3 as i64)
            };
            let count = |is: &dyn Fn(bool, bool, bool) -> bool| {
                let at = |at| is(in_kind(kinds[0], at), in_kind(kinds[1], at), in_kind(kinds[2], at));
                (0..40).filter(|moment| at(*moment)).count() as u64
            };
            let overlap = analyze(&trace(40, &events), &Default::default()).overlap;
            let alone = count(&|c, r, k| (r || k) && !c);
            let receive = count(&|c, r, k| r && !(c || k));
            prop_assert_eq!(overlap.communication_alone_us, [[Some(alone)]]);
            prop_assert_eq!(overlap.computation_us, [[Some(40 - alone)]]);
            prop_assert_eq!(overlap.receive_alone_us, [[Some(receive)]]);
            prop_assert_eq!(overlap.stage_us, [[Some(40 - receive)]]);
            prop_assert_eq!(overlap.collective_alone_us, [[Some(count(&|c, _, k| k && !c))]]);
            prop_assert_eq!(overlap.overlapped_us, [[Some(count(&|c, r, k| c && (r || k)))]]);
        }
    }
}

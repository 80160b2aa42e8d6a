//! Time of one rank in computation, receives and other communication, per step, as sets.

use crate::index::{Index, Window};
use crate::intervals::{Interval, Intervals};
use crate::model::{Event, Kind, RankTrace};
use std::collections::BTreeSet;

/// Sets of time of one rank in one step, cut at the step's boundaries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Computation.
    pub(crate) compute: Intervals,
    /// Receives.
    pub(crate) receive: Intervals,
    /// Other communication: collectives and sends.
    pub(crate) other: Intervals,
    /// Collectives.
    pub(crate) collective: Intervals,
}

/// The classes of [`Activity`], and the communication that blocks the thread of the passes that count as computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Compute,
    Receive,
    Other,
}

const CLASSES: usize = 3;
/// Index of the set of communication on lanes of the host's computation.
const BLOCKING: usize = CLASSES;
/// Index of the set of collectives.
const COLLECTIVE: usize = CLASSES + 1;

/// How the computation of a rank shows in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Computation {
    /// Kernels, or operators of a CPU.
    Kernels,
    /// Passes on these lanes of the host, for a trace without kernels: communication on the same lane is a part of
    /// the pass and no computation.
    Passes(BTreeSet<u32>),
    /// The trace has neither.
    Unknown,
}

impl Computation {
    /// Returns how the computation of a rank shows.
    pub(crate) fn of(row: &RankTrace) -> Computation {
        let is_pass = |kind| matches!(kind, Kind::Forward | Kind::Backward | Kind::Optimizer);
        if row.events.iter().any(|event| event.kind == Kind::Compute) {
            return Computation::Kernels;
        }
        let lanes: BTreeSet<u32> =
            row.events.iter().filter(|event| is_pass(event.kind)).map(|event| event.lane).collect();
        if lanes.is_empty() { Computation::Unknown } else { Computation::Passes(lanes) }
    }

    fn class(&self, event: &Event) -> Option<Class> {
        match (event.kind, self) {
            (Kind::Compute, Computation::Kernels)
            | (Kind::Forward | Kind::Backward | Kind::Optimizer, Computation::Passes(_)) => Some(Class::Compute),
            (Kind::Receive, _) => Some(Class::Receive),
            (Kind::Collective | Kind::Send, _) => Some(Class::Other),
            _ => None,
        }
    }

    fn is_blocking(&self, event: &Event) -> bool {
        matches!(self, Computation::Passes(lanes) if event.kind.is_communication() && lanes.contains(&event.lane))
    }
}

/// Calls `visit` with each step of a row, its activity, and the events that belong to it.
pub(crate) fn visit<'a>(
    index: &Index<'a>,
    row: usize,
    computation: &Computation,
    mut visit: impl FnMut(Window, &Activity, &'a [Event]),
) {
    let events: &[Event] = &index.rows[row].events;
    let mut at = 0;
    // End of the spans that began before the next window, per class. All of them hold the last window's end.
    let mut carried = [i64::MIN; CLASSES + 2];
    for window in &index.windows[row] {
        let mut spans: [Vec<Interval>; CLASSES + 2] = Default::default();
        for (class, end) in carried.iter().enumerate() {
            spans[class].push(Interval { start: window.start, end: window.end.min(*end) });
        }
        let mut first = at;
        while let Some(event) = events.get(at).filter(|event| event.start_ns < window.end) {
            at += 1;
            if event.start_ns < window.start {
                first = at;
            }
            let classes = [
                computation.class(event).map(|class| class as usize),
                computation.is_blocking(event).then_some(BLOCKING),
                (event.kind == Kind::Collective).then_some(COLLECTIVE),
            ];
            for class in classes.into_iter().flatten() {
                let end = event.end_ns();
                spans[class].push(Interval { start: event.start_ns.max(window.start), end: end.min(window.end) });
                carried[class] = carried[class].max(end);
            }
        }
        let [compute, receive, other, blocking, collective] = spans.map(Intervals::union_of);
        let compute = if blocking.as_slice().is_empty() { compute } else { compute.minus(&blocking) };
        visit(*window, &Activity { compute, receive, other, collective }, &events[first..at]);
    }
}

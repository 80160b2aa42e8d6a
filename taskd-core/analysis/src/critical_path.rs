//! The critical path of each step: the chain of events that determines the step's end.
//!
//! The walk begins at the latest end of all ranks and goes back in time. Before an event is the one that ended last on its
//! rank, or the one before it on its lane if that ended just before and the other ran beside it. A collective could not
//! end before its last member began, so the path continues on that member; likewise between a send and its receive.
//! A time without an event is a gap. The path is as long as the step: from the earliest start to the latest end of all
//! ranks by aligned clocks.

use crate::document::{CriticalSegment, CriticalStep};
use crate::index::{Index, Window, moment_us};
use crate::matches::Matches;
use crate::model::NameId;
use crate::pairing::Pairs;
use crate::timeline::{has_kernels, kind_number};
use std::collections::BTreeMap;

/// Maximum number of segments of all steps in the document.
const SEGMENTS_MAX: usize = 200_000;
/// Minimum number of segments that a step can have in the document.
const STEP_SEGMENTS_MIN: usize = 16;
/// An event that begins this soon after the one before it on its lane waited for that one, in nanoseconds.
const LAUNCH_NS: u64 = 50_000;
/// Kind of a gap in the document.
const GAP: u8 = 7;
/// Name of the segment that stands for events above the limit.
const REST: &str = "(earlier events)";

/// An event that can be on the path, by aligned clocks.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    start: i64,
    end: i64,
    kind: u8,
    lane: u32,
    name: NameId,
    call: Option<u32>,
}

/// A part of the path.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Segment {
    row: usize,
    /// `None` for a gap.
    name: Option<NameId>,
    kind: u8,
    start: i64,
    end: i64,
}

/// The operations that a call waits for: the members of a collective, or both sides of a pair.
#[derive(Clone, Copy, Debug)]
enum Partner {
    Run(u32),
    Pair(u32),
}

struct Walk<'a> {
    index: &'a Index<'a>,
    matches: &'a Matches<'a>,
    pairs: &'a Pairs,
    shift: &'a [i64],
    /// Partner of each call of each row.
    partners: Vec<Vec<Option<Partner>>>,
    has_kernels: Vec<bool>,
    /// Candidates of the rows that the path has visited in the current step, by end.
    candidates: BTreeMap<usize, Vec<Candidate>>,
}

/// Returns the critical path of each step. `shift`: nanoseconds to subtract from the times of each row.
pub(crate) fn paths(index: &Index<'_>, matches: &Matches<'_>, pairs: &Pairs, shift: &[i64]) -> Vec<CriticalStep> {
    let mut partners: Vec<Vec<Option<Partner>>> = matches.calls.iter().map(|calls| vec![None; calls.len()]).collect();
    for (number, run) in (0..).zip(&matches.runs) {
        for &(row, at) in matches.members(run) {
            partners[row as usize][at as usize] = Some(Partner::Run(number));
        }
    }
    for (number, pair) in (0..).zip(&pairs.pairs) {
        for (row, at) in [pair.send, pair.receive] {
            partners[row as usize][at as usize] = Some(Partner::Pair(number));
        }
    }
    let has_kernels = index.rows.iter().map(|row| has_kernels(row)).collect();
    let mut walk = Walk { index, matches, pairs, shift, partners, has_kernels, candidates: BTreeMap::new() };
    let limit = (SEGMENTS_MAX / index.steps.len().max(1)).max(STEP_SEGMENTS_MIN);
    let mut windows: Vec<Vec<(usize, Window)>> = vec![Vec::new(); index.steps.len()];
    for (row, of_row) in index.windows.iter().enumerate() {
        for window in of_row {
            windows[window.column].push((row, *window));
        }
    }
    let step = |(column, windows): (usize, Vec<(usize, Window)>)| {
        let segments = coarse(walk.step(&windows), limit);
        CriticalStep { step: index.steps[column], segments: walk.write(&segments) }
    };
    windows.into_iter().enumerate().map(step).collect()
}

impl Walk<'_> {
    /// Returns the path of a step in the order of time.
    fn step(&mut self, windows: &[(usize, Window)]) -> Vec<Segment> {
        self.candidates.clear();
        let aligned = |row: usize, at: i64| at.saturating_sub(self.shift[row]);
        let began = windows.iter().map(|(row, window)| aligned(*row, window.start)).min();
        let last = windows.iter().map(|(row, window)| (aligned(*row, window.end), *row)).max();
        let (Some(began), Some((end, row))) = (began, last) else { return Vec::new() };
        let windows: BTreeMap<usize, Window> = windows.iter().copied().collect();
        let mut path = Vec::new();
        let (mut at, mut row, mut lane) = (end, row, None);
        while at > began {
            let Some(event) = self.before(row, windows.get(&row), at, lane) else {
                path.push(self.gap(row, began, at));
                break;
            };
            if event.end < at {
                path.push(self.gap(row, event.end.max(began), at));
            }
            if event.end <= began {
                break;
            }
            let (next, from) = self.cause(row, &event);
            let (name, kind) = (Some(event.name), event.kind);
            // The part after the last member's start is on that member, with its name of the operation.
            let name = if next == row { name } else { self.name_on(next, row, &event).or(name) };
            path.push(Segment { row: next, name, kind, start: from.max(began), end: event.end });
            lane = (next == row).then_some(event.lane);
            (row, at) = (next, from);
        }
        path.retain(|segment| segment.start < segment.end);
        path.reverse();
        path
    }

    /// Returns the event before a moment on a row.
    fn before(&mut self, row: usize, window: Option<&Window>, at: i64, lane: Option<u32>) -> Option<Candidate> {
        let window = *window?;
        if !self.candidates.contains_key(&row) {
            let candidates = self.read(row, window);
            self.candidates.insert(row, candidates);
        }
        let candidates = self.candidates.get(&row)?;
        let after = candidates.partition_point(|event| event.end <= at);
        let event = candidates[..after].last()?;
        let on_lane = candidates[..after].iter().rev().take_while(|event| event.end.abs_diff(at) <= LAUNCH_NS);
        let same = on_lane.filter(|event| Some(event.lane) == lane).find(|same| event.start < same.end);
        Some(*same.unwrap_or(event))
    }

    /// Reads the events of a step of a row, sorted by their ends; of equal ends the innermost is the last.
    fn read(&self, row: usize, window: Window) -> Vec<Candidate> {
        let (rank, shift) = (self.index.rows[row], self.shift[row]);
        let candidate = |event: &crate::model::Event, call| {
            let kind = kind_number(event.kind, self.has_kernels[row])?;
            let (start, end) = (event.start_ns.saturating_sub(shift), event.end_ns().saturating_sub(shift));
            (start < end).then_some(Candidate { start, end, kind, lane: event.lane, name: event.name, call })
        };
        let from = rank.events.partition_point(|event| event.start_ns < window.start);
        let to = rank.events.partition_point(|event| event.start_ns < window.end);
        let others = rank.events.get(from..to).unwrap_or_default().iter();
        let others = others.filter(|event| !event.kind.is_communication()).filter_map(|event| candidate(event, None));
        let calls = &self.matches.calls[row];
        let from = calls.partition_point(|call| call.event.start_ns < window.start);
        let to = calls.partition_point(|call| call.event.start_ns < window.end);
        let calls = (from..to).filter_map(|at| candidate(calls[at].event, u32::try_from(at).ok()));
        let mut all: Vec<Candidate> = others.chain(calls).collect();
        all.sort_by_key(|event| (event.end, event.start));
        all
    }

    /// Returns the row and moment at which the event's last condition was met.
    fn cause(&self, row: usize, event: &Candidate) -> (usize, i64) {
        let own = (row, event.start);
        let partner = event.call.and_then(|at| self.partners[row][at as usize]);
        let start = |member: (u32, u32)| {
            let row = member.0 as usize;
            (row, self.matches.event(member).start_ns.saturating_sub(self.shift[row]))
        };
        let later = |a: (usize, i64), b: (usize, i64)| if b.1 > a.1 { b } else { a };
        let last = match partner {
            None => own,
            Some(Partner::Run(run)) => {
                let members = self.matches.members(&self.matches.runs[run as usize]);
                members.iter().map(|member| start(*member)).fold(own, later)
            }
            Some(Partner::Pair(pair)) => {
                let pair = self.pairs.pairs[pair as usize];
                [start(pair.send), start(pair.receive)].into_iter().fold(own, later)
            }
        };
        if last.1 < event.end { last } else { own }
    }

    /// Returns the name that another row gives to the operation of an event.
    fn name_on(&self, other: usize, row: usize, event: &Candidate) -> Option<NameId> {
        let member = |member: &&(u32, u32)| member.0 as usize == other;
        match self.partners[row][event.call? as usize]? {
            Partner::Run(run) => self.matches.members(&self.matches.runs[run as usize]).iter().find(member),
            Partner::Pair(pair) => {
                let pair = &self.pairs.pairs[pair as usize];
                [&pair.send, &pair.receive].into_iter().find(member)
            }
        }
        .map(|member| self.matches.event(*member).name)
    }

    /// A time without an event of its own: a part of a pass around it, or a gap.
    fn gap(&self, row: usize, start: i64, end: i64) -> Segment {
        let around = self.candidates.get(&row).into_iter().flatten();
        let mut around = around.filter(|event| event.kind == 0 && event.start <= start && event.end >= end);
        let pass = around.next();
        Segment { row, name: pass.map(|event| event.name), kind: pass.map_or(GAP, |event| event.kind), start, end }
    }

    fn write(&self, segments: &[(Segment, bool)]) -> Vec<CriticalSegment> {
        let write = |(segment, is_rest): &(Segment, bool)| {
            let (start, end) = (moment_us(segment.start), moment_us(segment.end));
            let name = segment.name.map_or("", |name| self.index.rows[segment.row].names.get(name));
            CriticalSegment {
                rank: self.index.ranks[segment.row],
                name: if *is_rest { REST } else { name }.to_owned(),
                kind: segment.kind,
                start_us: start,
                duration_us: start.abs_diff(end),
            }
        };
        segments.iter().map(write).filter(|segment| segment.duration_us > 0).collect()
    }
}

/// Brings a path below a limit: neighbours of one row and kind become one segment with the longest one's name; what is
/// still above the limit becomes one segment at the beginning. The flag is true for that one.
fn coarse(path: Vec<Segment>, limit: usize) -> Vec<(Segment, bool)> {
    let mut coarse: Vec<Segment> = Vec::new();
    let is_long = path.len() > limit;
    let mut longest = 0;
    for segment in path {
        let length = segment.end.abs_diff(segment.start);
        match coarse.last_mut().filter(|last| is_long && (last.row, last.kind) == (segment.row, segment.kind)) {
            Some(last) => {
                last.end = segment.end;
                if length > longest {
                    (last.name, longest) = (segment.name, length);
                }
            }
            None => {
                coarse.push(segment);
                longest = length;
            }
        }
    }
    let above = coarse.len().saturating_sub(limit);
    let mut rest: Vec<(Segment, bool)> = Vec::new();
    if above > 0 {
        let (first, last) = (coarse[0], coarse[above]);
        rest.push((Segment { kind: GAP, start: first.start, ..last }, true));
        coarse.drain(..=above);
    }
    rest.extend(coarse.into_iter().map(|segment| (segment, false)));
    rest
}

#[cfg(test)]
mod tests {
    use crate::analyze;
    use crate::document::{Analysis, CriticalSegment};
    use crate::synthetic::{Fault, Job, trace};
    use proptest::prelude::*;

    /// Length of each step from the earliest start to the latest end of all ranks.
    fn lengths(analysis: &Analysis) -> Vec<u64> {
        let times = |column: usize| {
            let of = |table: &crate::document::Table, row: usize| table[row][column].unwrap();
            let rows = 0..analysis.ranks.len();
            let start = |row| of(&analysis.breakdown.start_us, row);
            let end = rows.clone().map(|row| start(row) + of(&analysis.breakdown.total_us, row)).max().unwrap();
            end - rows.map(start).min().unwrap()
        };
        (0..analysis.steps.len()).map(times).collect()
    }

    fn is_continuous(segments: &[CriticalSegment]) -> bool {
        segments.windows(2).all(|pair| pair[0].start_us + pair[0].duration_us.cast_signed() == pair[1].start_us)
    }

    #[test]
    fn path_goes_through_the_slow_rank() {
        let fault = Fault::SlowRank { rank: 6, from_step: 1, percent: 60 };
        let analysis = analyze(&trace(&Job::default().with_fault(fault), 4), &Default::default());
        for path in &analysis.critical_path {
            let time = |is: &dyn Fn(&CriticalSegment) -> bool| -> u64 {
                path.segments.iter().filter(|segment| is(segment)).map(|segment| segment.duration_us).sum()
            };
            let all = time(&|_| true);
            let slow = time(&|segment| segment.rank == 6 && segment.kind == 0);
            assert!(slow * 2 > all, "step {}: {slow} of {all}", path.step);
        }
    }

    #[test]
    fn path_of_a_trace_without_kernels_has_passes() {
        let job = Job { is_host_only: true, steps: 2, ..Job::default() };
        let analysis = analyze(&trace(&job, 4), &Default::default());
        let path = &analysis.critical_path[1].segments;
        let passes: u64 = path.iter().filter(|segment| segment.kind == 0).map(|segment| segment.duration_us).sum();
        assert!(passes * 4 > lengths(&analysis)[1] * 3, "{path:?}");
        assert!(path.iter().any(|segment| segment.name == "backward"));
    }

    #[test]
    fn path_above_the_limit_keeps_its_length() {
        use super::{Segment, coarse};
        let segment = |at: i64| Segment { row: 0, name: None, kind: (at % 2) as u8, start: at, end: at + 1 };
        let path = coarse((0..10).map(segment).collect(), 4);
        assert_eq!(path.iter().map(|(segment, _)| segment.end - segment.start).sum::<i64>(), 10);
        assert_eq!(path.iter().filter(|(_, is_rest)| *is_rest).count(), 1);
        assert!(path.len() <= 4, "{path:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn path_is_continuous_and_as_long_as_the_step(
            (dp, tp, pp) in (1u32..4, 1u32..3, 1u32..4), seed in 0u64..1000, is_host_only: bool,
        ) {
            let job = Job { dp, tp, pp, steps: 3, is_host_only, ..Job::default() };
            let analysis = analyze(&trace(&job, seed), &Default::default());
            for (path, length) in analysis.critical_path.iter().zip(lengths(&analysis)) {
                prop_assert!(is_continuous(&path.segments), "{:?}", path.segments);
                prop_assert_eq!(path.segments.iter().map(|segment| segment.duration_us).sum::<u64>(), length);
            }
        }
    }
}

//! Spans of all ranks for the Marey timeline, within a limit for the whole document.
//!
//! Above the limit, neighbours of one rank, lane and kind that are shorter than a resolution, with a gap below it, become
//! one span with the name of the longest; a span that is then shorter than half of the resolution is left out. The
//! resolution doubles until the document fits, so that the timeline loses its shortest details first.
//!
//! Equal operations have one number: a matched collective on all of its members, and the k-th run of a name in a step on
//! all ranks of a stage.

use crate::document::{Timeline, TimelineSpan};
use crate::index::{Index, moment_us};
use crate::matches::Matches;
use crate::model::{Event, Kind, NameId, RankTrace, Resources};
use std::collections::BTreeMap;

/// Maximum number of spans in the document.
pub(crate) const SPANS_MAX: usize = 400_000;
/// Maximum number of samples of memory use in the document, and of operations with their arithmetic.
const SAMPLES_MAX: usize = 100_000;
/// First resolution in nanoseconds when the spans exceed the limit.
const RESOLUTION_NS: u64 = 1_000;

/// A span before it is written.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: i64,
    end: i64,
    kind: u8,
    lane: u32,
    name: NameId,
    /// Equal operations have one key; 0: none.
    key: u64,
    /// Length of the event that gave the name.
    longest: u64,
}

/// Returns the timeline. `stage_of`: stage of each row; `shift`: nanoseconds to subtract from the times of each row.
pub(crate) fn timeline(
    index: &Index<'_>,
    matches: &Matches<'_>,
    stage_of: &[u32],
    shift: &[i64],
    max: usize,
) -> Timeline {
    let mut names = GlobalNames::default();
    let keys = run_keys(matches);
    let of_row = |row: usize| spans(index, row, stage_of[row], &keys[row], &mut names);
    let mut rows: Vec<Vec<Span>> = (0..index.rows.len()).map(of_row).collect();
    let count = |rows: &[Vec<Span>]| rows.iter().map(Vec::len).sum::<usize>();
    let total = count(&rows);
    let mut resolution = RESOLUTION_NS;
    // A resolution of 2^63 ns merges or removes all.
    while count(&rows) > max && resolution < 1 << 63 {
        rows.iter_mut().for_each(|spans| coarsen(spans, resolution));
        resolution *= 2;
    }
    let left_out = (total - count(&rows)) as u64;
    write(index, rows, &names, shift, left_out)
}

/// Sorted names of all ranks, by first use.
#[derive(Default)]
struct GlobalNames {
    numbers: BTreeMap<String, u32>,
}

impl GlobalNames {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

/// Keys of matched collectives for the calls of each row; 0: not matched.
fn run_keys(matches: &Matches<'_>) -> Vec<Vec<u64>> {
    let mut keys: Vec<Vec<u64>> = matches.calls.iter().map(|calls| vec![0; calls.len()]).collect();
    for (number, run) in (1u64..).zip(&matches.runs) {
        for &(row, at) in matches.members(run) {
            keys[row as usize][at as usize] = number;
        }
    }
    keys
}

/// Number of a kind in the document; `None`: the timeline does not have it.
pub(crate) const fn kind_number(kind: Kind, has_kernels: bool) -> Option<u8> {
    match kind {
        Kind::Compute => Some(0),
        // Passes are the computation of a rank without kernels, and would hide the kernels of another.
        Kind::Forward | Kind::Backward | Kind::Optimizer if !has_kernels => Some(0),
        Kind::Collective => Some(1),
        Kind::Send => Some(2),
        Kind::Receive => Some(3),
        Kind::Copy => Some(4),
        Kind::DataLoader => Some(5),
        Kind::SaveCheckpoint => Some(6),
        Kind::GarbageCollection => Some(7),
        Kind::Forward | Kind::Backward | Kind::Optimizer | Kind::Host => None,
    }
}

/// Returns true if the rank recorded kernels.
pub(crate) fn has_kernels(rank: &RankTrace) -> bool {
    rank.events.iter().any(|event| event.kind == Kind::Compute)
}

/// Returns all spans of a row, with the key of each.
fn spans(index: &Index<'_>, row: usize, stage: u32, run_keys: &[u64], names: &mut GlobalNames) -> Vec<Span> {
    let rank = index.rows[row];
    let has_kernels = has_kernels(rank);
    let mut run_keys = run_keys.iter();
    let mut numbers: BTreeMap<NameId, u32> = BTreeMap::new();
    // Number of runs of a name in the step: the k-th of all ranks are one operation.
    let mut counts: BTreeMap<NameId, u64> = BTreeMap::new();
    let mut column = None;
    let mut spans = Vec::new();
    for event in &rank.events {
        let matched = if event.kind.is_communication() { run_keys.next().copied().unwrap_or_default() } else { 0 };
        let Some(kind) = kind_number(event.kind, has_kernels) else { continue };
        let of_event = index.column_of(row, event.start_ns);
        if of_event != column {
            counts.clear();
            column = of_event;
        }
        let count = counts.entry(event.name).or_default();
        *count += 1;
        let is_counted = matches!(event.kind, Kind::Compute | Kind::Forward | Kind::Backward | Kind::Optimizer);
        let name = *numbers.entry(event.name).or_insert_with(|| names.number(rank.names.get(event.name)));
        let key = match of_event {
            Some(column) if is_counted => step_key(stage, name, column, *count),
            _ => matched,
        };
        let (lane, longest) = (event.lane, event.duration_ns);
        spans.push(Span {
            start: event.start_ns,
            end: Event::end_ns(event),
            kind,
            lane,
            name: NameId(name),
            key,
            longest,
        });
    }
    spans
}

/// Key of the k-th operation of a name in a step of a stage: above all keys of collectives. 0 (none) if a part is too
/// large for it.
const fn step_key(stage: u32, name: u32, column: usize, count: u64) -> u64 {
    if stage >= 1 << 11 || name >= 1 << 18 || column >= 1 << 18 || count >= 1 << 16 {
        return 0;
    }
    1 << 63 | (stage as u64) << 52 | (name as u64) << 34 | (column as u64) << 16 | count
}

/// Merges and removes spans below a resolution.
fn coarsen(spans: &mut Vec<Span>, resolution: u64) {
    let mut merged: Vec<Span> = Vec::with_capacity(spans.len() / 2);
    // Last span of each kind and lane.
    let mut last: BTreeMap<(u8, u32), usize> = BTreeMap::new();
    for span in spans.iter() {
        if let Some(at) = last.get(&(span.kind, span.lane)) {
            let before = &mut merged[*at];
            let is_short = |span: &Span| span.end.abs_diff(span.start) < resolution;
            let gap = span.start.saturating_sub(before.end);
            if is_short(before) && is_short(span) && gap.unsigned_abs() < resolution {
                if span.longest > before.longest {
                    (before.name, before.key, before.longest) = (span.name, span.key, span.longest);
                }
                before.end = before.end.max(span.end);
                continue;
            }
        }
        last.insert((span.kind, span.lane), merged.len());
        merged.push(*span);
    }
    merged.retain(|span| span.end.abs_diff(span.start) >= resolution / 2);
    *spans = merged;
}

/// Numbers the names and keys that are left.
fn write(index: &Index<'_>, rows: Vec<Vec<Span>>, names: &GlobalNames, shift: &[i64], left_out: u64) -> Timeline {
    let mut keys: Vec<u64> = rows.iter().flatten().map(|span| span.key).filter(|key| *key != 0).collect();
    keys.sort_unstable();
    // A key of one span connects nothing.
    let keys: Vec<u64> = keys.chunk_by(|a, b| a == b).filter(|same| same.len() > 1).map(|same| same[0]).collect();
    let number = |key: u64| keys.binary_search(&key).map_or(0, |at| u32::try_from(at + 1).unwrap_or_default());
    let mut used: Vec<u32> = rows.iter().flatten().map(|span| span.name.0).collect();
    used.sort_unstable();
    used.dedup();
    let name = |name: u32| used.binary_search(&name).map_or(0, |at| u32::try_from(at).unwrap_or_default());
    let write_span = |span: &Span, shift: i64| {
        let moment = |ns: i64| moment_us(ns.saturating_sub(shift));
        let (start, end) = (moment(span.start), moment(span.end));
        TimelineSpan(start, end.abs_diff(start), span.kind, name(span.name.0), number(span.key))
    };
    let spans =
        rows.iter().zip(shift).map(|(spans, shift)| spans.iter().map(|span| write_span(span, *shift)).collect());
    let mut texts: Vec<(u32, &String)> = names.numbers.iter().map(|(name, number)| (*number, name)).collect();
    texts.sort_unstable();
    Timeline {
        names: texts
            .into_iter()
            .filter(|(at, _)| used.binary_search(at).is_ok())
            .map(|(_, name)| name.clone())
            .collect(),
        spans: spans.collect(),
        memory: samples(index, shift, |resources| &resources.memory),
        flop: samples(index, shift, |resources| &resources.flop),
        left_out,
    }
}

/// Samples of each rank: evenly spaced ones, if there are too many.
fn samples<T: Copy + PartialOrd>(
    index: &Index<'_>,
    shift: &[i64],
    of: impl Fn(&Resources) -> &Vec<(i64, T)>,
) -> Vec<Vec<(i64, T)>> {
    let total: usize = index.rows.iter().map(|row| of(&row.resources).len()).sum();
    let every = total.div_ceil(SAMPLES_MAX).max(1);
    // The largest of the samples that one stands for.
    let larger = |a: (i64, T), b: &(i64, T)| if b.1 > a.1 { *b } else { a };
    let largest = |few: &[(i64, T)]| few.iter().copied().reduce(|a, b| larger(a, &b));
    let of_rank = |(row, shift): (&&RankTrace, &i64)| {
        let moved = |(at, value): (i64, T)| (moment_us(at.saturating_sub(*shift)), value);
        of(&row.resources).chunks(every).filter_map(largest).map(moved).collect()
    };
    index.rows.iter().zip(shift).map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use super::timeline;
    use crate::document::{Timeline, TimelineSpan};
    use crate::index::Index;
    use crate::matches::Matches;
    use crate::model::{Event, Kind, RankTrace, StepSpan, Trace};
    use crate::synthetic::{Job, trace};
    use std::collections::BTreeMap;

    fn of(trace: &Trace, max: usize) -> Timeline {
        let index = Index::new(trace);
        let stages: Vec<u32> = trace.ranks.values().map(|rank| rank.stage.unwrap_or_default()).collect();
        timeline(&index, &Matches::new(&index), &stages, &vec![0; trace.ranks.len()], max)
    }

    #[test]
    fn equal_operations_of_all_ranks_share_a_number() {
        let job = Job { clock_offset_ns: 0, steps: 3, ..Job::default() };
        let timeline = of(&trace(&job, 1), usize::MAX);
        assert_eq!(timeline.left_out, 0);
        let mut shared: BTreeMap<u32, Vec<(usize, TimelineSpan)>> = BTreeMap::new();
        for (row, spans) in timeline.spans.iter().enumerate() {
            for span in spans.iter().filter(|span| span.4 != 0) {
                shared.entry(span.4).or_default().push((row, *span));
            }
        }
        for (number, spans) in &shared {
            let (_, first) = spans[0];
            assert!(spans.len() > 1, "{number}");
            assert!(spans.windows(2).all(|pair| pair[0].0 < pair[1].0), "{number}: {spans:?}");
            assert!(spans.iter().all(|(_, span)| (span.2, span.3) == (first.2, first.3)), "{spans:?}");
            let end = |span: &TimelineSpan| span.0.unsigned_abs() + span.1;
            assert!(first.2 == 1 || spans.iter().all(|(row, _)| row / 4 == spans[0].0 / 4), "{spans:?}");
            assert!(first.2 != 1 || spans.iter().all(|(_, span)| end(span) == end(&first)), "{spans:?}");
        }
        let unnumbered = timeline.spans.iter().flatten().filter(|span| span.4 == 0 && span.2 < 2);
        assert_eq!(unnumbered.count(), 0);
    }

    #[test]
    fn short_neighbours_become_one_span_above_the_limit() {
        let mut rank = RankTrace::default();
        rank.steps.push(StepSpan { number: 1, start_ns: 0, duration_ns: 1_000_000 });
        let (short, long) = (rank.names.intern("short"), rank.names.intern("long"));
        // Ten kernels of 2 us without gaps, one of 100 us, and one of 2 us far from the others.
        let mut event = |start_us: i64, us: u64, name| {
            let (start_ns, duration_ns) = (start_us * 1000, us * 1000);
            rank.events.push(Event { start_ns, duration_ns, kind: Kind::Compute, lane: 7, name, communication: None });
        };
        (0..10).for_each(|at| event(at * 2, 2, short));
        event(20, 100, long);
        event(800, 2, short);
        let trace = Trace { ranks: [(0, rank)].into(), ..Trace::default() };
        assert_eq!(of(&trace, 12).spans[0].len(), 12);
        let timeline = of(&trace, 3);
        assert_eq!(timeline.names, ["short", "long"]);
        assert!(timeline.spans[0].contains(&TimelineSpan(20, 100, 0, 1, 0)), "{:?}", timeline.spans);
        assert!(timeline.spans[0].len() <= 3);
        assert_eq!(timeline.left_out, 12 - timeline.spans[0].len() as u64);
        assert!(of(&trace, 0).spans[0].is_empty());
    }

    #[test]
    fn timeline_of_many_spans_keeps_the_limit() {
        let trace = trace(&Job { steps: 20, ..Job::default() }, 2);
        let all: usize = of(&trace, usize::MAX).spans.iter().map(Vec::len).sum();
        let timeline = of(&trace, 1000);
        let kept: usize = timeline.spans.iter().map(Vec::len).sum();
        assert!((300..=1000).contains(&kept), "{kept} of {all}");
        assert_eq!(timeline.left_out, (all - kept) as u64);
        assert!(timeline.spans.iter().all(|spans| spans.is_sorted_by_key(|span| span.0)));
    }
}

//! From a trace to the document: runs all analysis functions in their order.

use crate::activity::{self, Computation};
use crate::clocks::{self, Alignment};
use crate::document::{Analysis, Incident, RankInfo, Table, VERSION};
use crate::index::{Index, list};
use crate::matches::Matches;
use crate::model::Trace;
use crate::pairing::{PAIRS_MAX, Pairs};
use crate::summary::summarize;
use crate::timeline::{self, SPANS_MAX};
use crate::verdict::{VerdictRule, verdict};
use crate::waits::{self, Waits};
use crate::{breakdown, communication, critical_path, links, overlap, stages};

/// What an analysis does beyond its defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Incidents that the supervisor recorded, for the document.
    pub incidents: Vec<Incident>,
    /// Thresholds of the verdict.
    pub verdict: VerdictRule,
}

/// Everything that the later functions read.
pub(crate) struct Parts<'a> {
    pub(crate) index: Index<'a>,
    pub(crate) matches: Matches<'a>,
    pub(crate) pairs: Pairs,
    pub(crate) alignment: Alignment,
    pub(crate) waits: Waits,
    /// Nanoseconds to subtract from the times of each row: the clock's offset and the document's time zero.
    pub(crate) shift: Vec<i64>,
    /// Step without communication that is not overlapped, in microseconds.
    pub(crate) own_us: Table,
}

/// Computes all figures of a trace. What the trace does not contain is absent from the figures and named in
/// [`Analysis::missing`]; no trace makes this function fail.
///
/// Time zero of the document is the trace's, or the earliest event if that is before it.
#[must_use]
pub fn analyze(trace: &Trace, settings: &Settings) -> Analysis {
    let index = Index::new(trace);
    let matches = Matches::new(&index);
    let pairs = Pairs::new(&index, &matches);
    let alignment = clocks::align(&index, &matches, &pairs);
    let waits = waits::waits(&matches, &pairs, &alignment);
    let origin = origin(&index, &alignment);
    let shift = alignment.offsets.iter().map(|offset| offset.saturating_add(origin)).collect();
    let mut parts = Parts { index, matches, pairs, alignment, waits, shift, own_us: Table::new() };
    let mut analysis = Analysis {
        version: VERSION,
        title: trace.title.clone(),
        began_unix_ns: trace.began_unix_ns.map(|began| began.saturating_add(origin)),
        ranks: rank_infos(trace),
        steps: parts.index.steps.clone(),
        incidents: settings.incidents.clone(),
        clocks: parts.alignment.document(&parts.index),
        ..Analysis::default()
    };
    analysis.missing = trace.missing.iter().map(|missing| missing.what.clone()).collect();
    let unknown = per_step(&mut parts, &mut analysis);
    let transfers = links::transfers(&parts.index, &parts.matches, &parts.pairs, &parts.waits);
    communication(&parts, &transfers, &mut analysis);
    pipeline(&parts, &mut analysis);
    analysis.timeline = timeline::timeline(&parts.index, &parts.matches, &parts.shift, SPANS_MAX);
    analysis.critical_path = critical_path::paths(&parts.index, &parts.matches, &parts.pairs, &parts.shift);
    analysis.verdict = verdict(&analysis, &parts.own_us, &transfers, &settings.verdict);
    missing(&parts, &analysis.communication, &unknown, &mut analysis.missing);
    analysis.summary = summarize(&analysis);
    analysis
}

/// The earliest moment by aligned clocks, at most 0.
fn origin(index: &Index<'_>, alignment: &Alignment) -> i64 {
    let first = |(row, offset): (usize, &i64)| {
        let event = index.rows[row].events.first().map(|event| event.start_ns);
        let step = index.windows[row].first().map(|window| window.start);
        Some(event.into_iter().chain(step).min()?.saturating_sub(*offset))
    };
    alignment.offsets.iter().enumerate().filter_map(first).min().unwrap_or_default().min(0)
}

/// Fills the figures of single steps, and returns the ranks without computation in their trace.
fn per_step(parts: &mut Parts<'_>, analysis: &mut Analysis) -> Vec<u32> {
    let index = &parts.index;
    let mut breakdown = breakdown::Collector::new(index);
    let mut overlap = overlap::Collector::new(index);
    let mut unknown = Vec::new();
    for row in 0..index.rows.len() {
        let computation = Computation::of(index.rows[row]);
        let knows_compute = computation != Computation::Unknown;
        if !knows_compute {
            unknown.push(index.ranks[row]);
        }
        activity::visit(index, row, &computation, |window, activity, events| {
            breakdown.add(row, window, (activity, events), parts.shift[row], knows_compute);
            overlap.add(row, window, activity, knows_compute);
        });
    }
    analysis.breakdown = breakdown.finish();
    (analysis.overlap, parts.own_us) = overlap.finish();
    unknown
}

fn communication(parts: &Parts<'_>, transfers: &[links::Transfer<'_>], analysis: &mut Analysis) {
    let Parts { index, matches, waits, .. } = parts;
    analysis.communication = communication::figures(index, matches, waits);
    let figures = &mut analysis.communication;
    (figures.links, figures.links_left_out) = links::links(index, transfers, links::LINKS_MAX);
}

/// Fills the pipeline, and the stage of each rank.
fn pipeline(parts: &Parts<'_>, analysis: &mut Analysis) {
    let Parts { index, matches, pairs, .. } = parts;
    let stage_of = stages::stages(index, matches, pairs);
    for (info, stage) in analysis.ranks.iter_mut().zip(&stage_of) {
        info.stage = Some(*stage);
    }
    let pipeline = &mut analysis.pipeline;
    pipeline.stages = stages::figures(index, &stage_of, &analysis.overlap);
    (pipeline.pairs, pipeline.pairs_left_out) = pairs.document(index, matches, &parts.shift, PAIRS_MAX);
    pipeline.unpaired = pairs.unpaired;
    pipeline.micro_batches = pairs.micro_batches;
}

fn rank_infos(trace: &Trace) -> Vec<RankInfo> {
    let info = |(rank, events): (&u32, &crate::model::RankTrace)| RankInfo {
        rank: *rank,
        host: events.host.clone(),
        device: events.device,
        stage: events.stage,
        flop_per_step: events.resources.flop_per_step,
        flop_per_second: events.resources.flop_per_second,
        peak_memory_bytes: events.resources.peak_memory_bytes,
        memory_capacity_bytes: events.resources.memory_capacity_bytes,
    };
    trace.ranks.iter().map(info).collect()
}

/// Adds what the trace lacks.
fn missing(
    parts: &Parts<'_>,
    communication: &crate::document::CommunicationFigures,
    unknown: &[u32],
    missing: &mut Vec<String>,
) {
    let index = &parts.index;
    missing.extend(index.missing.iter().cloned());
    if !unknown.is_empty() {
        let ranks = list(unknown);
        missing.push(format!("{ranks} recorded no computation: overlap and idle time are unknown."));
    }
    let lost: u64 = index.rows.iter().fold(0, |sum, row| sum.saturating_add(row.lost));
    if lost > 0 {
        let ranks = list(&index.ranks_where(|row| row.lost > 0));
        missing.push(format!("{ranks} lost {lost} records before they were stored: sums are too small."));
    }
    let steps = index.steps.len() as u64;
    if communication.steps < steps {
        let of = communication.steps;
        missing.push(format!("Communication was collected for {of} of {steps} steps: the others count as without it."));
    }
    if parts.matches.unmatched > 0 {
        missing.push(format!(
            "{} collectives have no other member in the trace: their waits are unknown and count as transfer.",
            parts.matches.unmatched
        ));
    }
    if parts.pairs.unpaired > 0 {
        missing.push(format!("{} sends and receives have no other side in the trace.", parts.pairs.unpaired));
    }
}

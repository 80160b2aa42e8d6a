//! From a trace to the document: runs all analysis functions in their order.

use crate::activity::{self, Computation};
use crate::clocks::{self, Alignment};
use crate::document::{Analysis, Incident, KernelFigures, RankInfo, Table, VERSION, Verdict};
use crate::hints::{Thresholds, hints};
use crate::index::{Index, list, moment_us};
use crate::matches::Matches;
use crate::model::{Kind, Trace};
use crate::pairing::{PAIRS_MAX, Pairs};
use crate::summary::summarize;
use crate::tables::{float, rounded};
use crate::timeline::{self, SPANS_MAX};
use crate::verdict::{VerdictRule, verdict};
use crate::waits::{self, Waits};
use crate::what_if::{Model, ModelError, attribute};
use crate::{breakdown, communication, critical_path, kernels, limits, links, overlap, stages};
use std::collections::BTreeSet;

/// What an analysis does beyond its defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Kinds of traces that were read, for [`Analysis::sources`].
    pub sources: Vec<String>,
    /// Incidents that the supervisor recorded, for the document. Their moments are on the trace's axis: the analysis moves
    /// them if the document's time zero is earlier.
    pub incidents: Vec<Incident>,
    /// Verdict about a hang, for example from the dumps of a flight recorder. If it blames a component, or the trace has
    /// no events, it precedes the verdict about slow components.
    pub hang: Option<Verdict>,
    /// Kernels of the ranks, from a reader that sees more than the trace's events have. Default: those of the events.
    pub kernels: Option<KernelFigures>,
    /// Thresholds of the hints.
    pub thresholds: Thresholds,
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
    /// Time that each rank itself needs per step, in microseconds.
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
        sources: settings.sources.clone(),
        began_unix_ns: trace.began_unix_ns.map(|began| began.saturating_add(origin)),
        ranks: rank_infos(&parts.index),
        steps: parts.index.steps.clone(),
        incidents: settings.incidents.iter().map(|incident| moved(incident, origin)).collect(),
        clocks: parts.alignment.document(&parts.index),
        ..Analysis::default()
    };
    analysis.missing = trace.missing.iter().map(|missing| missing.what.clone()).collect();
    let unknown = per_step(&mut parts, &mut analysis);
    let has_kernels = parts.index.rows.iter().all(|row| row.events.iter().any(|event| event.kind == Kind::Compute));
    let transfers = links::transfers(&parts.index, &parts.matches, &parts.pairs, &parts.waits);
    communication(&parts, &transfers, &mut analysis);
    let stages = pipeline(&parts, &mut analysis);
    analysis.timeline = timeline::timeline(&parts.index, &parts.matches, &stages, &parts.shift, SPANS_MAX);
    analysis.kernels = settings.kernels.clone().unwrap_or_else(|| kernels::figures(trace));
    analysis.critical_path = critical_path::paths(&parts.index, &parts.matches, &parts.pairs, &parts.shift);
    analysis.verdict = verdict(&analysis, &parts, &transfers, &settings.verdict, has_kernels);
    attribution(trace, &mut analysis);
    if let Some(hang) = settings.hang.as_ref().filter(|hang| !hang.is_healthy || trace.ranks.is_empty()) {
        let slow = std::mem::replace(&mut analysis.verdict, hang.clone());
        analysis.verdict.blamed.extend(slow.blamed);
        (analysis.verdict.judged_by, analysis.verdict.notes) = (slow.judged_by, slow.notes);
        analysis.verdict.agreements = slow.agreements;
    }
    analysis.hints = hints(&analysis, &settings.thresholds);
    analysis.limits = limits::limits(&analysis);
    missing(&parts, &analysis.communication, &unknown, &mut analysis.missing);
    analysis.summary = summarize(&analysis);
    analysis
}

/// Fills how much faster the job would run without each cause, and adds that of the blamed component to the verdict.
fn attribution(trace: &Trace, analysis: &mut Analysis) {
    let model = match Model::from_trace(trace) {
        Ok(model) => model,
        Err(ModelError::Empty) => return, // a trace without steps is reported already
        Err(why) => {
            analysis.missing.push(format!("Attribution (what if) was not computed: {why}."));
            return;
        }
    };
    let what_if = attribute(&model).what_if;
    // A link has its source first, a scenario the ranks in their order.
    let ordered = |ranks: &[u32]| ranks.iter().copied().collect::<BTreeSet<u32>>();
    if let Some(ranks) = analysis.verdict.blamed.first().map(|blame| ordered(&blame.ranks))
        && let Some(scenario) = what_if.scenarios.iter().find(|scenario| ordered(&scenario.ranks) == ranks)
        && scenario.speedup > 1.0
    {
        analysis.verdict.sentence += &format!(" Without it the job would run {:.2} times as fast.", scenario.speedup);
    }
    analysis.what_if = Some(what_if);
}

/// Returns an incident with its moment relative to the document's time zero.
fn moved(incident: &Incident, origin: i64) -> Incident {
    Incident { at_us: incident.at_us.saturating_sub(moment_us(origin)), ..incident.clone() }
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
            let host = [Kind::DataLoader, Kind::SaveCheckpoint].map(|kind| breakdown::length_of(events, kind));
            overlap.add(row, window, activity, &computation, host[0].saturating_add(host[1]));
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

/// Fills the pipeline and the stage of each rank, and returns the stage of each row.
fn pipeline(parts: &Parts<'_>, analysis: &mut Analysis) -> Vec<u32> {
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
    stage_of
}

/// Returns the ranks. What a trace implies is computed: operations per second from those of a step and the time of all
/// steps, the peak of memory from the samples.
fn rank_infos(index: &Index<'_>) -> Vec<RankInfo> {
    let info = |(row, rank): (usize, &u32)| {
        let events = index.rows[row];
        let resources = &events.resources;
        let windows = &index.windows[row];
        let busy_ns = windows.iter().fold(0u64, |sum, window| sum.saturating_add(window.end.abs_diff(window.start)));
        let per_second = |flop: f64| flop * float(windows.len() as u64) * 1e9 / float(busy_ns);
        let implied = resources.flop_per_step.filter(|_| busy_ns > 0 && !index.is_pseudo).map(per_second).map(rounded);
        RankInfo {
            rank: *rank,
            host: events.host.clone(),
            device: events.device,
            stage: events.stage,
            flop_per_step: resources.flop_per_step,
            flop_per_second: resources.flop_per_second.or(implied),
            peak_memory_bytes: resources.peak_memory_bytes.or(resources.memory.iter().map(|sample| sample.1).max()),
            memory_capacity_bytes: resources.memory_capacity_bytes,
        }
    };
    index.ranks.iter().enumerate().map(info).collect()
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
    let of = communication.steps;
    if of == 0 && index.ranks.len() > 1 && steps > 0 {
        missing.push(
            "The trace has no communication in its steps: waits, links and clock offsets are unknown.".to_owned(),
        );
    } else if 0 < of && of < steps {
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

#[cfg(test)]
mod tests {
    use super::{Settings, analyze};
    use crate::document::{Analysis, Incident, VERSION};
    use crate::model::{Communication, Event, Kind, Missing, NameId, RankTrace, StepSpan, Trace};
    use crate::synthetic::{Job, trace};
    use proptest::prelude::*;

    #[test]
    fn document_returns_from_json_unchanged() {
        let analysis = analyze(&trace(&Job { steps: 3, ..Job::default() }, 1), &Settings::default());
        let text = serde_json::to_string(&analysis).unwrap();
        assert_eq!(serde_json::from_str::<Analysis>(&text).unwrap(), analysis);
    }

    #[test]
    fn span_is_an_array_in_json() {
        let analysis = analyze(&trace(&Job { steps: 2, ..Job::default() }, 1), &Settings::default());
        let json = serde_json::to_value(&analysis).unwrap();
        let span = json["timeline"]["spans"][0][0].as_array().unwrap();
        assert_eq!(span.len(), 5);
        assert!(span.iter().all(serde_json::Value::is_number), "{span:?}");
        assert_eq!(json["version"], VERSION);
    }

    #[test]
    fn times_begin_at_the_earliest_moment() {
        let trace = trace(&Job { steps: 2, ..Job::default() }, 1);
        let analysis = analyze(&trace, &Settings::default());
        let starts: Vec<u64> = analysis.breakdown.start_us.iter().map(|row| row[0].unwrap()).collect();
        // All ranks began at one moment, before time zero of rank 0's clock or after it.
        assert!(starts.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= 1), "{starts:?}");
        let first = trace.ranks[&0].steps[0].start_ns;
        let began = analysis.began_unix_ns.unwrap() - trace.began_unix_ns.unwrap();
        assert_eq!((began, starts[0]), if first < 0 { (first, 0) } else { (0, first.unsigned_abs() / 1000) });
    }

    #[test]
    fn parts_of_readers_and_supervisors_are_passed_through() {
        let mut trace = trace(&Job { steps: 2, ..Job::default() }, 1);
        trace.missing.push(Missing { rank: Some(3), what: "The file of rank 3 is truncated.".to_owned() });
        trace.ranks.get_mut(&2).unwrap().lost = 12;
        let incident = Incident {
            at_us: 5,
            class: "exit".to_owned(),
            suspect: "rank 1".to_owned(),
            sentence: "Rank 1 exited with code 1.".to_owned(),
            evidence: Vec::new(),
        };
        let settings = Settings { incidents: vec![incident.clone()], ..Settings::default() };
        let analysis = analyze(&trace, &settings);
        let origin = analysis.began_unix_ns.unwrap() - trace.began_unix_ns.unwrap();
        assert_eq!(analysis.incidents, [Incident { at_us: 5 - origin.div_euclid(1000), ..incident }]);
        assert!(!analysis.verdict.is_healthy);
        assert!(analysis.verdict.sentence.contains("Rank 1 exited with code 1."), "{}", analysis.verdict.sentence);
        assert_eq!(analysis.missing[0], "The file of rank 3 is truncated.");
        assert!(analysis.missing.iter().any(|text| text.contains("Rank 2 lost 12 records")), "{:?}", analysis.missing);
    }

    #[test]
    fn rate_and_peak_are_computed_if_the_trace_implies_them() {
        let mut trace = trace(&Job { steps: 4, ..Job::default() }, 1);
        let recorded = analyze(&trace, &Settings::default()).ranks;
        for rank in trace.ranks.values_mut() {
            rank.resources.flop_per_second = None;
            rank.resources.peak_memory_bytes = None;
            rank.resources.memory = vec![(0, 5), (1, 9), (2, 7)];
        }
        let implied = analyze(&trace, &Settings::default()).ranks;
        assert!(implied[0].flop_per_second.is_some());
        for (implied, recorded) in implied.iter().zip(&recorded) {
            let ratio = implied.flop_per_second.unwrap() / recorded.flop_per_second.unwrap();
            assert!((ratio - 1.0).abs() < 1e-9, "{ratio}");
            assert_eq!(implied.peak_memory_bytes, Some(9));
        }
    }

    #[test]
    fn empty_trace_is_an_empty_document() {
        let analysis = analyze(&Trace::default(), &Settings::default());
        assert!(analysis.ranks.is_empty() && analysis.steps.is_empty() && analysis.critical_path.is_empty());
        assert_eq!(analysis.verdict.sentence, "The trace has no events: there is nothing to judge.");
    }

    const KINDS: [Kind; 6] =
        [Kind::Compute, Kind::Collective, Kind::Send, Kind::Receive, Kind::Forward, Kind::SaveCheckpoint];

    /// Any rank: times at the ends of the range, steps that overlap, references to nothing.
    fn rank() -> impl Strategy<Value = RankTrace> {
        let time = prop_oneof![Just(i64::MIN), Just(i64::MAX), -50i64..50];
        let length = prop_oneof![Just(u64::MAX), 0u64..40];
        let event = (time.clone(), length.clone(), 0usize..6, 0u32..3, prop::option::of(0u32..3));
        let step = (0u64..4, time, length);
        let details = (prop::option::of(0u32..3), prop::option::of(0u64..3), prop::option::of(0u32..4));
        let parts = (
            prop::collection::vec(event, 0..8),
            prop::collection::vec(step, 0..4),
            prop::collection::vec(details, 0..3),
        );
        parts.prop_map(|(events, steps, details)| {
            let event = |(start_ns, duration_ns, kind, lane, communication)| Event {
                start_ns,
                duration_ns,
                kind: KINDS[kind],
                lane,
                name: NameId(lane),
                communication,
            };
            let step = |(number, start_ns, duration_ns)| StepSpan { number, start_ns, duration_ns };
            let of_details =
                |(group, sequence, peer)| Communication { group, sequence, peer, ..Communication::default() };
            let mut rank = RankTrace {
                events: events.into_iter().map(event).collect(),
                steps: steps.into_iter().map(step).collect(),
                communications: details.into_iter().map(of_details).collect(),
                ..RankTrace::default()
            };
            rank.groups.resize_with(2, Default::default);
            rank.events.sort_by_key(|event| event.start_ns);
            rank
        })
    }

    proptest! {
        #[test]
        fn any_trace_gives_a_document(ranks in prop::collection::btree_map(0u32..4, rank(), 0..4)) {
            let analysis = analyze(&Trace { ranks, ..Trace::default() }, &Settings::default());
            prop_assert!(serde_json::to_string(&analysis).is_ok());
        }
    }
}

//! The verdict about a hang, from the dumps of all ranks.

use super::dump::{Dump, Entry};
use super::translate::{Translation, translate};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::time::Duration;
use taskd_core::detect::hang::{Culprit, HangCause, HangVerdict, RankReport, judge};
use taskd_core::job::Rank;

/// Maximum number of ranks that a sentence names.
const NAMED_MAX: usize = 8;
/// Maximum number of stack frames in a sentence: innermost first, without torch's own.
const FRAMES_SHOWN: usize = 4;
/// Maximum number of ranks for which stacks are shown.
const STACKS_SHOWN: usize = 4;

/// The result of [`evaluate`]. Its `Display` is the verdict in one sentence, followed by the evidence, one sentence a
/// line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlightVerdict {
    /// The ranks that cause the hang, or a disagreement, as the hang detector finds them.
    pub verdict: HangVerdict,
    /// The verdict in one sentence.
    pub summary: String,
    /// Facts that support the verdict, one sentence each: the stacks of the culprits, and the calls of the others.
    pub evidence: Vec<String>,
    /// Ranks that wrote no dump, although others did.
    pub missing: Vec<u32>,
    /// Reasons why the verdict may be incomplete, one sentence each.
    pub notes: Vec<String>,
}

impl fmt::Display for FlightVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary)?;
        for line in self.evidence.iter().chain(&self.notes) {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

/// Finds the ranks that cause a hang, from the dumps of all ranks.
///
/// `ranks` is the number of ranks of the job. Without it, ranks above the highest known one are not missed: gloo does
/// not record the members of its groups.
///
/// The dumps are taken as those of a hang: a call that has not completed counts as waiting, however short its age. The
/// dumps of a job that proceeds may therefore yield a rank that is only behind.
///
/// A call with an evicted record is not missing: the status of its group shows that it was made. gloo
/// leaves the state of all calls at `scheduled`, and records no sends or receives.
#[must_use]
pub fn evaluate(dumps: &[Dump], ranks: Option<u32>) -> FlightVerdict {
    let translation = translate(dumps, ranks);
    let mut verdict = judge(&translation.reports, Duration::ZERO);
    let mut notes = notes(dumps, &translation);
    let is_unknown = |culprit: &Culprit| {
        culprit.cause == HangCause::Missing && translation.evicted.contains(&(culprit.rank.0, culprit.group.clone()))
    };
    let unknown: Vec<Rank> = verdict.culprits.iter().filter(|culprit| is_unknown(culprit)).map(|c| c.rank).collect();
    let mut named_ranks = BTreeSet::new(); // a rank for which several groups wait is named once
    verdict.culprits.retain(|culprit| !is_unknown(culprit) && named_ranks.insert(culprit.rank));
    if !unknown.is_empty() {
        notes.push(format!(
            "the position of {} in a group that waits is not known: the records were evicted (increase \
             TORCH_FR_BUFFER_SIZE)",
            named(&unknown)
        ));
    }
    let dumps: BTreeMap<u32, &Dump> = dumps.iter().map(|dump| (dump.rank, dump)).collect();
    let mut evidence = stacks(&dumps, &translation, &verdict);
    evidence.extend(waiting(&translation.reports, &dumps));
    if !translation.missing.is_empty() && !dumps.is_empty() {
        let missing: Vec<Rank> = translation.missing.iter().copied().map(Rank).collect();
        evidence.push(format!("{} wrote no dump", named(&missing)));
    }
    FlightVerdict { summary: summary(&verdict, &dumps), evidence, missing: translation.missing, notes, verdict }
}

/// States the verdict in one sentence.
fn summary(verdict: &HangVerdict, dumps: &BTreeMap<u32, &Dump>) -> String {
    if dumps.is_empty() {
        return "there is no dump".to_owned();
    }
    if let Some(first) = verdict.culprits.first() {
        let others: Vec<Rank> = verdict.culprits.iter().skip(1).map(|culprit| culprit.rank).collect();
        let also = if others.is_empty() { String::new() } else { format!("; likewise {}", named(&others)) };
        return format!("{first}{also}");
    }
    match &verdict.dispute {
        Some(dispute) => dispute.to_string(),
        None if verdict.is_stuck => {
            "all ranks with a dump have made the same call, and wait in it: the cause is in the network, a device or a \
             kernel, or a rank whose existence is not known from the dumps"
                .to_owned()
        }
        None => "no collective is in progress".to_owned(),
    }
}

/// Returns the Python stack of the call that each culprit made last.
fn stacks(dumps: &BTreeMap<u32, &Dump>, translation: &Translation<'_>, verdict: &HangVerdict) -> Vec<String> {
    let mut lines = Vec::new();
    for culprit in verdict.culprits.iter().take(STACKS_SHOWN) {
        let rank = culprit.rank;
        let Some(dump) = dumps.get(&rank.0) else { continue };
        let exchanged = translation.exchanged.get(&(rank.0, culprit.group.clone(), culprit.sequence)).copied();
        let is_its = |entry: &&Entry| entry.collective_seq == culprit.sequence && !entry.is_p2p;
        let is_other = matches!(culprit.cause, HangCause::Skipped | HangCause::Mismatch);
        let made = exchanged.or_else(|| dump.entries.iter().rfind(|entry| is_other && is_its(entry)));
        match made.or(dump.entries.last()) {
            Some(entry) => {
                let from = frames(entry).map(|frames| format!(", called from {frames}")).unwrap_or_default();
                let when = if entry.is_pending() { "is in" } else { "was last in" };
                lines.push(format!("{rank} {when} {}, number {}{from}", entry.name, entry.collective_seq));
            }
            None => lines.push(format!("{rank} has recorded no call")),
        }
    }
    lines
}

/// Describes, for each call in which ranks wait, the ranks that are in it, with the stack of the first one.
fn waiting(reports: &[RankReport], dumps: &BTreeMap<u32, &Dump>) -> Vec<String> {
    let mut calls: BTreeMap<(&str, u64, String), Vec<Rank>> = BTreeMap::new();
    for report in reports {
        for position in report.groups.iter().flatten() {
            for call in position.recent.iter().filter(|call| call.is_pending) {
                let form = match call.elements {
                    0 => call.operation.clone(),
                    elements => format!("{} of {elements} {}", call.operation, call.data_type),
                };
                calls.entry((&position.group, call.sequence, form)).or_default().push(report.rank);
            }
        }
    }
    let mut lines = Vec::new();
    for ((group, sequence, form), ranks) in calls.into_iter().take(NAMED_MAX) {
        let Some(rank) = ranks.first() else { continue };
        let entry = |rank: &Rank| {
            let mut entries = dumps.get(&rank.0)?.entries.iter();
            entries.rfind(|entry| entry.collective_seq == sequence && entry.is_pending() && !entry.is_p2p)
        };
        let from = entry(rank).and_then(frames).map(|from| format!(", called from {from}")).unwrap_or_default();
        let mut line = format!("{} in {form}, number {sequence} of group {group}{from}", named(&ranks));
        // Only where a device reports starts, a call that has not started waits behind something else on the device.
        let has_started = |rank: &Rank| entry(rank).is_some_and(|entry| *entry.state == *"started");
        let queued: Vec<Rank> = ranks.iter().copied().filter(|rank| !has_started(rank)).collect();
        if queued.len() < ranks.len() && !queued.is_empty() {
            let _ =
                write!(line, "; it has not started on the device of {}: it waits behind other work", named(&queued));
        }
        lines.push(line);
    }
    lines
}

/// Formats the stack of a call, innermost function first, without the functions of torch.
fn frames(entry: &Entry) -> Option<String> {
    let own = entry.frames.iter().filter(|frame| !frame.file.contains("/torch/"));
    let texts: Vec<String> = own
        .take(FRAMES_SHOWN)
        .map(|frame| {
            let file = frame.file.rsplit('/').next().unwrap_or_default();
            format!("{} ({file}:{})", frame.function, frame.line)
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join(" < "))
}

/// States what the dumps do not contain.
fn notes(dumps: &[Dump], translation: &Translation<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let left_out: u64 = dumps.iter().map(|dump| dump.left_out).sum();
    if left_out > 0 {
        notes.push(format!(
            "{left_out} records or parts of records were not read: they exceed a limit or are malformed"
        ));
    }
    if translation.from_any > 0 {
        notes.push(format!(
            "{} sends or receives in progress have no known peer (receives from any source): they are not judged",
            translation.from_any
        ));
    }
    notes
}

/// Formats ranks, for people: `ranks 0, 1 and 3`.
fn named(ranks: &[Rank]) -> String {
    let shown: Vec<String> = ranks.iter().take(NAMED_MAX).map(|rank| rank.0.to_string()).collect();
    match shown.split_last() {
        None => "no rank".to_owned(),
        Some((only, [])) => format!("rank {only}"),
        Some(_) if ranks.len() > NAMED_MAX => {
            format!("ranks {} and {} more", shown.join(", "), ranks.len() - NAMED_MAX)
        }
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

//! Values that are not as usual in successive rounds, of one metric and kind, and what is reported of them.
//!
//! It compares no values: the rounds contain the verdicts.

use super::rounds::Judged;
use super::series::Verdict;
use super::{ADVICE, NAME, NumericalDetector};
use crate::detect::{Damage, Evidence, Fault, Findings, Health, Suspect};
use crate::job::{Domain, JobTime, Name, Rank, Role};
use crate::state::View;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of rounds in a row as usual after which a fault is withdrawn.
const CLEAR_ROUNDS: u32 = 16;

/// Minimum number of ranks in a round for a comparison: of two, neither is in the majority.
const COMPARED_RANKS_MIN: usize = 3;

/// The part of the ranks, as 1 / n, that may have such a value in the same round while one rank is blamed for having
/// had them for long: some ranks have hard batches at any time.
const OTHERS_PART: usize = 4;

/// Minimum number of rounds between two notes about short spikes.
const NOTE_ROUNDS: u64 = 64;

/// Maximum number of ranks that a text names.
const NAMED_MAX: usize = 4;

/// Confidence for the only rank with unusual values: its device, its memory or its data may be the reason.
const ALONE_PERMILLE: u16 = 700;

/// Damage of ranks with unusual values: they train. Checksums watch their state.
const TRAINS: Damage =
    Damage { process: Health::Healthy, state: Health::Healthy, device: Health::Unknown, program: Health::Unknown };

/// Kind of values that are not as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    NotFinite,
    Spike,
}

/// A metric, as it is called in the findings.
#[derive(Clone, Debug)]
pub(super) struct Metric {
    /// Name in the signals, such as `loss`.
    pub(super) name: Name,
    /// Name in sentences.
    pub(super) words: &'static str,
    /// Number of steps that the gradient scaler of a rank has skipped so far.
    pub(super) skipped: u64,
}

/// Values of one kind in successive rounds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Run {
    /// Number of rounds in a row in which a rank had such a value, and the time of the first, by rank.
    in_row: BTreeMap<u32, (u32, JobTime)>,
    /// The domain that was reported and not withdrawn: a rank, or the job.
    reported: Option<Option<u32>>,
    /// Number of rounds since then in which the reported domain was as usual.
    usual: u32,
    /// Number of the round of the last note, and number of rounds since then that no note mentions.
    noted: Option<u64>,
    unmentioned: u64,
}

impl Run {
    /// Adds the next round. `limit` rounds in a row on one rank are a fault; fewer are mentioned in a note. Returns
    /// true if a fault of the whole job was withdrawn.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        metric: &Metric,
        judged: &Judged,
        limit: u32,
        view: &View,
        out: &mut Findings,
    ) -> bool {
        let is_of_kind = |verdict: &Verdict| matches!(verdict, Verdict::NotFinite) == (kind == Kind::NotFinite);
        let of_kind = judged.conspicuous.iter().filter(|(_, (_, verdict))| is_of_kind(verdict));
        let hits: Vec<Hit> =
            of_kind.map(|(rank, (value, verdict))| Hit { rank: *rank, value: *value, verdict: *verdict }).collect();
        self.in_row.retain(|rank, _| hits.iter().any(|hit| hit.rank == *rank));
        for hit in &hits {
            let (rounds, _) = self.in_row.entry(hit.rank).or_insert((0, judged.at));
            *rounds = rounds.saturating_add(1);
        }
        if let Some(reported) = self.reported {
            return self.watch(reported, kind, judged, &hits, out);
        }
        if hits.is_empty() {
            return false;
        }
        let lasting: Vec<(u32, JobTime)> =
            self.in_row.iter().filter(|(_, (rounds, _))| *rounds >= limit).map(|(rank, row)| (*rank, row.1)).collect();
        let rounds = self.in_row.values().map(|row| row.0).max().unwrap_or_default();
        let evidence = evidence(kind, metric, judged, &hits, rounds);
        let Some(since) = lasting.iter().map(|(_, since)| *since).min() else {
            self.note(judged.number, evidence, out);
            return false;
        };
        let is_alone = judged.is_comparable
            && judged.ranks.len() >= COMPARED_RANKS_MIN
            && hits.len() <= (judged.ranks.len() / OTHERS_PART).max(1);
        let alone = match lasting.as_slice() {
            [(rank, _)] if is_alone => Some(*rank),
            _ => None,
        };
        (self.reported, self.usual) = (Some(alone), 0);
        let advice = Evidence::text(ADVICE, advice(kind, alone, judged));
        out.blame(fault(alone, since, view).with_evidence(evidence).with_evidence(advice));
        false
    }

    /// Withdraws the reported fault after enough rounds in which its domain is as usual.
    fn watch(&mut self, reported: Option<u32>, kind: Kind, judged: &Judged, hits: &[Hit], out: &mut Findings) -> bool {
        let is_usual = match reported {
            Some(rank) => hits.iter().all(|hit| hit.rank != rank),
            None if kind == Kind::NotFinite => hits.is_empty(),
            None => hits.len() * 2 < judged.ranks.len(), // single ranks have hard batches
        };
        self.usual = if is_usual { self.usual.saturating_add(1) } else { 0 };
        if self.usual < CLEAR_ROUNDS {
            return false;
        }
        self.reported = None;
        self.in_row.clear();
        out.clear(domain(reported), NumericalDetector::NUMERICAL);
        reported.is_none()
    }

    fn note(&mut self, round: u64, mut evidence: Evidence, out: &mut Findings) {
        if self.noted.is_some_and(|noted| round < noted.saturating_add(NOTE_ROUNDS)) {
            self.unmentioned = self.unmentioned.saturating_add(1);
            return;
        }
        if self.unmentioned > 0 {
            evidence.text = format!("{} ({} more reports since the last note)", evidence.text, self.unmentioned);
        }
        (self.noted, self.unmentioned) = (Some(round), 0);
        out.note(Domain::Job, evidence);
    }
}

/// A value of one rank that is not as usual.
#[derive(Clone, Copy, Debug)]
struct Hit {
    rank: u32,
    value: f64,
    verdict: Verdict,
}

/// A fault of the only rank with such values, or of the job, which blames no rank.
fn fault(alone: Option<u32>, since: JobTime, view: &View) -> Fault {
    let (class, onset, domain) = (NumericalDetector::NUMERICAL, since.min(view.now), domain(alone));
    if alone.is_none() {
        return Fault::new(NAME, onset, Suspect::victim(domain, class, TRAINS));
    }
    let of = view.proc_of(&domain).map(|proc| proc.incarnation);
    Fault::new(NAME, onset, Suspect::new(domain, class, TRAINS, ALONE_PERMILLE)).with_incarnation(of)
}

fn domain(rank: Option<u32>) -> Domain {
    rank.map_or(Domain::Job, |rank| Domain::Process(Role::Rank(Rank(rank))))
}

fn evidence(kind: Kind, metric: &Metric, judged: &Judged, hits: &[Hit], rounds: u32) -> Evidence {
    let what = match kind {
        Kind::NotFinite => format!("{}_not_finite", metric.name),
        Kind::Spike => format!("{}_spike", metric.name),
    };
    let is_hit = |rank: &u32| hits.iter().any(|hit| hit.rank == *rank);
    let peers: Vec<Rank> = judged.ranks.iter().filter(|rank| !is_hit(rank)).map(|rank| Rank(*rank)).collect();
    let usual = hits.first().and_then(|hit| if let Verdict::Spike(usual) = hit.verdict { Some(usual) } else { None });
    let value = hits.first().map_or(f64::NAN, |hit| hit.value);
    Evidence::figure(what, value, usual, sentence(kind, metric, judged, hits, rounds)).with_peers(peers)
}

fn sentence(kind: Kind, metric: &Metric, judged: &Judged, hits: &[Hit], rounds: u32) -> String {
    let one = |hit: &Hit| match hit.verdict {
        Verdict::Spike(usual) => format!("rank {}: {:.4}, usually {usual:.4}", hit.rank, hit.value),
        _ => format!("rank {}: {}", hit.rank, hit.value),
    };
    let named: Vec<String> = hits.iter().take(NAMED_MAX).map(one).collect();
    let more = if hits.len() > NAMED_MAX { "; …" } else { "" };
    let is = match kind {
        Kind::NotFinite => "is NaN or infinite",
        Kind::Spike => "is far above its usual value",
    };
    let in_a_row = if rounds > 1 { format!(", {rounds} reports in a row") } else { String::new() };
    let (hit, all, named) = (hits.len(), judged.ranks.len(), named.join("; "));
    let when = if judged.is_step { "at step" } else { "in report" };
    let skipped = match metric.skipped {
        0 => String::new(),
        steps => format!("; the gradient scaler skips such steps, {steps} so far"),
    };
    let number = judged.number;
    format!("the {} {is} on {hit} of {all} ranks {when} {number}{in_a_row} ({named}{more}){skipped}", metric.words)
}

/// Returns what to do, in one sentence.
fn advice(kind: Kind, alone: Option<u32>, judged: &Judged) -> String {
    let before = if judged.is_step { format!("step {}", judged.number) } else { "that step".to_owned() };
    match (kind, alone) {
        (Kind::NotFinite, Some(rank)) => format!(
            "look at the batch of rank {rank} in that step, then at its device; parameters may be damaged on all ranks by \
             now: continue from a checkpoint before {before}, without that batch"
        ),
        (Kind::NotFinite, None) => format!(
            "parameters may be damaged on all ranks: continue from a checkpoint before {before}, with a lower learning \
             rate, clipped gradients or without the batch"
        ),
        (Kind::Spike, Some(rank)) => {
            format!("compare the data of rank {rank} with that of the other ranks, then look at its device")
        }
        (Kind::Spike, None) => format!(
            "if the loss does not fall again, continue from a checkpoint before {before}, with other batches or a lower \
             learning rate"
        ),
    }
}

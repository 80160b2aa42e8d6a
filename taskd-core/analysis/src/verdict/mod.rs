//! The verdict on a run from its trace: which component is slow, why, since when, and what was ruled out.
//!
//! The judgement is that of the fail-slow engine, which judges running jobs, too ([`rows`], [`judge`], [`case`]). Two
//! rules judge what the engine cannot see, and the verdict names the one that judged: `peers` slow-downs that begin before
//! the engine has learned the usual times, above all traces of a few steps ([`peers`], [`few`]), and `links` single links, of
//! which the engine gets no transfers ([`links`]).
//!
//! A stage that is slower than another, a job that becomes slower on all ranks, and lengths that vary from step to step
//! have no culprit.

mod agreement;
mod case;
mod few;
mod judge;
mod links;
mod next;
mod peers;
mod rows;
mod series;
#[cfg(test)]
mod tests;
mod text;

use crate::analyze::Parts;
use crate::document::{Analysis, Blame, EvidenceItem, Table, Verdict};
use crate::links::Transfer;
use crate::tables::{cell, rounded};
use case::Case;
use judge::Judgement;
use rows::Job;
use series::Onset;
use std::collections::BTreeSet;
use taskd_kernel::detect::fail_slow::Component;

/// Maximum number of blamed components in the document.
const BLAMED_MAX: usize = 8;
/// Maximum number of slow-downs without a blamed component in the document.
const NOTES_MAX: usize = 8;
/// Confidence, in permille, in a judgement on a few steps at most.
const FEW_STEPS_PERMILLE: u16 = 500;
/// Names of the rules in [`Blame::judged_by`].
const BY_ENGINE: &str = "fail-slow";
const BY_PEERS: &str = "peers";
const BY_LINKS: &str = "links";

/// Thresholds of the rules for what the fail-slow engine cannot see. The engine has its own.
#[derive(Clone, Debug, PartialEq)]
pub struct VerdictRule {
    /// Excess of a rank's own time over its peers, in percent, from which it is slow; default 10.
    pub rank_percent: f64,
    /// Excess of a link's transfer time over equal transfers, in percent, from which it is slow; default 40.
    pub link_percent: f64,
    /// Excess transfer time of a link, in percent of the step, from which it matters; default 1.
    pub link_of_step_percent: f64,
    /// Number of steps over which a component must be slow; default 5. In a trace with at most as many steps, only a rank
    /// that stands out from its peers in each of them is blamed.
    pub steps_min: usize,
    /// Number of steps with a checkpoint over which its writing must be slow; default 2.
    pub checkpoints_min: usize,
    /// Share of the excess for which the peers must wait; default 0.5.
    pub waited_share: f64,
}

impl Default for VerdictRule {
    fn default() -> VerdictRule {
        VerdictRule {
            rank_percent: 10.0,
            link_percent: 40.0,
            link_of_step_percent: 1.0,
            steps_min: 5,
            checkpoints_min: 2,
            waited_share: 0.5,
        }
    }
}

/// Why a component is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Rank,
    Input,
    Checkpoint,
}

/// A rank that is slower than its peers.
#[derive(Clone, Debug)]
struct SlowRank {
    row: usize,
    cause: Cause,
    onset: Onset,
    /// Own time of the rank and of its peers in the affected steps: medians in microseconds.
    own_us: f64,
    peers_us: f64,
    /// Mean time for which a peer waits in an affected step, beyond the rank's own waits, in microseconds.
    waited_us: f64,
}

/// Returns the verdict. `has_kernels`: true if all ranks have kernels in the trace.
pub(crate) fn verdict(
    analysis: &Analysis,
    parts: &Parts<'_>,
    transfers: &[Transfer<'_>],
    rule: &VerdictRule,
    has_kernels: bool,
) -> Verdict {
    let job = Job::new(parts, analysis);
    let judgement = judge::judge(&job);
    let (mut blamed, mut notes) = of_engine(&job, &judgement, analysis);
    let known: BTreeSet<u32> = blamed.iter().flat_map(|blame| blame.ranks.iter().copied()).collect();
    let mut by_peers = of_peers(&judgement, analysis, &parts.own_us, rule, &known);
    by_peers.truncate(if has_kernels { BLAMED_MAX } else { 1 });
    blamed.extend(by_peers);
    let slow: BTreeSet<u32> =
        blamed.iter().filter(|blame| blame.cause != "slow-link").flat_map(|b| b.ranks.clone()).collect();
    of_links(links::slow_links(analysis, transfers, &slow, rule), &mut blamed);
    blamed.truncate(BLAMED_MAX);
    for blame in &mut blamed {
        let column = blame.onset_step.and_then(|step| analysis.steps.binary_search(&step).ok());
        blame.began_us = column.and_then(|column| began(analysis, column));
        blame.next = next::actions(&blame.cause).iter().map(|&action| action.to_owned()).collect();
    }
    if judgement.unreported > 0 {
        notes.push(format!("{} further slow-downs were not reported: too many were in force.", judgement.unreported));
    }
    notes.truncate(NOTES_MAX);
    let sentence = text::sentence(analysis, &blamed, &notes, rule, judgement.learned_at.is_some());
    let is_healthy = blamed.is_empty() && analysis.incidents.is_empty();
    let agreements = agreement::agreements(&analysis.incidents, &blamed);
    let judged_by = text::judged_by(analysis, &job, &judgement);
    Verdict { sentence, is_healthy, blamed, judged_by, notes, agreements }
}

/// Returns the blames of the engine, the largest slow-down first, and its verdicts that blame no component.
fn of_engine(job: &Job, judgement: &Judgement, analysis: &Analysis) -> (Vec<Blame>, Vec<String>) {
    let (mut blamed, mut notes): (Vec<Blame>, Vec<String>) = (Vec::new(), Vec::new());
    for found in &judgement.found {
        let Some(case) = Case::new(job, analysis, found) else { continue };
        if found.verdict.cause.is_blame() && found.verdict.component != Component::Job {
            blamed.push(case.blame());
        } else {
            let note = text::note(&case.component(), &found.verdict, found.until);
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    blamed.sort_by(|a, b| b.slowdown_percent.total_cmp(&a.slowdown_percent));
    (blamed, notes)
}

/// Returns the ranks and hosts that were slow before the engine knew the usual times, the largest slow-down first.
fn of_peers(
    judgement: &Judgement,
    analysis: &Analysis,
    own_us: &Table,
    rule: &VerdictRule,
    known: &BTreeSet<u32>,
) -> Vec<Blame> {
    let is_few = analysis.steps.len() <= rule.steps_min;
    let mut slow = match is_few {
        true => few::outliers(analysis, own_us, rule),
        false => peers::slow_ranks(analysis, own_us, rule),
    };
    let is_unseen = |slow: &SlowRank| {
        let step = analysis.steps.get(slow.onset.first).copied();
        judgement.learned_at.is_none_or(|learned| step.is_some_and(|step| step <= learned))
    };
    slow.retain(|slow| is_unseen(slow) && !known.contains(&analysis.ranks[slow.row].rank));
    let mut blamed = text::blame_ranks(analysis, &slow);
    for blame in &mut blamed {
        blame.judged_by = BY_PEERS.to_owned();
        if is_few {
            blame.confidence_permille = blame.confidence_permille.min(FEW_STEPS_PERMILLE);
        }
    }
    blamed.sort_by(|a, b| b.slowdown_percent.total_cmp(&a.slowdown_percent));
    blamed
}

/// Adds slow links. A link inside of a blamed group replaces the group: the engine gets no transfers of single links.
fn of_links(mut links: Vec<Blame>, blamed: &mut Vec<Blame>) {
    links.sort_by(|a, b| b.slowdown_percent.total_cmp(&a.slowdown_percent));
    for mut link in links {
        BY_LINKS.clone_into(&mut link.judged_by);
        let contains =
            |blame: &Blame| blame.cause == link.cause && link.ranks.iter().all(|rank| blame.ranks.contains(rank));
        match blamed.iter().position(contains).filter(|at| blamed[*at].judged_by == BY_ENGINE) {
            Some(at) => {
                let group = blamed.remove(at);
                let text = format!("The transfers of {} became longer, which has this link.", group.component);
                let what = "slow group".to_owned();
                link.evidence.push(EvidenceItem { what, value: None, usual: None, text });
                link.evidence.extend(group.evidence);
                (link.compared, link.compared_by, link.ruled_out) =
                    (group.compared, group.compared_by, group.ruled_out);
                blamed.insert(at, link);
            }
            None => blamed.push(link),
        }
    }
}

/// Returns the moment at which the first rank began a step.
fn began(analysis: &Analysis, column: usize) -> Option<i64> {
    let starts = (0..analysis.ranks.len()).filter_map(|row| cell(&analysis.breakdown.start_us, row, column));
    starts.min().and_then(|start| i64::try_from(start).ok())
}

fn evidence(what: &str, value: f64, usual: Option<f64>, text: String) -> EvidenceItem {
    EvidenceItem { what: what.to_owned(), value: Some(rounded(value)), usual: usual.map(rounded), text }
}

/// Confidence in permille from the number of affected steps and their share that exceeds the threshold.
fn confidence(onset: &Onset) -> u16 {
    let steps = (onset.end - onset.first).min(20) as f64;
    let permille = 1000.0 * onset.share * (1.0 - 1.0 / (1.0 + steps));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
    let permille = permille.clamp(0.0, 1000.0) as u16;
    permille
}

/// A blame of one component.
fn blame(component: String, ranks: Vec<u32>, cause: &str, step: Option<u64>, percent: f64, onset: &Onset) -> Blame {
    Blame {
        component,
        ranks,
        cause: cause.to_owned(),
        onset_step: step,
        slowdown_percent: rounded(percent),
        confidence_permille: confidence(onset),
        ..Blame::default()
    }
}

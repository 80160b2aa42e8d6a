//! Runs the fail-slow engine over the steps of a trace, as the detector of a running job does.

use super::rows::{Era, Job};
use taskd_kernel::detect::fail_slow::{Change, FailSlow, Verdict};

/// A verdict of the engine, and how long it was in force.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) verdict: Verdict,
    /// Index of the part of the run between two restarts.
    pub(super) era: usize,
    /// Last step for which the component was slow; `None`: until the end of the trace.
    pub(super) until: Option<u64>,
}

/// What the engine found.
#[derive(Clone, Debug, Default)]
pub(super) struct Judgement {
    pub(super) found: Vec<Found>,
    /// Number of the last step from which the engine learned in the first part of the run; `None`: it learned in none, and
    /// judged nothing.
    pub(super) learned_at: Option<u64>,
    /// Number of steps that the engine judged.
    pub(super) judged: u64,
    /// Number of slow-downs beyond the engine's limit.
    pub(super) unreported: u64,
}

/// Judges all steps of a job.
pub(super) fn judge(job: &Job) -> Judgement {
    let mut judgement = Judgement::default();
    for (index, era) in job.eras.iter().enumerate() {
        judge_era(job, index, era, &mut judgement);
    }
    judgement
}

fn judge_era(job: &Job, index: usize, era: &Era, judgement: &mut Judgement) {
    let mut engine = FailSlow::new(job.layout.clone());
    let is_last = index + 1 == job.eras.len();
    let first = judgement.found.len();
    let mut before = None;
    for (step, rows) in era {
        if engine.is_learned() {
            judgement.judged += 1;
            judgement.learned_at = judgement.learned_at.or(before);
        }
        let changes = engine.step(*step, rows);
        for change in &changes {
            if let Change::Cleared { component, cause } = change {
                let is_it = |found: &&mut Found| {
                    found.verdict.component == *component && found.verdict.cause == *cause && found.until.is_none()
                };
                let Some(old) = judgement.found[first..].iter_mut().rev().find(is_it) else { continue };
                old.until = before.or(Some(*step));
                let ranks = old.verdict.ranks.clone();
                // A verdict on a larger component replaces the one on its part: it was the same slow-down.
                let is_replaced = changes.iter().any(
                    |change| matches!(change, Change::Found(new) if ranks.iter().all(|rank| new.ranks.contains(rank))),
                );
                if is_replaced {
                    let at = judgement.found[first..].iter().rposition(|found| found.verdict.ranks == ranks);
                    if let Some(at) = at {
                        judgement.found.remove(first + at);
                    }
                }
            }
        }
        let new = changes.into_iter().filter_map(|change| match change {
            Change::Found(verdict) => Some(Found { verdict, era: index, until: None }),
            Change::Cleared { .. } => None,
        });
        judgement.found.extend(new);
        before = Some(*step);
    }
    if !is_last {
        let open = judgement.found[first..].iter_mut().filter(|found| found.until.is_none());
        open.for_each(|found| found.until = before);
    }
    judgement.unreported += engine.unreported();
}

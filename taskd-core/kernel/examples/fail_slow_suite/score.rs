//! Runs detectors over simulated jobs and compares their verdicts with what was injected.

use crate::rivals::Rivals;
use crate::sim::{Job, Kind, Random};
use std::collections::BTreeMap;
use taskd_kernel::detect::fail_slow::{Change, Component, FailSlow};

/// Steps after the onset within which a fault must be found.
pub const HORIZON: u64 = 150;

/// Verdicts of one detector on one job.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// A component was blamed that is not at fault.
    pub false_blames: Vec<String>,
    /// A part of the faulty component, or the component with another cause, was named first.
    pub is_partial: bool,
    /// Steps from the onset to the right verdict, at least one.
    pub delay: Option<u64>,
    /// Steps between the true and the reported onset.
    pub onset_error: Option<u64>,
    /// Verdicts that blame no component.
    pub reports: Vec<String>,
}

/// Result of one job.
#[derive(Clone, Debug)]
pub struct Result {
    pub seed: u64,
    pub kind: Kind,
    pub excess: f32,
    pub has_fault: bool,
    pub outcomes: BTreeMap<&'static str, Outcome>,
}

/// Runs the engine, and the rivals if `with_rivals`, over the job.
pub fn run(mut job: Job, seed: u64, with_rivals: bool) -> Result {
    let injected = job.injected.clone();
    let faulty = job.faulty().to_vec();
    let mut engine = FailSlow::new(job.layout.clone());
    let mut rivals = with_rivals.then(|| Rivals::new(&job.layout));
    let mut ours = Outcome::default();
    let first = injected.onset.max(26); // nothing can be found before the usual values are known
    let mut blamed: Vec<(&'static str, u64, u32)> = Vec::new();
    let mut step = 0;
    while let Some(rows) = job.next() {
        step += 1;
        for change in engine.step(step, rows) {
            let Change::Found(verdict) = change else { continue };
            if !verdict.cause.is_blame() {
                ours.reports.push(format!(
                    "step {step}: {:?} {:?} {:.0} %",
                    verdict.component, verdict.cause, verdict.slowdown_percent
                ));
                continue;
            }
            let is_right = injected.expected.as_ref() == Some(&(verdict.component.clone(), verdict.cause));
            let is_part = step >= injected.onset
                && !faulty.is_empty()
                && verdict.component != Component::Job
                && verdict.ranks.iter().all(|rank| faulty.contains(rank));
            if is_right && step >= injected.onset {
                ours.delay.get_or_insert(step + 1 - first.min(step));
                ours.onset_error.get_or_insert(verdict.onset_step.abs_diff(injected.onset));
            } else if is_part {
                ours.is_partial = true;
            } else {
                let figures: Vec<&str> = verdict.evidence.iter().map(|clue| clue.text.as_str()).take(3).collect();
                let what = format!(
                    "step {step}: {:?} {:?} {:.0} %: {figures:?}",
                    verdict.component, verdict.cause, verdict.slowdown_percent
                );
                ours.false_blames.push(what);
            }
        }
        if let Some(rivals) = &mut rivals {
            blamed.extend(rivals.step(rows).into_iter().map(|(name, rank)| (name, step, rank)));
        }
    }
    let mut outcomes = BTreeMap::from([("fail-slow", ours)]);
    if with_rivals {
        for name in Rivals::NAMES {
            let mut outcome = Outcome::default();
            for (_, step, rank) in blamed.iter().filter(|(by, ..)| *by == name) {
                if *step >= injected.onset && faulty.contains(rank) {
                    outcome.delay.get_or_insert(step + 1 - first.min(*step));
                } else {
                    outcome.false_blames.push(format!("step {step}: rank {rank}"));
                }
            }
            outcomes.insert(name, outcome);
        }
    }
    let has_fault = injected.expected.is_some();
    Result { seed, kind: injected.kind, excess: injected.excess, has_fault, outcomes }
}

/// Figures of one detector over many jobs.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub jobs: u32,
    pub jobs_with_false_blame: u32,
    pub faults: u32,
    pub missed: u32,
    pub partial: u32,
    delays: Vec<u64>,
}

impl Figures {
    /// Adds a result. A detector that knows no other causes is judged on slow ranks and hosts only.
    pub fn add(&mut self, result: &Result, outcome: &Outcome, only_computation: bool) {
        self.jobs += 1;
        self.jobs_with_false_blame += u32::from(!outcome.false_blames.is_empty());
        let is_judged = !only_computation || matches!(result.kind, Kind::SlowRank | Kind::SlowHost);
        if !result.has_fault || !is_judged {
            return;
        }
        self.faults += 1;
        match outcome.delay.filter(|delay| *delay <= HORIZON) {
            Some(delay) => self.delays.push(delay),
            None if outcome.is_partial => self.partial += 1,
            None => self.missed += 1,
        }
    }

    /// Returns the delay that this share of the found faults does not exceed, in steps.
    pub fn delay(&self, share: f64) -> Option<u64> {
        let mut delays = self.delays.clone();
        delays.sort_unstable();
        delays.get(((delays.len() as f64 * share).ceil() as usize).saturating_sub(1)).copied()
    }
}

/// A kind of job for this seed: faults in equal shares, or the shares of the field.
pub fn job(seed: u64, in_the_field: bool, ranks_max: u32) -> Job {
    let mut random = Random::new(seed ^ 0xFEED);
    let kind = if in_the_field { Kind::in_the_field(&mut random) } else { Kind::FAULTS[random.below(8) as usize] };
    Job::new(kind, ranks_max, seed)
}

//! The injected and the reported faults of each trial, and how often the report was right.
//!
//! It only counts and prints.

use super::inject::Injection;
use super::trial::{Found, Observed};
use crate::clock::millis;
use crate::program;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use taskd_core::job::Domain;

/// The verdict of one trial, and what was injected.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The injected fault.
    pub injected: Injection,
    /// The rank into which it was injected.
    pub victim: Option<u32>,
    /// The ranks that were blamed.
    pub blamed: BTreeSet<u32>,
    /// True if exactly the victim was blamed, for the injected fault.
    pub correct: bool,
    /// The reported cause: `slow`, `slow-input`, `slow-checkpoint`, `frozen`, `skipped`, `mismatched`, else the class of the fault; `none` for no fault.
    pub cause: String,
    /// The first affected step according to the detector, counted from the injection.
    pub onset_step: Option<i64>,
    /// Steps from the injection to the verdict.
    pub detected_after_steps: Option<u64>,
    /// Milliseconds from the injection to the verdict.
    pub detected_ms: Option<f64>,
    /// The evidence, one sentence each.
    pub evidence: Vec<String>,
}

impl Verdict {
    /// Returns the verdict of a trial.
    #[must_use]
    pub fn of(injected: Injection, observed: &Observed) -> Verdict {
        let Observed { victim, step, found, blamed } = observed;
        let names = |found: &&Found| {
            let prime = found.fault.primary_suspect();
            let rank = match &prime.domain {
                Domain::Process(role) => role.rank(),
                _ => None,
            };
            prime.is_cause() && rank.is_some_and(|rank| blamed.contains(&rank.0))
        };
        let first = found.iter().find(names);
        let cause = first.map_or("none".to_owned(), cause_of);
        let onset =
            first.and_then(|f| f.fault.evidence.iter().find(|c| c.what.as_str().ends_with("slow_onset_step"))?.value);
        #[allow(clippy::cast_possible_truncation)] // a step's number
        let onset_step = onset.map(|at| at as i64 - step.cast_signed());
        Verdict {
            injected,
            victim: *victim,
            blamed: blamed.clone(),
            correct: *blamed == victim.iter().copied().collect() && cause == injected.cause(),
            cause,
            onset_step,
            detected_after_steps: first.map(|found| found.steps),
            detected_ms: first.map(|found| millis(found.after)),
            evidence: first.iter().flat_map(|f| &f.fault.evidence).map(|clue| clue.text.clone()).collect(),
        }
    }
}

/// Returns the cause in one word: from the detector's clues, else the class of the fault.
fn cause_of(found: &Found) -> String {
    const WORDS: [(&str, &str); 6] = [
        ("hang_frozen", "frozen"),
        ("hang_skipped", "skipped"),
        ("hang_mismatch", "mismatched"),
        ("hang_missing", "missing"),
        ("slow_data", "slow-input"),
        ("slow_own_time_ms", "slow"),
    ];
    let summary = found.fault.evidence.iter().find(|clue| clue.what.as_str() == "fail_slow_percent");
    if let Some((cause, _)) = summary.and_then(|clue| clue.text.split_once(':')) {
        return if cause == "slow-rank" { "slow".to_owned() } else { cause.to_owned() };
    }
    let clues: BTreeSet<&str> = found.fault.evidence.iter().map(|clue| clue.what.as_str()).collect();
    let word = WORDS.iter().find(|(clue, _)| clues.contains(clue)).map(|(_, word)| (*word).to_owned());
    word.unwrap_or_else(|| found.fault.primary_suspect().class.to_string())
}

/// All trials.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    /// Number of trials.
    pub runs: usize,
    /// Trials in which exactly the victim was blamed, for the right cause.
    pub correct: usize,
    /// Trials in which another rank was blamed.
    pub blamed_wrongly: usize,
    /// The verdicts.
    pub trials: Vec<Verdict>,
}

impl Account {
    /// Returns the account of all verdicts.
    #[must_use]
    pub fn of(trials: Vec<Verdict>) -> Account {
        let innocent = |verdict: &&Verdict| verdict.blamed.iter().any(|rank| Some(*rank) != verdict.victim);
        Account {
            runs: trials.len(),
            correct: trials.iter().filter(|verdict| verdict.correct).count(),
            blamed_wrongly: trials.iter().filter(innocent).count(),
            trials,
        }
    }

    /// Prints the table, or one line of JSON: the verdict of a single trial, or the account of several.
    pub fn print(&self, json: bool) {
        match &self.trials[..] {
            [only] => program::print(only, json, || self.table()),
            _ => program::print(self, json, || self.table()),
        }
    }

    fn table(&self) -> String {
        let mut out = String::from("\n  injected    victim  blamed   cause       onset   steps  after     correct\n");
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        for verdict in &self.trials {
            let blamed: Vec<String> = verdict.blamed.iter().map(u32::to_string).collect();
            let _ = writeln!(
                out,
                "  {:<10}  {:<6}  {:<7}  {:<10}  {:<6}  {:<5}  {:<8}  {}",
                verdict.injected.to_string(),
                or_dash(verdict.victim.map(|rank| rank.to_string())),
                if blamed.is_empty() { "none".to_owned() } else { blamed.join(",") },
                verdict.cause,
                or_dash(verdict.onset_step.map(|step| format!("{step:+}"))),
                or_dash(verdict.detected_after_steps.map(|steps| steps.to_string())),
                or_dash(verdict.detected_ms.map(|ms| format!("{ms:.0} ms"))),
                if verdict.correct { "yes" } else { "NO" },
            );
            for line in &verdict.evidence {
                let _ = writeln!(out, "      because {line}");
            }
        }
        let Account { runs, correct, blamed_wrongly, .. } = self;
        let _ = writeln!(out, "\n  {correct} of {runs} correct, a wrong rank was blamed in {blamed_wrongly}");
        out
    }
}

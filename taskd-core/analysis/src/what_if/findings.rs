//! The result of attribution: scenarios, and the workers at fault with their evidence.

use super::blame::{self, Straggler};
use super::model::Model;
use super::published::{self, Published, microseconds};
use super::scenarios::{Base, Cause, CauseKind};
use super::statistics;
use crate::document::{Blame, EvidenceItem, Verdict, WhatIf};
use crate::tables::capitalized;

/// Smallest gain for which a cause is named in the verdict.
pub const GAIN_NAMED_MIN: f64 = 0.05;

/// Share of the gain of a cause from which one link, group or worker is named for it.
const SINGLE_SHARE_MIN: f64 = 0.8;

/// Result of attribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// The verdict: which workers are at fault, or which other cause there is.
    pub verdict: Verdict,
    /// The scenarios.
    pub what_if: WhatIf,
    /// The workers at fault, the largest effect on the job first.
    pub stragglers: Vec<Straggler>,
    /// Number of workers with an excess for which the effect on the job was not computed because of
    /// [`WORKERS_MAX`](super::WORKERS_MAX).
    pub left_out: usize,
    /// Figures by the definitions of the paper.
    pub published: Published,
}

/// Returns how much faster the job would run without each cause, and which workers are at fault.
///
/// A worker is at fault if it computes longer than the workers of its role, by more than the noise, in consecutive
/// steps, and if the job is slower because of it. Uneven stages and micro-batches of different lengths are causes
/// without a worker at fault. Without data-parallel peers no worker is at fault.
#[must_use]
pub fn attribute(model: &Model) -> Findings {
    let ideal = model.expected();
    let published = published::figures(model, &ideal);
    let hides_waits = model.hides_waits();
    let search = blame::search(model, published.modelled_s, hides_waits);
    let Published { modelled_s, ideal_s, .. } = published;
    let base = Base { model, search: &search, ideal: &ideal, modelled_s, ideal_s, hides_waits };
    let causes = base.scenarios();
    let (stragglers, left_out) = (search.blamed, search.left_out);
    let unknown = if search.excess.levels.is_empty() {
        Some("it has no computation to compare")
    } else if hides_waits {
        Some(
            "its collectives do not end together, so waits for other workers look like computation: record their durations",
        )
    } else {
        None
    };
    let steps = model.steps.len();
    Findings {
        verdict: verdict(model, &published, &stragglers, &causes, unknown),
        what_if: WhatIf {
            modelled_us: microseconds(published.modelled_s, steps),
            measured_us: microseconds(statistics::mean(&model.measured()), steps),
            ideal_us: microseconds(published.ideal_s, steps),
            slowdown: published.slowdown,
            scenarios: causes.into_iter().map(|cause| cause.scenario).collect(),
        },
        stragglers,
        left_out,
        published,
    }
}

fn verdict(
    model: &Model,
    published: &Published,
    stragglers: &[Straggler],
    causes: &[Cause],
    unknown: Option<&str>,
) -> Verdict {
    let blamed: Vec<Blame> = stragglers.iter().map(|straggler| blame(model, published, straggler)).collect();
    if let Some(worst) = stragglers.first() {
        let others = match stragglers.len() {
            1 => String::new(),
            more => format!(" {} more workers are slow.", more - 1),
        };
        let sentence = format!(
            "{} computes {:.0} % longer than its peers {}; without it the job would run {:.2} times as fast.{others}",
            capitalized(&worst.worker.to_words()),
            worst.excess * 100.0,
            span(model, worst),
            worst.speedup,
        );
        return Verdict { sentence, is_healthy: false, blamed, ..Verdict::default() };
    }
    let is_named = |cause: &&Cause| !model.hides_waits() && cause.scenario.speedup >= 1.0 + GAIN_NAMED_MIN;
    let named = largest(causes).filter(is_named);
    let sentence = match named {
        Some(cause) => format!(
            "No worker is at fault. The largest cause of lost time is {}: without it the job would run {:.2} times as fast.",
            cause.scenario.without, cause.scenario.speedup
        ),
        None if unknown.is_some() => {
            format!("No worker can be blamed by this trace: {}.", unknown.unwrap_or_default())
        }
        None => format!(
            "No worker is at fault: the job would run at most {:.2} times as fast if every operation took its expected time.",
            published.slowdown.max(1.0)
        ),
    };
    Verdict { sentence, is_healthy: named.is_none(), blamed, ..Verdict::default() }
}

/// Returns the cause with the largest gain. One link, group or worker is named instead of all if it has most of the gain.
fn largest(causes: &[Cause]) -> Option<&Cause> {
    let gain = |cause: &Cause| cause.scenario.speedup - 1.0;
    let is_named = |kind| !matches!(kind, CauseKind::All | CauseKind::Worker | CauseKind::Delay | CauseKind::Bound);
    let of_all = causes.iter().find(|cause| is_named(cause.kind))?;
    let is_common = matches!(of_all.kind, CauseKind::Communication | CauseKind::Input | CauseKind::Storage);
    let single = causes.iter().filter(|cause| is_common && cause.kind == CauseKind::Delay);
    let single = single.max_by(|a, b| gain(a).total_cmp(&gain(b)));
    Some(single.filter(|cause| gain(cause) >= gain(of_all) * SINGLE_SHARE_MIN).unwrap_or(of_all))
}

/// The affected steps in words.
fn span(model: &Model, straggler: &Straggler) -> String {
    let first = model.steps[straggler.first];
    let since = if straggler.first == 0 {
        format!("since step {first}, the first of the trace")
    } else {
        format!("since step {first}")
    };
    if straggler.end == model.steps.len() {
        since
    } else {
        format!("{since}, until step {}", model.steps[straggler.end - 1])
    }
}

fn blame(model: &Model, published: &Published, straggler: &Straggler) -> Blame {
    let words = straggler.worker.to_words();
    let percent = |fraction: f64| fraction * 100.0;
    let item = |what: &str, value: f64, usual: Option<f64>, text: String| EvidenceItem {
        what: what.to_owned(),
        value: Some(value),
        usual,
        text,
    };
    let (excess, usual) = (percent(straggler.excess), percent(straggler.usual));
    let steps = straggler.end - straggler.first;
    let affected = if steps == model.steps.len() {
        format!("all {steps} steps are affected")
    } else {
        format!("{steps} of the {} steps are affected; in the others the excess is {usual:.1} %", model.steps.len())
    };
    let mut evidence = vec![
        item(
            "excess of computation over the peers in %",
            excess,
            (steps < model.steps.len()).then_some(usual),
            format!("{words} computes {excess:.1} % longer than the workers of its stage {}", span(model, straggler)),
        ),
        item("affected steps", statistics::count(steps), Some(statistics::count(model.steps.len())), affected),
        item(
            "excess divided by its standard error",
            straggler.significance,
            Some(blame::SIGNIFICANCE_MIN),
            format!(
                "the excess is {:.0} times its standard error; between neighbouring steps it varies by {:.1} %",
                straggler.significance,
                percent(straggler.noise)
            ),
        ),
        item(
            "mean time of a step without the worker's excess in s",
            straggler.without_s,
            Some(published.modelled_s),
            format!(
                "without the excess a step would take {:.2} s instead of {:.2} s: the job is {:.2} times as long because of it",
                straggler.without_s, published.modelled_s, straggler.speedup
            ),
        ),
    ];
    let own = published.by_worker.iter().find(|(worker, _)| *worker == straggler.worker);
    let others = published.by_worker.iter().filter(|(worker, _)| *worker != straggler.worker);
    if let Some((_, slowdown)) = own {
        let next = others.map(|(_, slowdown)| *slowdown).fold(1.0, f64::max);
        let text = format!("with only this worker as measured, S_w is {slowdown:.3}; the next worker has {next:.3}");
        evidence.push(item("S_w", *slowdown, Some(next), text));
    }
    Blame {
        component: words,
        ranks: vec![straggler.worker.rank],
        cause: "slow-rank".to_owned(),
        onset_step: Some(model.steps[straggler.first]),
        slowdown_percent: excess,
        confidence_permille: confidence(straggler.significance),
        evidence,
        ..Blame::default()
    }
}

/// Confidence in permille: z² / (z² + 4) of the significance z, which is 900 at the smallest significance.
fn confidence(significance: f64) -> u16 {
    let square = significance.powi(2);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 999")]
    let permille = (1000.0 * square / (square + 4.0)).clamp(0.0, 999.0) as u16;
    permille
}

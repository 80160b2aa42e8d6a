//! The summary for a terminal: the verdict first, then its evidence, in at most [`LINES_MAX`] lines.

use super::text::{milliseconds, number, one_line};
use crate::document::{Analysis, Blame};

/// Maximum number of lines.
const LINES_MAX: usize = 25;
/// Maximum number of characters in a line.
const LINE_MAX: usize = 200;
/// Components at fault that are listed.
const BLAMED_MAX: usize = 3;
/// Reasons listed for each component.
const REASONS_MAX: usize = 3;
/// Scenarios, hints and missing parts that are listed, each.
const LISTED_MAX: usize = 2;

/// Returns the summary, with a newline at the end. `colour`: true if the output is a terminal that understands ANSI
/// sequences; otherwise the text has none.
#[must_use]
pub fn terminal(analysis: &Analysis, colour: bool) -> String {
    let mut lines = vec![verdict(analysis, colour), run(analysis)];
    for blame in analysis.verdict.blamed.iter().take(BLAMED_MAX) {
        blamed(&mut lines, blame);
    }
    more(&mut lines, analysis.verdict.blamed.len(), BLAMED_MAX, "components at fault");
    times(&mut lines, analysis);
    if let Some(model) = &analysis.what_if {
        for scenario in model.scenarios.iter().take(LISTED_MAX) {
            let (speedup, share) = (scenario.speedup, scenario.share * 100.0);
            lines.push(format!(
                "without {}: {speedup:.2} times as fast ({share:.0} % of the slowdown)",
                scenario.without
            ));
        }
    }
    if !analysis.incidents.is_empty() {
        lines.push(format!("incidents: {}", analysis.incidents.len()));
    }
    for hint in analysis.hints.iter().take(LISTED_MAX) {
        lines.push(format!("hint: {}", hint.text));
    }
    more(&mut lines, analysis.hints.len(), LISTED_MAX, "hints");
    let (collected, steps) = (analysis.communication.steps, analysis.steps.len());
    if collected < steps as u64 {
        lines.push(format!("communication was collected for {collected} of {steps} steps"));
    }
    for missing in analysis.missing.iter().take(LISTED_MAX) {
        lines.push(format!("missing: {missing}"));
    }
    more(&mut lines, analysis.missing.len(), LISTED_MAX, "missing parts");
    lines.truncate(LINES_MAX);
    let rest = lines.split_off(1).into_iter().map(|line| cut(&line));
    lines.into_iter().chain(rest).map(|line| line + "\n").collect()
}

fn verdict(analysis: &Analysis, colour: bool) -> String {
    let sentence = match analysis.verdict.sentence.as_str() {
        "" => "The analysis gave no verdict.",
        sentence => sentence,
    };
    let sentence = cut(sentence);
    match (colour, analysis.verdict.is_healthy) {
        (false, _) => sentence,
        (true, true) => format!("\x1b[1;32m{sentence}\x1b[0m"),
        (true, false) => format!("\x1b[1;31m{sentence}\x1b[0m"),
    }
}

fn run(analysis: &Analysis) -> String {
    let (ranks, steps) = (analysis.ranks.len(), analysis.steps.len());
    format!("{}: {ranks} ranks, {steps} steps, from {}", analysis.title, analysis.sources.join(", "))
}

fn blamed(lines: &mut Vec<String>, blame: &Blame) {
    let onset = blame.onset_step.map_or(String::new(), |step| format!(", since step {step}"));
    let (slowdown, confidence) = (number(blame.slowdown_percent), f64::from(blame.confidence_permille) / 10.0);
    let confidence = number(confidence);
    let (component, cause) = (&blame.component, &blame.cause);
    lines.push(format!("{component}: {cause}, {slowdown} % slower{onset}, confidence {confidence} %"));
    for item in blame.evidence.iter().take(REASONS_MAX) {
        let figures = match (item.value, item.usual) {
            (Some(value), Some(usual)) => format!(" ({} {}, usual {})", item.what, number(value), number(usual)),
            (Some(value), None) => format!(" ({} {})", item.what, number(value)),
            _ => String::new(),
        };
        lines.push(format!("  {}{figures}", item.text));
    }
}

fn times(lines: &mut Vec<String>, analysis: &Analysis) {
    let mean = |path: &str| analysis.summary.means.get(path).and_then(|means| means.all);
    let parts = [
        ("step", mean("breakdown.total_us")),
        ("transfer", mean("communication.transfer_us")),
        ("wait", mean("communication.wait_us")),
    ];
    let parts: Vec<String> =
        parts.iter().filter_map(|(name, mean)| mean.map(|mean| format!("{name} {}", milliseconds(mean)))).collect();
    if !parts.is_empty() {
        lines.push(format!("mean per rank and step: {}", parts.join(", ")));
    }
    if let (Some(slowest), Some(fastest)) = (analysis.summary.slowest_rank, analysis.summary.fastest_rank) {
        lines.push(format!("slowest rank: {slowest}; fastest rank: {fastest} (step without waiting)"));
    }
}

fn more(lines: &mut Vec<String>, count: usize, listed: usize, what: &str) {
    if count > listed {
        lines.push(format!("  and {} more {what}", count - listed));
    }
}

/// Returns the text as one line of at most [`LINE_MAX`] characters.
fn cut(text: &str) -> String {
    let line = one_line(text);
    if line.chars().count() <= LINE_MAX {
        return line;
    }
    line.chars().take(LINE_MAX - 1).chain(std::iter::once('…')).collect()
}

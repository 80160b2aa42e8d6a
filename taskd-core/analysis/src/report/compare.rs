//! The page that compares two runs.

use super::static_page::{NUMBER, page, table};
use super::text::{escape, number};
use crate::comparison::Comparison;
use std::fmt::Write as _;

/// Returns the comparison of two runs as one HTML page without a script: the result in one sentence first, then the
/// figures, then the ranks and the kernels that changed most.
#[must_use]
pub fn comparison_html(comparison: &Comparison) -> String {
    let mut body = format!("<p class=\"verdict\">{}</p>\n", escape(&comparison.sentence));
    for note in &comparison.notes {
        body.push_str(&format!("<p>{}</p>\n", escape(note)));
    }
    let mut rows = String::new();
    for change in &comparison.figures {
        let (figure, unit) = (escape(&change.figure), escape(&change.unit));
        let cells = [change.before, change.after, change.change_percent].map(cell).concat();
        // Writing to a string does not fail.
        let _ = writeln!(rows, "<tr><td>{figure}</td><td>{unit}</td>{cells}</tr>");
    }
    let columns = [("Figure", ""), ("Unit", ""), ("Before", NUMBER), ("After", NUMBER), ("Change (%)", NUMBER)];
    body.push_str("<h2>Medians over all ranks and steps</h2>\n");
    body.push_str(&table(&columns, &rows));
    rows.clear();
    for change in &comparison.ranks {
        let cells = [Some(change.before_us), Some(change.after_us), change.change_percent].map(cell).concat();
        let (rank, figure) = (change.rank, escape(&change.figure));
        let _ = writeln!(rows, "<tr><td>rank {rank}</td><td>{figure}</td>{cells}</tr>");
    }
    let columns =
        [("Rank", ""), ("Figure", ""), ("Before (us)", NUMBER), ("After (us)", NUMBER), ("Change (%)", NUMBER)];
    body.push_str("<h2>Ranks that changed most</h2>\n");
    body.push_str(&if rows.is_empty() { "<p>No rank changed.</p>\n".to_owned() } else { table(&columns, &rows) });
    if comparison.ranks_left_out > 0 {
        body.push_str(&format!("<p>{} smaller changes of ranks are not listed.</p>\n", comparison.ranks_left_out));
    }
    kernels(comparison, &mut body);
    page(&format!("{} compared with {}", comparison.after, comparison.before), &body)
}

fn kernels(comparison: &Comparison, body: &mut String) {
    let mut rows = String::new();
    for change in &comparison.kernels {
        let (class, name) = (escape(&change.class), escape(&change.name));
        let (before, after) = (change.before.as_ref(), change.after.as_ref());
        let time = [before, after].map(|used| cell(used.map(|used| used.us_per_step))).concat();
        let runs = [before, after].map(|used| cell(used.map(|used| used.runs_per_step))).concat();
        let mean = [before, after].map(|used| cell(used.map(|used| used.mean_us))).concat();
        let percent = cell(change.change_percent);
        let _ = writeln!(rows, "<tr><td>{name}</td><td>{class}</td>{time}{percent}{runs}{mean}</tr>");
    }
    if rows.is_empty() {
        return;
    }
    let numbers =
        ["Before (us)", "After (us)", "Change (%)", "Runs before", "Runs after", "Mean before (us)", "Mean after (us)"];
    let columns: Vec<_> =
        [("Kernel", ""), ("Class", "")].into_iter().chain(numbers.map(|name| (name, NUMBER))).collect();
    body.push_str("<h2>Kernels that changed most, per rank and step</h2>\n");
    body.push_str(&table(&columns, &rows));
    if comparison.kernels_left_out > 0 {
        body.push_str(&format!("<p>{} smaller changes of kernels are not listed.</p>\n", comparison.kernels_left_out));
    }
}

fn cell(value: Option<f64>) -> String {
    format!("<td class=\"number\">{}</td>", value.map_or("–".to_owned(), number))
}

//! The index of the runs under a directory.

use super::static_page::{NUMBER, page, table};
use super::text::{escape, milliseconds};
use crate::document::Analysis;
use std::fmt::Write as _;

/// One run in the index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunEntry {
    /// Path of the run's page, relative to the index, with `/` between its parts.
    pub path: String,
    /// Name of the job.
    pub title: String,
    /// Sentence of the verdict.
    pub verdict: String,
    /// True if nothing is wrong with the run.
    pub is_healthy: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of steps.
    pub steps: usize,
    /// Mean step in microseconds, if known.
    pub step_us: Option<f64>,
    /// Start of the run as text; empty if unknown.
    pub began: String,
}

impl RunEntry {
    /// Returns the entry of a document with its page at this path, relative to the index.
    #[must_use]
    pub fn new(path: &str, analysis: &Analysis) -> RunEntry {
        RunEntry {
            path: path.to_owned(),
            title: analysis.title.clone(),
            verdict: analysis.verdict.sentence.clone(),
            is_healthy: analysis.verdict.is_healthy,
            ranks: analysis.ranks.len(),
            steps: analysis.steps.len(),
            step_us: analysis.summary.means.get("breakdown.total_us").and_then(|means| means.all),
            began: analysis.began_unix_ns.map_or(String::new(), began),
        }
    }
}

/// Returns the index page: one row per run, in the given order, runs with a fault marked. It has no script, and links only
/// to paths below itself: an entry with another path is listed without a link.
#[must_use]
pub fn index(runs: &[RunEntry]) -> String {
    let mut rows = String::new();
    for run in runs {
        let title = if run.title.is_empty() { &run.path } else { &run.title };
        let name = match link(&run.path) {
            Some(link) => format!("<a href=\"{link}\">{}</a>", escape(title)),
            None => escape(title),
        };
        let (class, state) = if run.is_healthy { ("good", "healthy") } else { ("bad", "fault") };
        let step = run.step_us.map_or("–".to_owned(), milliseconds);
        let (verdict, began) = (escape(&run.verdict), escape(&run.began));
        let (ranks, steps) = (run.ranks, run.steps);
        // Writing to a string does not fail.
        let _ = writeln!(
            rows,
            "<tr><td>{name}</td><td class=\"{class}\">{state}</td><td>{verdict}</td><td class=\"number\">{ranks}</td>\
             <td class=\"number\">{steps}</td><td class=\"number\">{step}</td><td>{began}</td></tr>"
        );
    }
    let faults = runs.iter().filter(|run| !run.is_healthy).count();
    let summary = match runs.len() {
        0 => "There is no run under this directory.".to_owned(),
        count => format!("{count} runs, {faults} with a fault."),
    };
    let columns = [
        ("Run", ""),
        ("State", ""),
        ("Verdict", ""),
        ("Ranks", NUMBER),
        ("Steps", NUMBER),
        ("Mean step", NUMBER),
        ("Began", ""),
    ];
    page("Runs", &format!("<p>{summary}</p>\n{}", table(&columns, &rows)))
}

/// Returns the address of a relative path below the index, percent-encoded; `None` for any other path.
fn link(path: &str) -> Option<String> {
    if path.is_empty() || path.split('/').any(|part| part.is_empty() || part == "..") {
        return None;
    }
    let mut link = String::from("./");
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => link.push(char::from(byte)),
            other => {
                let _ = write!(link, "%{other:02X}");
            }
        }
    }
    Some(link)
}

/// Returns a calendar time in UTC, to the second.
fn began(unix_ns: i64) -> String {
    let seconds = unix_ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Returns year, month and day of a number of days since 1970-01-01, by Hinnant's algorithm `civil_from_days`.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::{began, link};

    #[test]
    fn calendar_time_is_utc() {
        assert_eq!(began(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(began(1_709_210_096_000_000_000), "2024-02-29 12:34:56 UTC");
        assert_eq!(began(-1), "1969-12-31 23:59:59 UTC");
    }

    #[test]
    fn link_outside_of_the_directory_is_refused() {
        assert_eq!(link("a b/report.html").as_deref(), Some("./a%20b/report.html"));
        assert_eq!(link("javascript:alert(1)").as_deref(), Some("./javascript%3Aalert%281%29"));
        for path in ["", "/etc/passwd", "../x.html", "a/../../x", "//host/x"] {
            assert_eq!(link(path), None, "{path}");
        }
    }
}

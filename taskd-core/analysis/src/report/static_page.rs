//! Pages without a script.

use super::html::fill;
use super::text::{content_hash, escape};

const PAGE: &str = concat!(include_str!("page/head.html"), include_str!("page/static.html"));
const STYLE: &str = include_str!("page/static.css");

/// Class of a column of numbers.
pub(super) const NUMBER: &str = "number";

/// Returns a page with this title and this body, which is HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    let style = content_hash(STYLE);
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'none'; base-uri 'none'; form-action 'none'"
    );
    let title = escape(title);
    fill(PAGE, &[("policy", policy), ("title", title), ("style", STYLE.to_owned()), ("body", body.to_owned())])
}

/// Returns a table with columns of these titles and classes; `rows` is HTML.
pub(super) fn table(columns: &[(&str, &str)], rows: &str) -> String {
    let head: String =
        columns.iter().map(|(title, class)| format!("<th scope=\"col\" class=\"{class}\">{title}</th>")).collect();
    format!("<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n")
}

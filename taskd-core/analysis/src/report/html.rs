//! The page: one self-contained HTML file.

use super::text::{content_hash, escape, script_json};
use super::{json, terminal};
use crate::document::{Analysis, Timeline, TimelineSpan};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

const PAGE: &str = concat!(include_str!("page/head.html"), include_str!("page/page.html"));
pub(super) const STYLE: &str = include_str!("page/page.css");

/// Scripts of the page in the order in which they are joined: later ones use earlier ones.
const SCRIPTS: &[&str] = &[
    include_str!("page/data.js"),
    include_str!("page/dom.js"),
    include_str!("page/grid.js"),
    include_str!("page/chart.js"),
    include_str!("page/bars.js"),
    include_str!("page/overview.js"),
    include_str!("page/graph.js"),
    include_str!("page/matrix.js"),
    include_str!("page/marey.js"),
    include_str!("page/marey_draw.js"),
    include_str!("page/pipeline.js"),
    include_str!("page/kernels.js"),
    include_str!("page/launches.js"),
    include_str!("page/heat.js"),
    include_str!("page/times.js"),
    include_str!("page/lists.js"),
    include_str!("page/rank.js"),
    include_str!("page/page.js"),
];

/// Returns the report as one HTML file. It makes no request, and works from a file.
///
/// The document is in two script elements: `analysis` without the timeline, and `timeline-data`, the largest part, which
/// the page parses when a view first needs it. There, the five numbers of each span follow each other in one list per rank:
/// a browser parses a million spans several times as fast as in a list of their own each.
#[must_use]
pub fn html(analysis: &Analysis) -> String {
    page(analysis, STYLE.to_owned(), &script(""), String::new(), "")
}

/// Returns the script of a page, with a last part.
pub(super) fn script(last: &str) -> String {
    format!("'use strict';\n(() => {{\n{}{last}}})();\n", SCRIPTS.concat())
}

/// Returns the page with the given style and script. `live`: further elements; `also`: further directives of its policy.
pub(super) fn page(analysis: &Analysis, style: String, script: &str, live: String, also: &str) -> String {
    let (figures, timeline) = figures(analysis);
    fill(
        PAGE,
        &[
            ("policy", policy(&style, script, also)),
            ("title", escape(&analysis.title)),
            ("style", style),
            ("summary", escape(&terminal(analysis, false))),
            ("analysis", script_json(&figures)),
            ("timeline", script_json(&timeline)),
            ("live", live),
            ("script", script.to_owned()),
        ],
    )
}

/// Returns the document without its timeline, and the timeline in the page's form.
pub(super) fn figures(analysis: &Analysis) -> (String, String) {
    let mut rest = analysis.clone();
    let timeline = std::mem::take(&mut rest.timeline);
    (json(&rest), serde_json::to_string(&PageTimeline::new(&timeline)).unwrap_or_default())
}

/// The timeline as the page has it.
#[derive(Serialize)]
struct PageTimeline<'a> {
    names: &'a [String],
    spans: Vec<FlatSpans<'a>>,
    memory: &'a [Vec<(i64, u64)>],
    flop: &'a [Vec<(i64, f64)>],
    left_out: u64,
}

impl<'a> PageTimeline<'a> {
    fn new(timeline: &'a Timeline) -> PageTimeline<'a> {
        let Timeline { names, spans, memory, flop, left_out } = timeline;
        let spans = spans.iter().map(|spans| FlatSpans(spans)).collect();
        PageTimeline { names, spans, memory, flop, left_out: *left_out }
    }
}

/// Spans of one rank as one list of numbers.
struct FlatSpans<'a>(&'a [TimelineSpan]);

impl Serialize for FlatSpans<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len() * 5))?;
        for TimelineSpan(start, length, kind, name, number) in self.0 {
            list.serialize_element(start)?;
            list.serialize_element(length)?;
            list.serialize_element(kind)?;
            list.serialize_element(name)?;
            list.serialize_element(number)?;
        }
        list.end()
    }
}

/// Content security policy of a page with one style and one script element: nothing else runs, and nothing is requested
/// unless `also` admits it.
pub(super) fn policy(style: &str, script: &str, also: &str) -> String {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'{also}",
        content_hash(style),
        content_hash(script)
    )
}

/// Replaces each `{{name}}` of a template, from left to right, so that a value is never searched for names.
pub(super) fn fill(template: &str, values: &[(&str, String)]) -> String {
    let mut page = String::with_capacity(template.len() + values.iter().map(|(_, value)| value.len()).sum::<usize>());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let Some((name, after)) = after.split_once("}}") else { break };
        if let Some((_, value)) = values.iter().find(|(known, _)| *known == name) {
            page.push_str(value);
        }
        rest = after;
    }
    page.push_str(rest);
    page
}

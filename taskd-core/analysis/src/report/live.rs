//! The page of a run that goes on: the page of [`html`](super::html()), with a script that shows the figures that its server
//! sends. It computes nothing and opens no socket: `taskd-live` is the server.

use super::html::{STYLE, figures, page, policy, script};
use super::text::script_json;
use crate::document::Analysis;
use serde::Serialize;
use std::collections::BTreeMap;

const LIVE_STYLE: &str = include_str!("page/live.css");
const LIVE_SCRIPT: &str = include_str!("page/live.js");
/// What the policy of a live page admits besides its script and its style: the events of its own server.
const EVENTS: &str = "; connect-src 'self'";

/// How the reading of a run stands. The page shows it; the server sends it as event `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LiveStatus {
    /// Number of the newest figures; 0: there are none yet.
    pub revision: u64,
    /// True if the run has ended, and the figures are its last ones.
    pub has_ended: bool,
    /// Age of the figures in milliseconds: time since the start of the newest reading that succeeded. `None`: there was none.
    pub age_ms: Option<u64>,
    /// Duration of the last reading and its analysis, in milliseconds.
    pub took_ms: u64,
    /// Time from the start of one reading to the next while a page is open, in milliseconds.
    pub every_ms: u64,
    /// Number of readings so far.
    pub readings: u64,
    /// Why the last reading failed, as a sentence; `None`: it succeeded.
    pub error: Option<String>,
    /// Time since the first of the failures in a row, in milliseconds; 0 without one.
    pub failing_ms: u64,
    /// Number of open pages that receive events.
    pub pages: usize,
    /// Number of requests and connections that were refused, by the rule that refused them.
    pub refused: BTreeMap<&'static str, u64>,
}

/// Figures in the form of a live page, without line breaks: the data of its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveFigures {
    /// The document without its timeline: event `analysis`. The identifier of the event is the revision.
    pub analysis: String,
    /// The timeline: event `timeline`, which precedes `analysis`.
    pub timeline: String,
}

impl LiveFigures {
    /// Returns the figures of a document.
    #[must_use]
    pub fn new(analysis: &Analysis) -> LiveFigures {
        let (analysis, timeline) = figures(analysis);
        LiveFigures { analysis, timeline }
    }
}

/// Returns the page of a run that goes on. It requests `events?revision=N` beside its own address, and nothing else.
#[must_use]
pub fn live_html(analysis: &Analysis, status: &LiveStatus) -> String {
    let status = script_json(&serde_json::to_string(status).unwrap_or_default());
    let element = format!("<script type=\"application/json\" id=\"live-status\">{status}</script>\n");
    page(analysis, format!("{STYLE}{LIVE_STYLE}"), &script(LIVE_SCRIPT), element, EVENTS)
}

/// Returns the content security policy of [`live_html`], for a header of the response.
#[must_use]
pub fn live_policy() -> String {
    policy(&format!("{STYLE}{LIVE_STYLE}"), &script(LIVE_SCRIPT), EVENTS)
}

//! The report: the document as one HTML page, as SVG of a single view, as a summary for a terminal, as an index of runs,
//! and as a comparison of two runs.
//!
//! [`html`] returns one file that makes no request: style, scripts and data are in it, and its content security policy
//! forbids everything else. The model is `cargo build --timings`: verdict first, data as JSON, views drawn in the browser.
//! [`live_html`] returns the same page for a run that goes on: it receives other figures from its own server.
//!
//! # Drawing without a library
//!
//! The views are drawn by scripts of this folder on canvases. Evaluated libraries: uPlot (MIT, 50 kB) draws time series,
//! which is one of the ten views; d3 (ISC, 270 kB) and Plotly (MIT, 3.5 MB) create one DOM node per mark, and a run of
//! 1,024 ranks and 100 steps has a million marks; ECharts (Apache-2.0, 1 MB) draws on canvas but has neither a Marey
//! timeline nor box plots in matrix cells, so that both would be custom drawing in its terms. Each would be in every
//! report file. The shared part that a library would save (axes, zoom, hover, keys: `chart.js`) has 300 lines.
//!
//! # Hostile names
//!
//! Names in traces are input. The scripts set text by `textContent` only; the document is JSON in a script element of a
//! type that browsers do not run, with `<` escaped; the policy admits exactly the hashes of this script and this style.

mod compare;
mod html;
mod index;
mod live;
mod static_page;
mod svg;
mod terminal;
#[cfg(test)]
mod tests;
mod text;

pub use compare::comparison_html;
pub use html::html;
pub use index::{RunEntry, index};
pub use live::{LiveFigures, LiveStatus, live_html, live_policy};
pub use svg::{View, svg};
pub use terminal::terminal;

use crate::document::Analysis;

/// Returns the document as JSON: all figures that [`html`] shows.
#[must_use]
pub fn json(analysis: &Analysis) -> String {
    // The document has no map with other keys than strings, and no type that fails to serialize.
    serde_json::to_string(analysis).unwrap_or_default()
}

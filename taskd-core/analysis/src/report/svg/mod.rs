//! SVG of a single view, for documents and messages: without a script, readable on light and dark pages.
//!
//! A drawing has at most [`RANKS_MAX`] lines of ranks and [`MARKS_MAX`] marks of a kind; a sentence in it states what was
//! left out.

mod canvas;
mod grids;
mod moments;

use crate::document::Analysis;
use canvas::Canvas;

/// Lines of ranks in one drawing: the ranks at fault, the slowest, the fastest, and others evenly spaced.
const RANKS_MAX: usize = 48;
/// Marks of one kind in one drawing.
const MARKS_MAX: usize = 12_000;

/// A view of the report that [`svg`] draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum View {
    /// Mean parts of a step, one bar per rank.
    Steps,
    /// Total of each step per rank, mean transfer and mean wait.
    Times,
    /// The timeline: ranks against time.
    Timeline,
    /// Sends and receives of the ranks.
    Pipeline,
    /// Bandwidth of the links, source by destination.
    Links,
    /// Floating-point operations of the ranks.
    Flops,
    /// Floating-point operations per second of the ranks.
    FlopsPerSecond,
    /// Peak memory of the ranks.
    Memory,
}

impl View {
    /// All views with their names, as a command line has them.
    pub const ALL: [(View, &'static str); 8] = [
        (View::Steps, "steps"),
        (View::Times, "times"),
        (View::Timeline, "timeline"),
        (View::Pipeline, "pipeline"),
        (View::Links, "links"),
        (View::Flops, "flops"),
        (View::FlopsPerSecond, "flops-per-second"),
        (View::Memory, "memory"),
    ];
}

/// Returns one view of the document as an SVG image. Without figures for the view, the image states that.
#[must_use]
pub fn svg(analysis: &Analysis, view: View) -> String {
    match view {
        View::Steps => moments::steps(analysis),
        View::Times => moments::times(analysis),
        View::Timeline => moments::timeline(analysis),
        View::Pipeline => moments::pipeline(analysis),
        View::Links => grids::links(analysis),
        View::Flops => grids::heat(analysis, "FLOPs per step, of the largest rank", |info| info.flop_per_step),
        View::FlopsPerSecond => grids::heat(analysis, "FLOPS, of the largest rank", |info| info.flop_per_second),
        View::Memory => grids::memory(analysis),
    }
}

/// Returns an image that states why the view has nothing to show.
fn empty(title: &str, why: &str) -> String {
    let mut canvas = Canvas::new(title, 480.0, 40.0);
    canvas.text(8.0, 48.0, "start", why);
    canvas.finish()
}

/// Returns true for a rank of a component at fault.
fn is_blamed(analysis: &Analysis, rank: u32) -> bool {
    analysis.verdict.blamed.iter().any(|blame| blame.ranks.contains(&rank))
}

/// Returns the rows to draw, in the order of stage and rank, and a sentence if there are others.
fn rows(analysis: &Analysis) -> (Vec<usize>, Option<String>) {
    let count = analysis.ranks.len();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|row| (analysis.ranks[*row].stage, analysis.ranks[*row].rank));
    if count <= RANKS_MAX {
        return (order, None);
    }
    let summary = &analysis.summary;
    let chosen = |rank: u32| {
        summary.slowest_rank == Some(rank) || summary.fastest_rank == Some(rank) || is_blamed(analysis, rank)
    };
    let every = count.div_ceil(RANKS_MAX / 2);
    let mut rows: Vec<usize> = Vec::new();
    for (place, row) in order.into_iter().enumerate() {
        if rows.len() < RANKS_MAX && (place % every == 0 || chosen(analysis.ranks[row].rank)) {
            rows.push(row);
        }
    }
    let shown = rows.len();
    let sentence = format!("{shown} of {count} ranks: those at fault, the slowest, the fastest, others evenly spaced.");
    (rows, Some(sentence))
}

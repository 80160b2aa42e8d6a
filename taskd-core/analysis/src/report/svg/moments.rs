//! Views of steps and of time.

use super::canvas::{Canvas, ticks};
use super::{MARKS_MAX, RANKS_MAX, empty, is_blamed, rows};
use crate::document::{Analysis, Table};
use std::collections::{BTreeMap, BTreeSet};

/// Left edge and width of a plot.
const PLOT: (f64, f64) = (88.0, 860.0);
/// Labels along the horizontal axis.
const LABELS_MAX: usize = 28;
/// Kinds of spans with their colours, in the order of [`TimelineSpan`](crate::document::TimelineSpan).
const KINDS: [(&str, &str); 8] = [
    ("compute", "#74ba62"),
    ("collective", "#e6882e"),
    ("send", "#bf73d6"),
    ("receive", "#4192d3"),
    ("copy", "#c2ab3a"),
    ("data loader", "#d9626d"),
    ("checkpoint", "#8c6d4f"),
    ("other", "#8f9aa8"),
];
const SEND: &str = "#d64545";
const RECEIVE: &str = "#2f9e5b";
const AT_FAULT: &str = "#b3261e";

/// Mean parts of a step, one bar per rank.
pub(super) fn steps(analysis: &Analysis) -> String {
    let title = "Mean parts of a step, per rank";
    let parts = [
        ("breakdown.interval_us", "interval", "#5a78c9"),
        ("breakdown.forward_backward_us", "forward + backward", "#74ba62"),
        ("breakdown.tail_us", "tail", "#e6882e"),
    ];
    let mean = |path: &str, row: usize| {
        let means = analysis.summary.means.get(path)?;
        means.of_ranks.get(row).copied().flatten()
    };
    let (rows, sentence) = rows(analysis);
    let total = |row: usize| parts.iter().filter_map(|(path, ..)| mean(path, row)).sum::<f64>();
    let top = rows.iter().map(|row| total(*row)).fold(0.0, f64::max);
    if top <= 0.0 {
        return empty(title, "The trace does not have the parts of its steps.");
    }
    let mut canvas = Canvas::new(title, PLOT.0 + PLOT.1 + 12.0, 330.0);
    canvas.legend(12.0, &parts.map(|(_, name, colour)| (name, colour)));
    canvas.axis((PLOT.0, 24.0, PLOT.1, 250.0), top / 1000.0, "ms");
    let width = PLOT.1 / rows.len() as f64;
    for (place, row) in rows.iter().enumerate() {
        let (x, rank) = (PLOT.0 + place as f64 * width, analysis.ranks[*row].rank);
        let mut bottom = 274.0;
        for (path, name, colour) in parts {
            let Some(us) = mean(path, *row) else { continue };
            let height = us / top * 250.0;
            bottom -= height;
            canvas.rect(
                (x, bottom, width - 1.0, height),
                colour,
                &format!("rank {rank}, {name}: {:.3} ms", us / 1000.0),
            );
        }
        if is_blamed(analysis, rank) {
            canvas.rect((x, 276.0, width - 1.0, 3.0), AT_FAULT, "at fault");
        }
        if place % rows.len().div_ceil(LABELS_MAX) == 0 {
            canvas.text(x + width / 2.0, 292.0, "middle", &rank.to_string());
        }
    }
    canvas.text(PLOT.0, 318.0, "start", &sentence.unwrap_or_default());
    canvas.finish()
}

/// Total of each step per rank, mean transfer and mean wait, all on one axis.
pub(super) fn times(analysis: &Analysis) -> String {
    let title = "Time of each step";
    let (rows, sentence) = rows(analysis);
    let table: &Table = &analysis.breakdown.total_us;
    let top = table.iter().flatten().flatten().copied().max().unwrap_or_default() as f64;
    let count = analysis.steps.len();
    if top <= 0.0 || count == 0 {
        return empty(title, "The trace has no step times.");
    }
    let (transfer, wait) = ("#e6882e", "#3f6fd0");
    let mut canvas = Canvas::new(title, PLOT.0 + PLOT.1 + 12.0, 330.0);
    canvas.legend(
        12.0,
        &[("rank", "#8f9aa8"), ("rank at fault", AT_FAULT), ("mean transfer", transfer), ("mean wait", wait)],
    );
    canvas.axis((PLOT.0, 24.0, PLOT.1, 250.0), top / 1000.0, "ms");
    let x = |column: usize| PLOT.0 + (column as f64 + 0.5) * PLOT.1 / count as f64;
    let point = |(column, us): (usize, Option<f64>)| Some((x(column), 274.0 - us? / top * 250.0));
    let mut ordered = rows.clone();
    ordered.sort_by_key(|row| is_blamed(analysis, analysis.ranks[*row].rank));
    for row in ordered {
        let cells = table.get(row).map_or(&[][..], |cells| cells);
        let line: Vec<_> = cells.iter().map(|us| us.map(|us| us as f64)).enumerate().filter_map(point).collect();
        let is_blamed = is_blamed(analysis, analysis.ranks[row].rank);
        canvas.line(&line, if is_blamed { AT_FAULT } else { "#8f9aa8" }, if is_blamed { 1.6 } else { 0.7 });
    }
    for (path, colour) in [("communication.transfer_us", transfer), ("communication.wait_us", wait)] {
        if let Some(means) = analysis.summary.means.get(path) {
            let line: Vec<_> = means.of_steps.iter().copied().enumerate().filter_map(point).collect();
            canvas.line(&line, colour, 2.0);
        }
    }
    for (column, step) in analysis.steps.iter().enumerate().step_by(count.div_ceil(20)) {
        canvas.text(x(column), 290.0, "middle", &step.to_string());
    }
    canvas.text(PLOT.0, 318.0, "start", &sentence.unwrap_or_default());
    canvas.finish()
}

/// A window of time on a plot.
struct Window {
    begin: f64,
    length: f64,
}

impl Window {
    /// The window from the earliest begin to the latest end; `None` without spans.
    fn of(spans: impl Iterator<Item = (i64, u64)>) -> Option<Window> {
        let (mut begin, mut end) = (i64::MAX, i64::MIN);
        for (start, length) in spans {
            begin = begin.min(start);
            end = end.max(start.saturating_add_unsigned(length));
        }
        (begin < end).then_some(Window { begin: begin as f64, length: end as f64 - begin as f64 })
    }

    fn x(&self, us: f64) -> f64 {
        PLOT.0 + (us - self.begin) / self.length * PLOT.1
    }

    fn axis(&self, canvas: &mut Canvas, y: f64) {
        for (value, share) in ticks(self.length / 1e6) {
            canvas.text(PLOT.0 + share * PLOT.1, y, "middle", &format!("+{value} s"));
        }
    }
}

/// Labels of the drawn ranks, and the vertical place of each.
fn label_rows(canvas: &mut Canvas, analysis: &Analysis, rows: &[usize], pitch: f64) {
    for (place, row) in rows.iter().enumerate() {
        let rank = analysis.ranks[*row].rank;
        let mark = if is_blamed(analysis, rank) { "● " } else { "" };
        canvas.text(PLOT.0 - 6.0, 24.0 + (place as f64 + 0.5) * pitch + 4.0, "end", &format!("{mark}rank {rank}"));
    }
}

/// Ranks against time. Spans narrower than half a pixel are drawn as one with their neighbours of the same kind.
pub(super) fn timeline(analysis: &Analysis) -> String {
    let title = "Timeline: ranks against time";
    let (rows, sentence) = rows(analysis);
    let spans = |row: &usize| analysis.timeline.spans.get(*row).map_or(&[][..], |spans| spans);
    let all = rows.iter().flat_map(|row| spans(row).iter().map(|span| (span.0, span.1)));
    let Some(window) = Window::of(all) else { return empty(title, "The trace has no spans.") };
    let pitch = (520.0 / rows.len() as f64).clamp(13.0, 34.0);
    let bottom = 24.0 + pitch * rows.len() as f64;
    let mut canvas = Canvas::new(title, PLOT.0 + PLOT.1 + 12.0, bottom + 44.0);
    canvas.legend(12.0, &KINDS);
    label_rows(&mut canvas, analysis, &rows, pitch);
    let (mut drawn, mut left_out) = (0, 0_usize);
    for (place, row) in rows.iter().enumerate() {
        let y = 24.0 + place as f64 * pitch;
        // Right edge of the last mark of each kind.
        let mut edges = [f64::NEG_INFINITY; 8];
        for span in spans(row) {
            let kind = usize::from(span.2.min(7));
            let (from, to) = (window.x(span.0 as f64), window.x(span.0 as f64 + span.1 as f64));
            let from = from.max(edges[kind]);
            if to - from < 0.5 {
                continue;
            }
            if drawn == MARKS_MAX {
                left_out += 1;
                continue;
            }
            drawn += 1;
            edges[kind] = to;
            let is_communication = (1..=3).contains(&kind);
            let (top, height) =
                if is_communication { (y + pitch / 2.0, pitch / 2.0 - 1.0) } else { (y + 1.0, pitch - 2.0) };
            canvas.rect((from, top, to - from, height), KINDS[kind].1, "");
        }
    }
    window.axis(&mut canvas, bottom + 14.0);
    let mut sentence = sentence.unwrap_or_default();
    if left_out > 0 {
        sentence.push_str(&format!(" {left_out} spans are left out."));
    }
    canvas.text(PLOT.0, bottom + 34.0, "start", &sentence);
    canvas.finish()
}

/// Sends and receives with the lines between them.
pub(super) fn pipeline(analysis: &Analysis) -> String {
    let title = "Pipeline: sends and receives";
    let rows = rows_of_pairs(analysis);
    let places: BTreeMap<u32, usize> =
        rows.iter().enumerate().map(|(place, row)| (analysis.ranks[*row].rank, place)).collect();
    let found = analysis.pipeline.pairs.iter().filter_map(|pair| {
        let (source, destination) = (places.get(&pair.source)?, places.get(&pair.destination)?);
        Some((pair, *source as f64, *destination as f64))
    });
    let found: Vec<_> = found.collect();
    let drawn = &found[..found.len().min(MARKS_MAX / 3)];
    let Some(window) = Window::of(drawn.iter().flat_map(|(pair, ..)| [pair.send, pair.receive])) else {
        return empty(title, "No send between the drawn ranks was found with its receive.");
    };
    let pitch = (520.0 / rows.len() as f64).clamp(13.0, 34.0);
    let bottom = 24.0 + pitch * rows.len() as f64;
    let mut canvas = Canvas::new(title, PLOT.0 + PLOT.1 + 12.0, bottom + 44.0);
    canvas.legend(12.0, &[("send", SEND), ("receive", RECEIVE)]);
    label_rows(&mut canvas, analysis, &rows, pitch);
    for (pair, source, destination) in drawn {
        let middle = |place: f64| 24.0 + (place + 0.5) * pitch;
        let from = window.x(pair.send.0 as f64);
        let to = window.x(pair.receive.0 as f64 + pair.receive.1 as f64);
        canvas.line(&[(from, middle(*source)), (to, middle(*destination))], "#8f9aa8", 0.6);
        for ((start, length), place, colour) in [(pair.send, *source, SEND), (pair.receive, *destination, RECEIVE)] {
            let x = window.x(start as f64);
            let width = (window.x(start as f64 + length as f64) - x).max(0.8);
            canvas.rect((x, middle(place) - pitch * 0.3, width, pitch * 0.6), colour, "");
        }
    }
    window.axis(&mut canvas, bottom + 14.0);
    let mut sentence = match analysis.ranks.len() {
        all if all > rows.len() => {
            format!("{} of {all} ranks: those at fault with their neighbours, then the first.", rows.len())
        }
        _ => String::new(),
    };
    if found.len() > drawn.len() {
        sentence.push_str(&format!(" The first {} of {} pairs.", drawn.len(), found.len()));
    }
    canvas.text(PLOT.0, bottom + 34.0, "start", &sentence);
    canvas.finish()
}

/// Returns the rows of ranks that send to each other, those at fault first, in the order of stage and rank.
fn rows_of_pairs(analysis: &Analysis) -> Vec<usize> {
    let row_of: BTreeMap<u32, usize> = analysis.ranks.iter().enumerate().map(|(row, info)| (info.rank, row)).collect();
    let mut links: Vec<(u32, u32)> = analysis
        .pipeline
        .pairs
        .iter()
        .map(|pair| (pair.source, pair.destination))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    links.sort_by_key(|(source, destination)| !(is_blamed(analysis, *source) || is_blamed(analysis, *destination)));
    let mut rows: Vec<usize> = Vec::new();
    for row in
        links.into_iter().flat_map(|(source, destination)| [source, destination]).filter_map(|rank| row_of.get(&rank))
    {
        if rows.len() < RANKS_MAX && !rows.contains(row) {
            rows.push(*row);
        }
    }
    rows.sort_by_key(|row| (analysis.ranks[*row].stage, analysis.ranks[*row].rank));
    rows
}

//! Heat maps of the ranks, and the matrix of the links.

use super::canvas::Canvas;
use super::{MARKS_MAX, RANKS_MAX, empty, is_blamed};
use crate::document::{Analysis, RankInfo};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Ranks in one line of a heat map.
const PER_LINE: usize = 8;
/// Labels along one side of the matrix.
const LABELS_MAX: usize = 29;
/// Colours of a heat map, from 0 to the largest.
const HEAT: [(f64, f64, f64); 4] =
    [(251.0, 243.0, 217.0), (242.0, 177.0, 92.0), (194.0, 69.0, 45.0), (107.0, 18.0, 42.0)];

/// Heat map of a figure as a share of its largest value.
pub(super) fn heat(analysis: &Analysis, title: &str, of: impl Fn(&RankInfo) -> Option<f64>) -> String {
    let most = analysis.ranks.iter().filter_map(&of).fold(0.0, f64::max);
    shares(analysis, title, |info| of(info).filter(|_| most > 0.0).map(|value| value / most))
}

/// Heat map of the peak memory as a share of the capacity; if no capacity is known, of the largest rank.
pub(super) fn memory(analysis: &Analysis) -> String {
    if analysis.ranks.iter().all(|info| info.memory_capacity_bytes.is_none()) {
        let peak = |info: &RankInfo| info.peak_memory_bytes.map(|bytes| bytes as f64);
        return heat(analysis, "Peak memory, of the largest rank", peak);
    }
    shares(analysis, "Peak memory, of the capacity", |info| {
        let capacity = info.memory_capacity_bytes.filter(|capacity| *capacity > 0)?;
        Some(info.peak_memory_bytes? as f64 / capacity as f64)
    })
}

fn shares(analysis: &Analysis, title: &str, of: impl Fn(&RankInfo) -> Option<f64>) -> String {
    if analysis.ranks.iter().all(|info| of(info).is_none()) {
        return empty(title, "The trace does not have this figure of the ranks.");
    }
    let mut hosts: BTreeMap<&str, Vec<&RankInfo>> = BTreeMap::new();
    for info in &analysis.ranks {
        hosts.entry(info.host.as_deref().unwrap_or("unknown host")).or_default().push(info);
    }
    let lines: Vec<(&str, &[&RankInfo])> =
        hosts.iter().flat_map(|(host, infos)| infos.chunks(PER_LINE).map(|chunk| (*host, chunk))).collect();
    let columns = lines.len().div_ceil(32).max(1);
    let per_column = lines.len().div_ceil(columns);
    let (cell, label) = (26.0, 100.0);
    let block = label + cell * PER_LINE as f64 + 16.0;
    let mut canvas = Canvas::new(title, block * columns as f64, per_column as f64 * cell + 8.0);
    for (place, (host, infos)) in lines.iter().enumerate() {
        let (x, y) = ((place / per_column) as f64 * block + label, (place % per_column) as f64 * cell);
        let shown: String = host.chars().take(15).collect();
        canvas.text(x - 6.0, y + 17.0, "end", &shown);
        for (column, info) in infos.iter().enumerate() {
            let area = (x + column as f64 * cell, y, cell - 2.0, cell - 2.0);
            let share = of(info);
            let note = share.map_or("unknown".to_owned(), |share| format!("{:.1} %", share * 100.0));
            let colour = share.map_or("#b4bcc6".to_owned(), colour);
            canvas.rect(area, &colour, &format!("rank {}: {note}", info.rank));
            if is_blamed(analysis, info.rank) {
                canvas.frame(area, "#1f5fbf");
            }
        }
    }
    canvas.finish()
}

fn colour(share: f64) -> String {
    let at = share.clamp(0.0, 1.0) * 3.0;
    let index = if at >= 2.0 { 2 } else { usize::from(at >= 1.0) };
    let part = at - index as f64;
    let ((r, g, b), (r2, g2, b2)) = (HEAT[index], HEAT[index + 1]);
    let mix = |low: f64, high: f64| (low + (high - low) * part).round();
    format!("rgb({},{},{})", mix(r, r2), mix(g, g2), mix(b, b2))
}

/// Bandwidth of the links between the drawn ranks, one cell for each source and destination, as a share of the largest
/// bandwidth of the same kind of link.
pub(super) fn links(analysis: &Analysis) -> String {
    let title = "Bandwidth of the links: rows send, columns receive";
    let links = &analysis.communication.links;
    let ranks = ranks_of_links(analysis);
    let places: BTreeMap<u32, usize> = ranks.iter().enumerate().map(|(place, rank)| (*rank, place)).collect();
    let mut fastest: BTreeMap<&str, f64> = BTreeMap::new();
    for link in links {
        let most = fastest.entry(&link.kind).or_default();
        *most = most.max(link.bytes_per_second.unwrap_or_default());
    }
    let cell = (640.0 / ranks.len().max(1) as f64).clamp(9.0, 60.0);
    let side = cell * ranks.len() as f64;
    let mut canvas = Canvas::new(title, side + 70.0, side + 44.0);
    let mut drawn = 0;
    for link in links.iter().take(MARKS_MAX) {
        let (Some(row), Some(column)) = (places.get(&link.source), places.get(&link.destination)) else { continue };
        drawn += 1;
        let most = fastest.get(link.kind.as_str()).copied().unwrap_or_default();
        let share = link.bytes_per_second.filter(|_| most > 0.0).map(|rate| rate / most);
        let rate = link.bytes_per_second.map_or("unknown".to_owned(), |rate| format!("{:.2} GB/s", rate / 1e9));
        let area = (64.0 + *column as f64 * cell, 20.0 + *row as f64 * cell, cell - 1.0, cell - 1.0);
        let note = format!("{} -> {} ({}): {rate}", link.source, link.destination, link.kind);
        canvas.rect(area, &share.map_or("#b4bcc6".to_owned(), colour), &note);
    }
    if drawn == 0 {
        return empty(title, "The trace names no single link between the drawn ranks.");
    }
    for (rank, place) in &places {
        let middle = (*place as f64 + 0.5) * cell;
        if place % ranks.len().div_ceil(LABELS_MAX) == 0 {
            canvas.text(58.0, 24.0 + middle, "end", &format!("{rank} →"));
            canvas.text(64.0 + middle, 14.0, "middle", &rank.to_string());
        }
    }
    let all = analysis.ranks.len();
    if ranks.len() < all {
        let shown = ranks.len();
        canvas.text(
            8.0,
            side + 38.0,
            "start",
            &format!("{shown} of {all} ranks: those at fault, and those of the slowest links."),
        );
    }
    canvas.finish()
}

/// Returns the ranks at fault, and the ranks of the links with the most time, in the order of their numbers.
fn ranks_of_links(analysis: &Analysis) -> BTreeSet<u32> {
    let mut links: Vec<_> = analysis.communication.links.iter().collect();
    let at_fault = |rank| is_blamed(analysis, rank);
    links.sort_by_key(|link| Reverse((at_fault(link.source) || at_fault(link.destination), link.time_us)));
    let mut ranks = BTreeSet::new();
    for rank in links.into_iter().flat_map(|link| [link.source, link.destination]) {
        if ranks.len() == RANKS_MAX {
            break;
        }
        ranks.insert(rank);
    }
    ranks
}

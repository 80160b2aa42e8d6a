//! Means of the document's tables, and the slowest and the fastest rank.

use crate::document::{Analysis, Means, Summary, Table};
use std::collections::BTreeMap;

/// Returns the means of all tables of the document, and the ranks with which a reader begins. Call it when all other
/// figures are in the document.
#[must_use]
pub fn summarize(analysis: &Analysis) -> Summary {
    let (ranks, steps) = (analysis.ranks.len(), analysis.steps.len());
    let means: BTreeMap<String, Means> = tables(analysis)
        .into_iter()
        .map(|(path, table)| (path.to_owned(), means_of(table, ranks, steps)))
        .filter(|(_, means)| means.all.is_some())
        .collect();
    let of_rank = |path: &str, row: usize| means.get(path).and_then(|means| means.of_ranks.get(row).copied().flatten());
    let own_us: Vec<Option<f64>> = (0..ranks)
        .map(|row| {
            let wait = of_rank("communication.wait_us", row).unwrap_or(0.0);
            of_rank("breakdown.total_us", row).map(|total| tenths((total - wait).max(0.0)))
        })
        .collect();
    let transfer_share = (0..ranks)
        .map(|row| {
            let (transfer, wait) = (of_rank("communication.transfer_us", row)?, of_rank("communication.wait_us", row)?);
            (transfer + wait > 0.0).then(|| transfer / (transfer + wait))
        })
        .collect();
    let mut slowest: Option<(f64, u32)> = None;
    let mut fastest: Option<(f64, u32)> = None;
    for (own, info) in own_us.iter().zip(&analysis.ranks) {
        let Some(own) = *own else { continue };
        if slowest.is_none_or(|(most, _)| own > most) {
            slowest = Some((own, info.rank));
        }
        if fastest.is_none_or(|(least, _)| own < least) {
            fastest = Some((own, info.rank));
        }
    }
    let [slowest_rank, fastest_rank] = [slowest, fastest].map(|found| found.map(|(_, rank)| rank));
    Summary { slowest_rank, fastest_rank, own_us, transfer_share, means }
}

/// Returns the tables of the document that have means, by path. Moments have none.
fn tables(analysis: &Analysis) -> Vec<(&'static str, &Table)> {
    let (breakdown, overlap, communication) = (&analysis.breakdown, &analysis.overlap, &analysis.communication);
    vec![
        ("breakdown.total_us", &breakdown.total_us),
        ("breakdown.interval_us", &breakdown.interval_us),
        ("breakdown.forward_backward_us", &breakdown.forward_backward_us),
        ("breakdown.tail_us", &breakdown.tail_us),
        ("breakdown.data_loader_us", &breakdown.data_loader_us),
        ("breakdown.save_checkpoint_us", &breakdown.save_checkpoint_us),
        ("breakdown.idle_us", &breakdown.idle_us),
        ("overlap.computation_us", &overlap.computation_us),
        ("overlap.communication_alone_us", &overlap.communication_alone_us),
        ("overlap.stage_us", &overlap.stage_us),
        ("overlap.receive_alone_us", &overlap.receive_alone_us),
        ("overlap.collective_alone_us", &overlap.collective_alone_us),
        ("overlap.overlapped_us", &overlap.overlapped_us),
        ("communication.transfer_us", &communication.transfer_us),
        ("communication.wait_us", &communication.wait_us),
    ]
}

fn means_of(table: &Table, ranks: usize, steps: usize) -> Means {
    let cell = |row: usize, column: usize| table.get(row).and_then(|values| values.get(column).copied().flatten());
    Means {
        of_ranks: (0..ranks).map(|row| mean((0..steps).filter_map(|column| cell(row, column)))).collect(),
        of_steps: (0..steps).map(|column| mean((0..ranks).filter_map(|row| cell(row, column)))).collect(),
        all: mean((0..ranks).flat_map(|row| (0..steps).filter_map(move |column| cell(row, column)))),
    }
}

/// Returns the mean in tenths; `None` without values.
fn mean(values: impl Iterator<Item = u64>) -> Option<f64> {
    let (mut sum, mut count) = (0_u128, 0_u32);
    for value in values {
        sum += u128::from(value);
        count = count.saturating_add(1);
    }
    (count > 0).then(|| tenths(sum as f64 / f64::from(count)))
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::summarize;
    use crate::document::{Analysis, RankInfo};

    fn analysis() -> Analysis {
        let mut analysis = Analysis { steps: vec![5, 6], ..Analysis::default() };
        analysis.ranks = [3, 4, 9].map(|rank| RankInfo { rank, ..RankInfo::default() }).to_vec();
        analysis.breakdown.total_us = vec![vec![Some(100), Some(103)], vec![Some(100), None], vec![None, None]];
        analysis.communication.wait_us = vec![vec![Some(1), Some(2)], vec![Some(60), Some(60)], vec![None, None]];
        analysis.communication.transfer_us = vec![vec![Some(3), Some(3)], vec![Some(20), Some(20)]];
        analysis
    }

    #[test]
    fn means_skip_absent_cells() {
        let summary = summarize(&analysis());
        let total = &summary.means["breakdown.total_us"];
        assert_eq!(total.of_ranks, [Some(101.5), Some(100.0), None]);
        assert_eq!(total.of_steps, [Some(100.0), Some(103.0)]);
        assert_eq!(total.all, Some(101.0));
        assert!(!summary.means.contains_key("overlap.stage_us"));
    }

    #[test]
    fn slowest_rank_waits_least_for_the_others() {
        let summary = summarize(&analysis());
        assert_eq!(summary.own_us, [Some(100.0), Some(40.0), None]);
        assert_eq!((summary.slowest_rank, summary.fastest_rank), (Some(3), Some(4)));
        assert_eq!(summary.transfer_share[1], Some(0.25));
    }

    #[test]
    fn document_without_tables_has_no_slowest_rank() {
        let summary = summarize(&Analysis::default());
        assert_eq!((summary.slowest_rank, summary.fastest_rank), (None, None));
        assert!(summary.means.is_empty());
    }
}

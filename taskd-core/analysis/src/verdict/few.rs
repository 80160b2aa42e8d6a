//! The judgement on a trace of a few steps, as profilers record them: persistence cannot be seen, so a rank must stand out
//! from its peers in every step.

use super::series::Onset;
use super::{Cause, SlowRank, VerdictRule};
use crate::document::{Analysis, Table};
use crate::tables::{cell, float, median};
use std::collections::BTreeMap;

/// Minimum number of steps: what happens in a single one proves nothing.
const STEPS_MIN: usize = 2;
/// Minimum number of peers: fewer do not show their scatter.
const PEERS_MIN: usize = 3;
/// Minimum excess over the peers' median.
const EXCESS_MIN: f64 = 0.2;
/// The same in robust standard deviations of the peers, so that uneven lengths of sequences blame no rank.
const SIGMAS_MIN: f64 = 6.0;
/// Minimum robust standard deviation, as a share of the peers' median.
const SIGMA_MIN: f64 = 0.02;
/// Standard deviation of normal noise divided by its median absolute deviation.
const DEVIATION_OF_MAD: f64 = 1.4826;

/// Returns ranks that stand out from their peers in all steps, with the median own time of both.
pub(super) fn outliers(analysis: &Analysis, own_us: &Table, rule: &VerdictRule) -> Vec<SlowRank> {
    let columns = analysis.steps.len();
    if columns < STEPS_MIN || columns > rule.steps_min {
        return Vec::new();
    }
    let mut stages: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for (row, info) in analysis.ranks.iter().enumerate() {
        stages.entry(info.stage).or_default().push(row);
    }
    let mut found = Vec::new();
    for rows in stages.values().filter(|rows| rows.len() > PEERS_MIN) {
        let outlier = |row: &usize| outlier(analysis, own_us, rows, *row);
        let slow: Vec<SlowRank> = rows.iter().filter_map(outlier).collect();
        // Several ranks that stand out are an uneven load, or a host: that takes more steps to decide.
        if let [one] = &slow[..] {
            found.push(one.clone());
        }
    }
    if found.len() == 1 { found } else { Vec::new() }
}

fn outlier(analysis: &Analysis, own_us: &Table, rows: &[usize], row: usize) -> Option<SlowRank> {
    let (mut owns, mut usuals, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for column in 0..analysis.steps.len() {
        let own = cell(own_us, row, column).map(float)?;
        let others = rows.iter().filter(|other| **other != row);
        let peers: Vec<f64> = others.clone().filter_map(|other| cell(own_us, *other, column)).map(float).collect();
        if peers.len() < PEERS_MIN {
            return None;
        }
        let usual = median(peers.clone())?;
        let sigma = median(peers.iter().map(|peer| (peer - usual).abs()).collect())? * DEVIATION_OF_MAD;
        let excess = own - usual;
        if excess < EXCESS_MIN * usual || excess < SIGMAS_MIN * sigma.max(SIGMA_MIN * usual) {
            return None;
        }
        let wait = |row: &usize| {
            let total = cell(&analysis.breakdown.total_us, *row, column)?;
            Some(float(total.saturating_sub(cell(own_us, *row, column)?)))
        };
        waits.push(median(others.filter_map(wait).collect())? - wait(&row)?);
        owns.push(own);
        usuals.push(usual);
    }
    let (own_us, peers_us, waited_us) = (median(owns)?, median(usuals)?, median(waits)?);
    let level = own_us / peers_us - 1.0;
    // Peers that do not wait are not held up.
    if waited_us < (own_us - peers_us) / 2.0 {
        return None;
    }
    let onset = Onset { first: 0, end: analysis.steps.len(), level, share: 1.0 };
    let cause = cause(analysis, rows, row, own_us - peers_us)?;
    Some(SlowRank { row, cause, onset, own_us, peers_us, waited_us })
}

/// Returns the cause: the input or the checkpoints, if they explain most of the excess. `None`: the rank writes a
/// checkpoint and no peer does, which is its task.
fn cause(analysis: &Analysis, rows: &[usize], row: usize, excess: f64) -> Option<Cause> {
    let usual = |table: &Table, row: usize| {
        let values: Vec<f64> = (0..analysis.steps.len()).filter_map(|at| cell(table, row, at)).map(float).collect();
        median(values).unwrap_or_default()
    };
    let more = |table: &Table| {
        let others = rows.iter().filter(|other| **other != row).map(|other| usual(table, *other)).collect();
        usual(table, row) - median(others).unwrap_or_default()
    };
    let saves = &analysis.breakdown.save_checkpoint_us;
    if more(saves) > excess / 2.0 {
        let is_alone = rows.iter().all(|other| *other == row || usual(saves, *other) <= 0.0);
        (!is_alone).then_some(Cause::Checkpoint)
    } else if more(&analysis.breakdown.data_loader_us) > excess / 2.0 {
        Some(Cause::Input)
    } else {
        Some(Cause::Rank)
    }
}

//! The rule for what the fail-slow engine cannot see: slow-downs that begin before it has learned the usual times, above
//! all in traces of a few steps. Ranks are compared with the other ranks of their stage within each step.
//!
//! Without kernels only the rank with the largest excess is blamed: communication that overlaps a pass counts as the
//! rank's own time there, so that victims of a slow rank can look slow, too, though less than it.

use super::series::{self, Onset, others_median};
use super::{Cause, SlowRank, VerdictRule};
use crate::document::{Analysis, Table};
use crate::tables::{cell, float, median};
use std::collections::BTreeMap;

/// More slow ranks than this share of the job, in percent, are no stragglers, unless they are one host: the job is uneven.
const SLOW_RANKS_MAX_PERCENT: usize = 34;

/// One step of one rank compared to its peers.
#[derive(Clone, Copy, Debug)]
struct Compared {
    column: usize,
    own_us: f64,
    peers_us: f64,
    /// Excess over the peers as a share of their time.
    excess: f64,
}

/// Returns the ranks that are persistently slower than their peers, and for which these wait.
pub(super) fn slow_ranks(analysis: &Analysis, own_us: &Table, rule: &VerdictRule) -> Vec<SlowRank> {
    let mut stages: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for (row, info) in analysis.ranks.iter().enumerate() {
        stages.entry(info.stage).or_default().push(row);
    }
    let mut slow = Vec::new();
    for rows in stages.values().filter(|rows| rows.len() > 1) {
        let compared = compare(analysis, own_us, rows);
        let excess: Vec<Vec<f64>> =
            compared.iter().map(|steps| steps.iter().map(|step| step.excess).collect()).collect();
        let noise = series::noise(excess.iter().map(Vec::as_slice));
        for (row, steps) in rows.iter().zip(&compared) {
            let all = find(analysis, *row, steps, noise, rule, rule.steps_min);
            let found = all.or_else(|| {
                let saves =
                    |step: &&Compared| cell(&analysis.breakdown.save_checkpoint_us, *row, step.column) > Some(0);
                let saving: Vec<Compared> = steps.iter().filter(saves).copied().collect();
                let found = find(analysis, *row, &saving, noise, rule, rule.checkpoints_min)?;
                (found.1 == Cause::Checkpoint).then_some(found)
            });
            if let Some((onset, cause, own_us, peers_us)) = found {
                slow.push(SlowRank { row: *row, cause, onset, own_us, peers_us, waited_us: 0.0 });
            }
        }
    }
    slow.retain_mut(|slow| {
        let (excess, waited) = waited(analysis, own_us, &stages[&analysis.ranks[slow.row].stage], slow);
        slow.waited_us = waited;
        waited >= rule.waited_share * excess
    });
    let are_many = slow.len() * 100 > analysis.ranks.len() * SLOW_RANKS_MAX_PERCENT && slow.len() > 1;
    if are_many && !is_host(analysis, &slow) {
        slow.clear();
    }
    slow
}

/// Returns true if the slow ranks are all ranks of one host of several.
fn is_host(analysis: &Analysis, slow: &[SlowRank]) -> bool {
    let host_of = |row: usize| analysis.ranks[row].host.as_deref();
    let host = slow.first().and_then(|slow| host_of(slow.row));
    let on_host = (0..analysis.ranks.len()).filter(|row| host_of(*row) == host).count();
    host.is_some() && slow.iter().all(|slow| host_of(slow.row) == host) && slow.len() == on_host
}

/// Compares each row of a stage with the others in each step.
///
/// The first step is left out, because it includes the warm-up. A step in which a rank writes a checkpoint and no peer
/// does is left out: to write it is the rank's task.
fn compare(analysis: &Analysis, own_us: &Table, rows: &[usize]) -> Vec<Vec<Compared>> {
    let mut compared: Vec<Vec<Compared>> = vec![Vec::new(); rows.len()];
    let saves = |row: usize, column| cell(&analysis.breakdown.save_checkpoint_us, row, column) > Some(0);
    for column in 1..analysis.steps.len() {
        let own: Vec<Option<f64>> = rows.iter().map(|row| cell(own_us, *row, column).map(float)).collect();
        let saving = rows.iter().filter(|row| saves(**row, column)).count();
        let peers = others_median(&own);
        for (((row, own), peers), compared) in rows.iter().zip(own).zip(peers).zip(&mut compared) {
            let (Some(own), Some(peers)) = (own, peers.filter(|peers| *peers > 0.0)) else { continue };
            if saving == 1 && saves(*row, column) {
                continue;
            }
            compared.push(Compared { column, own_us: own, peers_us: peers, excess: own / peers - 1.0 });
        }
    }
    compared
}

/// Finds a range of steps in which a rank is slow, and the cause.
fn find(
    analysis: &Analysis,
    row: usize,
    steps: &[Compared],
    noise: f64,
    rule: &VerdictRule,
    steps_min: usize,
) -> Option<(Onset, Cause, f64, f64)> {
    let excess: Vec<f64> = steps.iter().map(|step| step.excess).collect();
    let onset = series::onset(&excess, rule.rank_percent / 100.0, noise, steps_min)?;
    let affected = &steps[onset.first..onset.end];
    let of = |value: &dyn Fn(&Compared) -> f64| median(affected.iter().map(value).collect());
    let (own, peers) = (of(&|step| step.own_us)?, of(&|step| step.peers_us)?);
    let part = |table: &Table| {
        let of_row = |step: &Compared| cell(table, row, step.column).map_or(0.0, float);
        let others = |step: &Compared| {
            let stage = analysis.ranks[row].stage;
            let rows = (0..analysis.ranks.len()).filter(|other| *other != row && analysis.ranks[*other].stage == stage);
            median(rows.filter_map(|other| cell(table, other, step.column)).map(float).collect()).unwrap_or_default()
        };
        of(&|step| of_row(step) - others(step)).unwrap_or_default()
    };
    let (input, checkpoint) = (part(&analysis.breakdown.data_loader_us), part(&analysis.breakdown.save_checkpoint_us));
    let rest = own - peers - input - checkpoint;
    let cause = if checkpoint >= input.max(rest) {
        Cause::Checkpoint
    } else if input >= rest {
        Cause::Input
    } else {
        Cause::Rank
    };
    let onset = Onset { first: affected.first()?.column, end: affected.last()?.column + 1, ..onset };
    Some((onset, cause, own, peers))
}

/// Returns the sum of the excess, and of the time for which the peers wait beyond the rank's own waits, per step.
///
/// A rank that is late at the end of a step lets its peers wait in the next one, which therefore counts too.
fn waited(analysis: &Analysis, own_us: &Table, rows: &[usize], slow: &SlowRank) -> (f64, f64) {
    let (mut excess, mut waited, mut count) = (0.0, 0.0, 0.0);
    let at = rows.iter().position(|row| *row == slow.row).unwrap_or_default();
    for column in slow.onset.first..(slow.onset.end + 1).min(analysis.steps.len()) {
        let own: Vec<Option<f64>> = rows.iter().map(|row| cell(own_us, *row, column).map(float)).collect();
        let idle = |row: &usize| {
            let total = cell(&analysis.breakdown.total_us, *row, column)?;
            Some(float(total.saturating_sub(cell(own_us, *row, column)?)))
        };
        let waits: Vec<Option<f64>> = rows.iter().map(idle).collect();
        let difference = |values: &[Option<f64>]| Some((values[at]?, others_median(values)[at]?));
        if let (Some((own, peers)), Some((wait, others))) = (difference(&own), difference(&waits)) {
            excess += own - peers;
            waited += others - wait;
            count += 1.0;
        }
    }
    if count > 0.0 { (excess / count, waited / count) } else { (0.0, -1.0) }
}

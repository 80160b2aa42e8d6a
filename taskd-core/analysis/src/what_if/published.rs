//! The figures of *Understanding Stragglers in Large Model Training Using What-if Analysis* (OSDI 2025), by its
//! definitions.
//!
//! With T the modelled mean time of a step, and T_ideal that time if every operation takes the expected time of its
//! class over all workers and steps:
//!
//! - S = T / T_ideal (equation 1);
//! - S_t = T(ideal, but operations of type t as measured) / T_ideal (equation 2); sends and receives of one direction are
//!   one type;
//! - S_w = the smaller of S_dp and S_stage of the worker's data-parallel rank and stage, each by the same formula
//!   (equation 4, by its approximation);
//! - M_W = (T − T without the slowest 3 % of the workers) / (T − T_ideal) (equation 5), with the slowest by S_w;
//! - M_S = (T − T without the last stage) / (T − T_ideal).
//!
//! *Without* means that the operations take their expected time.

use super::model::{Model, Op};
use super::operation::Worker;
use super::statistics;
use std::collections::BTreeMap;

/// Percentage of the workers that M_W covers.
const SLOWEST_PERCENT: usize = 3;

/// Maximum number of data-parallel ranks, and of stages, that are replayed one by one: those with the largest excess.
pub const DIMENSION_MAX: usize = 64;

/// Figures by the definitions of the paper. Times are seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Published {
    /// T: modelled mean time of a step.
    pub modelled_s: f64,
    /// T_ideal: that time if every operation takes its expected time.
    pub ideal_s: f64,
    /// S: slowdown by all stragglers.
    pub slowdown: f64,
    /// S_t by the type's name, the largest first.
    pub by_type: Vec<(String, f64)>,
    /// Slowdown by each data-parallel rank, the largest first.
    pub by_data_rank: Vec<(u32, f64)>,
    /// Slowdown by each stage, the largest first.
    pub by_stage: Vec<(u32, f64)>,
    /// S_w, the largest first.
    pub by_worker: Vec<(Worker, f64)>,
    /// M_W; `None` if T equals T_ideal.
    pub slowest_workers_share: Option<f64>,
    /// M_S; `None` if T equals T_ideal.
    pub last_stage_share: Option<f64>,
    /// Number of data-parallel ranks and stages that were not replayed because of [`DIMENSION_MAX`].
    pub left_out: usize,
}

/// Computes the figures. `ideal` has the expected time of each operation.
pub(super) fn figures(model: &Model, ideal: &[f64]) -> Published {
    let modelled_s = model.mean_step(&model.work);
    let ideal_s = model.mean_step(ideal);
    let mut work = ideal.to_vec();
    let mut only = |is_selected: &dyn Fn(&Op) -> bool| {
        replace(model, &mut work, &model.work, is_selected);
        let slowdown = ratio(model.mean_step(&work), ideal_s);
        replace(model, &mut work, ideal, is_selected);
        slowdown
    };
    let mut types: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (class, figures) in (0_u32..).zip(&model.classes) {
        types.entry(merged(&figures.name)).or_default().push(class);
    }
    types.retain(|_, classes| model.ops.iter().any(|op| classes.contains(&op.class)));
    let types: Vec<(String, f64)> = types
        .into_iter()
        .take(DIMENSION_MAX)
        .map(|(name, classes)| (name.to_owned(), only(&|op| classes.contains(&op.class))))
        .collect();
    let data_rank = |op: &Op| model.workers[op.worker as usize].data;
    let (data_ranks, left_out) = largest(model, ideal, &data_rank);
    let data_ranks: Vec<(u32, f64)> =
        data_ranks.into_iter().map(|rank| (rank, only(&|op| data_rank(op) == rank))).collect();
    let stage = |op: &Op| model.stage(op);
    let (stages, stages_left_out) = largest(model, ideal, &stage);
    let stages: Vec<(u32, f64)> = stages.into_iter().map(|number| (number, only(&|op| stage(op) == number))).collect();
    let by_worker = workers(model, &data_ranks, &stages);
    let slowest = by_worker.len().saturating_mul(SLOWEST_PERCENT).div_ceil(100);
    let slowest: Vec<Worker> = by_worker.iter().take(slowest).map(|(worker, _)| *worker).collect();
    let mut work = model.work.clone();
    let mut without = |is_selected: &dyn Fn(&Op) -> bool| {
        replace(model, &mut work, ideal, is_selected);
        let time = model.mean_step(&work);
        replace(model, &mut work, &model.work, is_selected);
        (modelled_s > ideal_s).then(|| (modelled_s - time) / (modelled_s - ideal_s))
    };
    let last = model.workers.iter().map(|worker| worker.stage).max().unwrap_or(0);
    Published {
        modelled_s,
        ideal_s,
        slowdown: ratio(modelled_s, ideal_s),
        slowest_workers_share: without(&|op| slowest.contains(&model.workers[op.worker as usize])),
        last_stage_share: without(&|op| model.stage(op) == last),
        by_type: sorted(types),
        by_data_rank: sorted(data_ranks),
        by_stage: sorted(stages),
        by_worker,
        left_out: left_out + stages_left_out,
    }
}

/// Gives the selected operations their times in `from`.
fn replace(model: &Model, work: &mut [f64], from: &[f64], is_selected: &dyn Fn(&Op) -> bool) {
    for ((op, work), from) in model.ops.iter().zip(work).zip(from) {
        if is_selected(op) {
            *work = *from;
        }
    }
}

/// Returns the values of a dimension, at most [`DIMENSION_MAX`] with the largest excess over the expected times, and the
/// number of the others.
fn largest(model: &Model, ideal: &[f64], dimension: &dyn Fn(&Op) -> u32) -> (Vec<u32>, usize) {
    let mut excess: BTreeMap<u32, f64> = BTreeMap::new();
    for ((op, work), ideal) in model.ops.iter().zip(&model.work).zip(ideal) {
        *excess.entry(dimension(op)).or_default() += work - ideal;
    }
    let mut values: Vec<(u32, f64)> = excess.into_iter().collect();
    values.sort_by(|a, b| b.1.total_cmp(&a.1));
    let left_out = values.len().saturating_sub(DIMENSION_MAX);
    values.truncate(DIMENSION_MAX);
    (values.into_iter().map(|(value, _)| value).collect(), left_out)
}

/// S_w of each worker of the replayed data-parallel ranks and stages; of equal ones, the lower rank first.
fn workers(model: &Model, data_ranks: &[(u32, f64)], stages: &[(u32, f64)]) -> Vec<(Worker, f64)> {
    let find = |values: &[(u32, f64)], value: u32| values.iter().find(|(known, _)| *known == value).map(|(_, s)| *s);
    let mut workers: Vec<(Worker, f64)> = model
        .workers
        .iter()
        .filter_map(|worker| {
            let by_data_rank = find(data_ranks, worker.data)?;
            Some((*worker, by_data_rank.min(find(stages, worker.stage)?)))
        })
        .collect();
    workers.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.rank.cmp(&b.0.rank)));
    workers
}

fn sorted<T>(mut values: Vec<(T, f64)>) -> Vec<(T, f64)> {
    values.sort_by(|a, b| b.1.total_cmp(&a.1));
    values
}

fn merged(name: &str) -> &str {
    match name {
        "forward-send" | "forward-recv" => "forward-pp-comm",
        "backward-send" | "backward-recv" => "backward-pp-comm",
        other => other,
    }
}

/// Returns `over / under`; 1 if both are 0, which is the slowdown of no time at all.
pub(super) fn ratio(over: f64, under: f64) -> f64 {
    if under > 0.0 { over / under } else { 1.0 }
}

/// Returns the sum of the times of all steps in microseconds.
pub(super) fn microseconds(mean_step_s: f64, steps: usize) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time; the cast saturates")]
    let microseconds = (mean_step_s * statistics::count(steps) * 1e6).round() as u64;
    microseconds
}

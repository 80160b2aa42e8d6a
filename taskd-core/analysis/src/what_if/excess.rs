//! Excess of each worker's computation over its peers, separated from what no worker causes: uneven stages and
//! micro-batches of different lengths.
//!
//! The logarithm of an operation's time is modelled as the sum of
//!
//! 1. the level of its role (class, stage, model chunk, tensor-parallel rank): the median over the *other* data-parallel
//!    ranks of their medians, so that a longer stage is no excess and a slow worker does not raise its own level;
//! 2. the length of its micro-batch: the median over the *other* stages through which the same micro-batch passes, so
//!    that long sequences, which slow all stages of a replica, are no stage's excess. Its mean over the worker's
//!    operations, if it is clear of the noise, is left in the excess: lengths vary around a mean that all replicas
//!    share, so a lasting difference is rather one slow worker than a replica of longer data with other stages faster;
//! 3. the excess of the worker in the step: the median over its micro-batches, so that single pauses do not count;
//! 4. noise.

use super::model::{Model, NONE, Op};
use super::statistics;
use std::collections::BTreeMap;

/// Excess of the workers, and what was separated from it.
pub(super) struct Excess {
    /// Logarithm of the operation's time over the level of its role; not a number where there is no peer.
    pub(super) raw: Vec<f64>,
    /// The same without the length of the micro-batch.
    pub(super) residuals: Vec<f64>,
    /// Logarithm of the time of the operation's micro-batch over that of a usual one; 0 where it is unknown.
    pub(super) micro_batches: Vec<f64>,
    /// Logarithm of the role's level, by role.
    pub(super) levels: BTreeMap<Role, f64>,
    /// Excess as a fraction of the expected time: of each worker a value per step; not a number where there is no peer.
    pub(super) series: Vec<Vec<f64>>,
}

/// Operations that are expected to take equal times: class, stage, model chunk and tensor-parallel rank.
pub(super) type Role = (u32, u32, u32, u32);

/// Largest number of operations of one micro-batch for which the median is taken without the own stage. With more, the
/// own stage hardly changes the median.
const STAGES_EXACT_MAX: usize = 128;

/// Smallest mean length of a worker's micro-batches, in standard errors, that is a lasting difference.
const LASTING_MIN: f64 = 3.0;

/// Smallest number of a class's operations in a step for which the median is the excess of that step.
const STEP_OPERATIONS_MIN: usize = 8;

/// Returns true for an operation that is compared with peers.
pub(super) fn is_compared(model: &Model, op: &Op) -> bool {
    let class = &model.classes[op.class as usize];
    class.is_compute && op.duration > 0.0
}

fn role(model: &Model, op: &Op) -> Role {
    let worker = model.workers[op.worker as usize];
    (op.class, worker.stage, op.chunk, worker.tensor)
}

impl Excess {
    /// Computes the excess, if the operations take the times of `work`.
    pub(super) fn new(model: &Model, work: &[f64]) -> Excess {
        let compared: Vec<usize> =
            (0..model.ops.len()).filter(|number| is_compared(model, &model.ops[*number])).collect();
        let (expected, levels) = peers(model, work, &compared);
        let mut residuals = vec![f64::NAN; model.ops.len()];
        for number in &compared {
            let op = &model.ops[*number];
            if let Some(level) = expected.get(&(role(model, op), op.worker)) {
                residuals[*number] = work[*number].max(f64::MIN_POSITIVE).ln() - level;
            }
        }
        let raw = residuals.clone();
        let micro_batches = separate_micro_batches(model, &compared, &mut residuals);
        let mut excess = Excess { raw, residuals, micro_batches, levels, series: Vec::new() };
        excess.series = excess.series(model, work, &compared);
        excess
    }

    /// Returns the excess of each worker and step: the medians of its classes, weighted with their expected times.
    fn series(&self, model: &Model, work: &[f64], compared: &[usize]) -> Vec<Vec<f64>> {
        let mut values: BTreeMap<(u32, u32, u32), (Vec<f64>, f64)> = BTreeMap::new();
        for number in compared.iter().copied().filter(|number| self.residuals[*number].is_finite()) {
            let op = &model.ops[number];
            let (residuals, time) = values.entry((op.worker, op.step, op.class)).or_default();
            residuals.push(self.residuals[number]);
            *time += work[number] / self.residuals[number].exp();
        }
        let mut sums = vec![vec![(0.0, 0.0); model.steps.len()]; model.workers.len()];
        for ((worker, step, _), (mut residuals, expected)) in values {
            let (excess, time) = &mut sums[worker as usize][step as usize];
            *excess += expected * statistics::median(&mut residuals).unwrap_or(0.0).exp_m1();
            *time += expected;
        }
        sums.into_iter().map(|steps| steps.into_iter().map(|(excess, time)| excess / time).collect()).collect()
    }

    /// Divides the times of a worker's computation in the steps `first..end` by its excess: by that of the step, or of
    /// all these steps if a step has few operations.
    pub(super) fn remove(&self, model: &Model, worker: u32, steps: (usize, usize), work: &mut [f64]) {
        let is_own = |number: &usize| {
            let op = &model.ops[*number];
            op.worker == worker
                && (steps.0..steps.1).contains(&(op.step as usize))
                && self.residuals[*number].is_finite()
        };
        let own: Vec<usize> = (0..model.ops.len()).filter(is_own).collect();
        let mut by_step: BTreeMap<(u32, u32), Vec<f64>> = BTreeMap::new();
        let mut by_class: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for number in &own {
            let op = &model.ops[*number];
            by_step.entry((op.class, op.step)).or_default().push(self.residuals[*number]);
            by_class.entry(op.class).or_default().push(self.residuals[*number]);
        }
        let pooled: BTreeMap<u32, f64> =
            by_class.into_iter().filter_map(|(class, mut all)| Some((class, statistics::median(&mut all)?))).collect();
        let factors: BTreeMap<(u32, u32), f64> = by_step
            .into_iter()
            .filter_map(|(key, mut values)| {
                let of_step = (values.len() >= STEP_OPERATIONS_MIN).then(|| statistics::median(&mut values)).flatten();
                Some((key, of_step.or_else(|| pooled.get(&key.0).copied())?.exp()))
            })
            .collect();
        for number in own {
            let op = &model.ops[number];
            work[number] /= factors.get(&(op.class, op.step)).copied().unwrap_or(1.0);
        }
    }

    /// Returns the mean excess over the levels of their roles, as a fraction, of each worker.
    pub(super) fn raw_levels(&self, model: &Model) -> Vec<Option<f64>> {
        let mut sums = vec![(0.0, 0_usize); model.workers.len()];
        for (op, raw) in model.ops.iter().zip(&self.raw).filter(|(_, raw)| raw.is_finite()) {
            let (sum, count) = &mut sums[op.worker as usize];
            (*sum, *count) = (*sum + raw, *count + 1);
        }
        sums.into_iter().map(|(sum, count)| (count > 0).then(|| (sum / statistics::count(count)).exp_m1())).collect()
    }

    /// Returns the mean excess over the levels of their roles, as a fraction, of the other stages of a worker's replica in
    /// the steps `first..end`: the median over the stages; `None`: there is no other stage.
    pub(super) fn of_other_stages(&self, model: &Model, worker: u32, steps: (usize, usize)) -> Option<f64> {
        let own = model.workers[worker as usize];
        let mut sums: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (op, raw) in model.ops.iter().zip(&self.raw) {
            let other = model.workers[op.worker as usize];
            let is_other = (other.data, other.tensor) == (own.data, own.tensor) && other.stage != own.stage;
            if is_other && raw.is_finite() && (steps.0..steps.1).contains(&(op.step as usize)) {
                sums.entry(other.stage).or_default().push(*raw);
            }
        }
        statistics::median(&mut sums.into_values().map(|raw| statistics::mean(&raw).exp_m1()).collect::<Vec<f64>>())
    }
}

/// Returns the level that each worker's peers set for its roles, and the level of each role over all workers.
fn peers(model: &Model, work: &[f64], compared: &[usize]) -> (BTreeMap<(Role, u32), f64>, BTreeMap<Role, f64>) {
    let mut values: BTreeMap<Role, BTreeMap<u32, Vec<f64>>> = BTreeMap::new();
    for number in compared {
        let op = &model.ops[*number];
        let own = values.entry(role(model, op)).or_default().entry(op.worker).or_default();
        own.push(work[*number].max(f64::MIN_POSITIVE).ln());
    }
    let (mut expected, mut levels) = (BTreeMap::new(), BTreeMap::new());
    for (role, workers) in values {
        let mut medians: Vec<(f64, u32)> = workers
            .into_iter()
            .filter_map(|(worker, mut values)| Some((statistics::median(&mut values)?, worker)))
            .collect();
        medians.sort_by(|a, b| a.0.total_cmp(&b.0));
        let sorted: Vec<f64> = medians.iter().map(|(median, _)| *median).collect();
        levels.extend(statistics::median(&mut sorted.clone()).map(|level| (role, level)));
        for (index, (_, worker)) in medians.iter().enumerate() {
            expected.extend(statistics::low_median_without(&sorted, index).map(|level| ((role, *worker), level)));
        }
    }
    (expected, levels)
}

/// Subtracts the length of the micro-batch from each residual, and returns the lengths over all stages.
fn separate_micro_batches(model: &Model, compared: &[usize], residuals: &mut [f64]) -> Vec<f64> {
    let key = |number: usize| {
        let op = &model.ops[number];
        let worker = model.workers[op.worker as usize];
        (op.step, worker.data, worker.tensor, op.class, op.micro_batch)
    };
    let mut passes: Vec<usize> = compared
        .iter()
        .copied()
        .filter(|number| model.ops[*number].micro_batch != NONE && residuals[*number].is_finite())
        .collect();
    passes.sort_by_key(|number| key(*number));
    let (mut lengths, mut own_lengths) = (vec![0.0; residuals.len()], vec![0.0; residuals.len()]);
    let mut means: BTreeMap<(u32, u32), Vec<f64>> = BTreeMap::new();
    let mut others = Vec::new();
    for passes in passes.chunk_by(|a, b| key(*a) == key(*b)) {
        let stage = |number: usize| model.stage(&model.ops[number]);
        let is_long = passes.len() > STAGES_EXACT_MAX;
        let mut all: Vec<f64> = passes.iter().map(|number| residuals[*number]).collect();
        let overall = statistics::median(&mut all).unwrap_or(0.0);
        for number in passes {
            others.clear();
            others.extend(passes.iter().filter(|o| stage(**o) != stage(*number)).map(|other| residuals[*other]));
            let length = if is_long { Some(overall) } else { statistics::median(&mut others) };
            let Some(length) = length else { continue };
            (lengths[*number], own_lengths[*number]) = (overall, length);
            means.entry((model.ops[*number].worker, model.ops[*number].class)).or_default().push(length);
        }
    }
    let means: BTreeMap<(u32, u32), f64> =
        means.into_iter().map(|(key, lengths)| (key, statistics::significant_mean(&lengths, LASTING_MIN))).collect();
    for number in passes {
        let op = &model.ops[number];
        let mean = means.get(&(op.worker, op.class)).copied().unwrap_or(0.0);
        if own_lengths[number] != 0.0 {
            residuals[number] -= own_lengths[number] - mean;
        }
    }
    lengths
}

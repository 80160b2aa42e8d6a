//! Scenarios: the time of the job without one cause.

use super::blame::{Search, Straggler, WORKERS_MAX};
use super::excess;
use super::model::{Model, Waits};
use super::published::{microseconds, ratio};
use super::statistics;
use crate::document::Scenario;
use std::collections::BTreeMap;

/// Smallest gain for which a worker has a scenario of its own.
pub(super) const GAIN_MIN: f64 = 0.001;

/// A scenario, and the kind of its cause.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cause {
    pub(super) scenario: Scenario,
    pub(super) kind: CauseKind,
}

/// Kind of a cause that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CauseKind {
    All,
    Worker,
    Stages,
    MicroBatches,
    Communication,
    /// One link or group, or the waits of one worker.
    Delay,
    Input,
    Storage,
    /// A time that no job reaches: it is listed, but no verdict names it.
    Bound,
}

/// What all scenarios of a model share.
pub(super) struct Base<'a> {
    pub(super) model: &'a Model,
    pub(super) search: &'a Search,
    pub(super) ideal: &'a [f64],
    pub(super) modelled_s: f64,
    pub(super) ideal_s: f64,
    /// Computation contains waits for other workers: no scenario takes a part of it away, or a single link.
    pub(super) hides_waits: bool,
}

impl Base<'_> {
    /// Returns the scenarios, the largest gain first; those that are only a bound come last.
    pub(super) fn scenarios(&self) -> Vec<Cause> {
        let mut causes = vec![self.cause(
            "all stragglers: every operation takes its expected time".to_owned(),
            Vec::new(),
            self.ideal_s,
            CauseKind::All,
        )];
        let Search { blamed, others, work, .. } = self.search;
        if blamed.len() > 1 {
            let ranks = blamed.iter().map(|straggler| straggler.worker.rank).collect();
            let without = format!("all {} workers at fault", blamed.len());
            causes.push(self.cause(without, ranks, self.model.mean_step(work), CauseKind::Worker));
        }
        let workers: Vec<&Straggler> = blamed.iter().chain(others).collect();
        for (index, straggler) in workers.into_iter().enumerate().take(WORKERS_MAX) {
            let words = straggler.worker.to_words();
            let without = if index == 0 { format!("slowest worker: {words}") } else { format!("worker: {words}") };
            if index == 0 || straggler.speedup >= 1.0 + GAIN_MIN {
                let ranks = vec![straggler.worker.rank];
                causes.push(self.cause(without, ranks, straggler.without_s, CauseKind::Worker));
            }
        }
        if !self.hides_waits {
            causes.extend(self.stages());
            causes.extend(self.micro_batches());
            causes.extend(self.delays());
        }
        causes.extend(self.class(
            "communication delays",
            CauseKind::Communication,
            super::model::Class::is_communication,
        ));
        causes.extend(self.host_waits(Waits::Input, "slow input", CauseKind::Input));
        causes.extend(self.host_waits(Waits::Storage, "slow storage of checkpoints", CauseKind::Storage));
        causes.sort_by_key(|cause| (cause.kind == CauseKind::Bound, cause.scenario.time_us));
        causes
    }

    pub(super) fn cause(&self, without: String, ranks: Vec<u32>, time_s: f64, kind: CauseKind) -> Cause {
        let whole = self.modelled_s - self.ideal_s;
        let share = if whole > 0.0 { ((self.modelled_s - time_s) / whole).clamp(0.0, 1.0) } else { 0.0 };
        let time_us = microseconds(time_s, self.model.steps.len());
        Cause { scenario: Scenario { without, ranks, time_us, speedup: ratio(self.modelled_s, time_s), share }, kind }
    }

    /// The stages share the computation evenly: the level of each class is the mean of the stages.
    fn stages(&self) -> Option<Cause> {
        // Time of a class on a stage, with all of its model chunks.
        let mut totals: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for ((class, stage, _, tensor), level) in &self.search.excess.levels {
            if *tensor == 0 {
                *totals.entry((*class, *stage)).or_default() += level.exp();
            }
        }
        let mut stages: BTreeMap<u32, f64> = BTreeMap::new();
        let mut classes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for ((class, stage), total) in &totals {
            *stages.entry(*stage).or_default() += total;
            classes.entry(*class).or_default().push(*total);
        }
        let (longest, _) = stages.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        if stages.len() < 2 {
            return None;
        }
        let mut work = self.model.work.clone();
        for (op, work) in self.model.ops.iter().zip(&mut work) {
            let total = totals.get(&(op.class, self.model.stage(op)));
            let mean =
                classes.get(&op.class).filter(|totals| totals.len() == stages.len()).map(|all| statistics::mean(all));
            if let (true, Some(total), Some(mean)) = (excess::is_compared(self.model, op), total, mean) {
                *work *= mean / total;
            }
        }
        let of_stage = self.model.workers.iter().filter(|worker| worker.stage == *longest);
        let ranks = of_stage.map(|worker| worker.rank).collect();
        let without = format!("uneven stages, of which stage {longest} computes the longest");
        Some(self.cause(without, ranks, self.model.mean_step(&work), CauseKind::Stages))
    }

    /// All micro-batches take equal times.
    fn micro_batches(&self) -> Option<Cause> {
        let lengths = &self.search.excess.micro_batches;
        if lengths.iter().all(|length| *length == 0.0) {
            return None;
        }
        let work: Vec<f64> = self.model.work.iter().zip(lengths).map(|(work, length)| work / length.exp()).collect();
        let without = "micro-batches of different lengths".to_owned();
        Some(self.cause(without, Vec::new(), self.model.mean_step(&work), CauseKind::MicroBatches))
    }

    /// The operations of the selected classes take their expected times.
    fn class(&self, without: &str, kind: CauseKind, is_selected: fn(&super::model::Class) -> bool) -> Option<Cause> {
        let is_selected = |class: u32| is_selected(&self.model.classes[class as usize]);
        if !self.model.ops.iter().any(|op| is_selected(op.class)) {
            return None;
        }
        let mut work = self.model.work.clone();
        for ((op, work), ideal) in self.model.ops.iter().zip(&mut work).zip(self.ideal) {
            if is_selected(op.class) {
                *work = *ideal;
            }
        }
        Some(self.cause(without.to_owned(), Vec::new(), self.model.mean_step(&work), kind))
    }
}

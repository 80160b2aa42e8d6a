//! Scenarios of communication and of the host: a slow link or group, slow input, and slow storage of checkpoints.

use super::model::{Class, Waits};
use super::scenarios::{Base, Cause, CauseKind, GAIN_MIN};
use std::collections::BTreeMap;

/// Links and groups with a scenario of their own, those with the largest delay.
pub(super) const DELAYS_MAX: usize = 4;

/// Ranks of a group that its name lists.
const RANKS_NAMED_MAX: usize = 8;

impl Base<'_> {
    /// Returns the scenarios of single links and groups: their transfers take the expected time. The members of a
    /// transfer are known, the link of a ring that delays it is not.
    pub(super) fn delays(&self) -> Vec<Cause> {
        let model = self.model;
        let mut sets: BTreeMap<Vec<u32>, (f64, Vec<u32>)> = BTreeMap::new();
        for members in model.graph.groups() {
            let mut workers: Vec<u32> = members.iter().map(|op| model.ops[*op as usize].worker).collect();
            workers.sort_unstable();
            workers.dedup();
            if workers.len() < 2 || workers.len() == model.workers.len() {
                continue; // all ranks together are the scenario of all communication
            }
            let delay = |op: &u32| model.work[*op as usize] - self.ideal[*op as usize];
            let (sum, ops) = sets.entry(workers).or_default();
            *sum += members.iter().map(delay).fold(0.0, f64::max);
            ops.extend(members);
        }
        let mut sets: Vec<_> = sets.into_iter().filter(|(_, (sum, _))| *sum > 0.0).collect();
        sets.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
        sets.into_iter().take(DELAYS_MAX).filter_map(|(workers, (_, ops))| self.delay(&workers, &ops)).collect()
    }

    fn delay(&self, workers: &[u32], ops: &[u32]) -> Option<Cause> {
        let mut ranks: Vec<u32> = workers.iter().map(|worker| self.model.workers[*worker as usize].rank).collect();
        ranks.sort_unstable();
        let mut work = self.model.work.clone();
        for op in ops {
            work[*op as usize] = self.ideal[*op as usize];
        }
        let without = match ranks[..] {
            [one, other] => format!("slow link between rank {one} and rank {other}"),
            _ => {
                let named: Vec<String> = ranks.iter().take(RANKS_NAMED_MAX).map(u32::to_string).collect();
                let more = if ranks.len() > RANKS_NAMED_MAX { " and others" } else { "" };
                format!("slow communication of the ranks {}{more}", named.join(", "))
            }
        };
        self.if_gained(self.cause(without, ranks, self.model.mean_step(&work), CauseKind::Delay))
    }

    /// Returns the scenarios of waits of the host: all waits take the expected time, those of the worker with the
    /// largest excess do, and no wait takes time.
    pub(super) fn host_waits(&self, waits: Waits, what: &str, kind: CauseKind) -> Vec<Cause> {
        let is_selected = |class: &Class| class.waits == Some(waits);
        let model = self.model;
        let mut excess: BTreeMap<u32, f64> = BTreeMap::new();
        for ((op, work), ideal) in model.ops.iter().zip(&model.work).zip(self.ideal) {
            if is_selected(&model.classes[op.class as usize]) {
                *excess.entry(op.worker).or_default() += work - ideal;
            }
        }
        let Some((worst, _)) = excess.iter().max_by(|a, b| a.1.total_cmp(b.1)) else { return Vec::new() };
        let worker = model.workers[*worst as usize];
        let time = |of_worker: Option<u32>, is_zero: bool| {
            let mut work = model.work.clone();
            for ((op, work), ideal) in model.ops.iter().zip(&mut work).zip(self.ideal) {
                let is_affected = of_worker.is_none_or(|worker| worker == op.worker);
                if is_affected && is_selected(&model.classes[op.class as usize]) {
                    *work = if is_zero { 0.0 } else { work.min(*ideal) };
                }
            }
            model.mean_step(&work)
        };
        let of_one = format!("{what} of {}", worker.to_words());
        let mut causes = vec![self.cause(what.to_owned(), Vec::new(), time(None, false), kind)];
        causes.extend(self.if_gained(self.cause(
            of_one,
            vec![worker.rank],
            time(Some(*worst), false),
            CauseKind::Delay,
        )));
        let bound = format!("any wait for {}", waits.object());
        causes.extend(self.if_gained(self.cause(bound, Vec::new(), time(None, true), CauseKind::Bound)));
        causes
    }

    fn if_gained(&self, cause: Cause) -> Option<Cause> {
        Some(cause).filter(|cause| cause.scenario.speedup >= 1.0 + GAIN_MIN)
    }
}

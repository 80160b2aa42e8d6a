//! The plan of faults: each is due at a step of the job, or in the middle of a recovery.

use super::super::SimConfig;
use super::super::dice::Dice;
use super::super::scene::Scene;
use super::FaultKind;
use std::collections::BTreeSet;

/// Largest number of orders in addition to the faults.
const ORDERED_MAX: u64 = 3;

/// Planned faults that have not been injected.
#[derive(Debug)]
pub(in crate::sim) struct ChaosPlan {
    /// Faults by step, the last one first.
    at_step: Vec<(u64, FaultKind)>,
    in_recovery: Vec<FaultKind>,
    /// The step from which faults that were planned for a recovery are injected without one.
    too_late: u64,
}

impl ChaosPlan {
    pub(in crate::sim) fn draw(config: &SimConfig, scene: &Scene, dice: &mut Dice) -> ChaosPlan {
        let wanted = dice.between(u64::from(*config.faults.start()), u64::from(*config.faults.end()));
        let passing = FaultKind::passing(scene.observed, scene.has_service(), scene.step_loop);
        let mut kinds = Vec::new();
        while (kinds.len() as u64) < wanted || distinct(&kinds) < 4.min(wanted) {
            kinds.extend(dice.pick(&passing).copied());
        }
        for _ in 0..dice.between(0, ORDERED_MAX) {
            kinds.extend(dice.pick(FaultKind::ORDERED).copied());
        }
        let mut at_step = Vec::new();
        let mut in_recovery = Vec::new();
        for (index, kind) in kinds.into_iter().enumerate() {
            if index > 0 && dice.chance(350) {
                in_recovery.push(kind);
            } else {
                at_step.push((dice.between(2, config.steps_min * 9 / 10), kind));
            }
        }
        if dice.chance(config.ended_permille)
            && let Some(kind) = dice.pick(FaultKind::ENDING)
        {
            // In a job that is only observed, we can end only the observation.
            let kind = if scene.observed { FaultKind::OperatorStop } else { *kind };
            at_step.push((dice.between(config.steps_min + 1, scene.steps - 3), kind));
        }
        at_step.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
        ChaosPlan { at_step, in_recovery, too_late: config.steps_min * 85 / 100 }
    }

    pub(in crate::sim) fn none() -> ChaosPlan {
        ChaosPlan { at_step: Vec::new(), in_recovery: Vec::new(), too_late: u64::MAX }
    }

    pub(in crate::sim) fn len(&self) -> usize {
        self.at_step.len() + self.in_recovery.len()
    }

    pub(super) fn contains(&self, kind: FaultKind) -> bool {
        self.in_recovery.contains(&kind) || self.at_step.iter().any(|(_, planned)| *planned == kind)
    }

    pub(super) fn due(&mut self, step: u64) -> Option<FaultKind> {
        if step >= self.too_late
            && let Some(kind) = self.in_recovery.pop()
        {
            return Some(kind);
        }
        self.at_step.pop_if(|(at, _)| *at <= step).map(|(_, kind)| kind)
    }

    pub(super) fn due_in_recovery(&mut self) -> Option<FaultKind> {
        self.in_recovery.pop()
    }
}

fn distinct(kinds: &[FaultKind]) -> u64 {
    kinds.iter().collect::<BTreeSet<_>>().len() as u64
}

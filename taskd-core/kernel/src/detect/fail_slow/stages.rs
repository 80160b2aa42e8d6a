//! Pipeline stages with different amounts of work: reported once, when the usual computation of all ranks is known.

use super::channel::Channel;
use super::evidence::NO_BLAME_PERMILLE;
use super::layout::{Layout, Peers};
use super::stats::median;
use super::verdict::{Cause, Change, Component, Verdict};
use crate::detect::Evidence;

/// Minimum excess of the slowest stage over the median one that is reported (natural logarithm).
const UNEVEN_STAGE_MIN: f32 = 0.1;

/// Reports the slowest stage, if it computes longer than the median stage.
pub(super) fn uneven_stage(channel: &Channel, layout: &Layout, first_step: u64) -> Option<Change> {
    if layout.stages.count() < 2 || layout.peers == Peers::Job {
        return None;
    }
    let of_stage = |stage: usize| {
        let levels = layout.stages.ranks(stage).iter().map(|rank| channel.level[*rank as usize]);
        let mut levels: Vec<f32> = levels.filter(|level| level.is_finite()).collect();
        median(&mut levels)
    };
    let levels: Vec<f32> = (0..layout.stages.count()).map(of_stage).collect();
    let usual = median(&mut levels.iter().copied().filter(|level| level.is_finite()).collect::<Vec<_>>());
    let (stage, level) = levels.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
    let excess = level - usual;
    (excess > UNEVEN_STAGE_MIN).then(|| {
        let ranks = layout.stages.ranks(stage).to_vec();
        let component = Component::Stage(ranks.first().map_or(0, |rank| layout.places[*rank as usize].stage));
        let (ms, usual_ms) = (level.exp(), usual.exp());
        let text = format!("{ms:.1} ms of computation a step, the median stage needs {usual_ms:.1} ms");
        Change::Found(Verdict {
            component,
            cause: Cause::SlowStage,
            ranks,
            onset_step: first_step,
            slowdown_percent: excess.exp_m1() * 100.0,
            confidence_permille: NO_BLAME_PERMILLE,
            evidence: vec![Evidence::figure("fail_slow_stage_ms", ms.into(), f64::from(usual_ms), text)],
        })
    })
}

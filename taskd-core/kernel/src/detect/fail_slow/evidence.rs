//! The verdict on a component, with the figures that support it.

use super::engine::Series;
use super::explain::{Context, Explanation};
use super::track::Run;
use super::verdict::{Cause, Component, Verdict};
use crate::detect::Evidence;

/// Confidence of verdicts that blame no component.
pub(super) const NO_BLAME_PERMILLE: u16 = 300;

impl Context<'_> {
    pub(super) fn verdict(
        &self,
        component: Component,
        cause: Cause,
        ranks: Vec<u32>,
        run: &Run,
        units: Vec<u32>,
    ) -> Explanation {
        let first = ranks.iter().copied().find(|rank| units.contains(rank)).or(ranks.first().copied());
        let rank = first.unwrap_or_default() as usize;
        let is_from_start = matches!(cause, Cause::SlowRank | Cause::SlowHost)
            && ranks.iter().any(|rank| self.channel.from_start.get(*rank as usize) == Some(&true));
        let onset_step = if is_from_start { self.first_step } else { run.onset };
        let confidence_permille = match cause {
            cause if !cause.is_blame() => NO_BLAME_PERMILLE,
            Cause::SlowRank | Cause::SlowHost if self.has_waits => 900,
            _ => 800,
        };
        let (slowdown_percent, evidence) = self.evidence(rank, cause, run, onset_step);
        let verdict = Verdict { component, cause, ranks, onset_step, slowdown_percent, confidence_permille, evidence };
        Explanation::Verdict(verdict, units)
    }

    fn evidence(&self, rank: usize, cause: Cause, run: &Run, onset_step: u64) -> (f32, Vec<Evidence>) {
        let scale = self.scale.get(rank).copied().unwrap_or(f32::NAN);
        let level = self.channel.level.get(rank).copied().unwrap_or(f32::NAN);
        let (usual, now, percent) = if self.channel.tuning.is_log {
            let offset = self.channel.offset_ms(rank, self.scale);
            let (usual, now) = (level.exp() - offset, (level + run.size()).exp() - offset);
            (usual, now, (now / usual - 1.0) * 100.0)
        } else {
            (level * scale, (level + run.shift()) * scale, run.shift() * 100.0)
        };
        let what = match self.channel.series {
            Series::Compute => "own computation",
            Series::Transfer => "transfers of collectives",
            Series::Send => "sends to its neighbours",
            Series::Data => "waiting for the next batch",
            _ => "saving a checkpoint",
        };
        let text = format!("{now:.1} ms a step for {what}, expected from its peers and its past: {usual:.1} ms");
        let mut evidence = vec![Evidence::figure("fail_slow_time_ms", now.into(), f64::from(usual), text)];
        if cause.is_blame() && self.has_waits && self.channel.series == Series::Compute {
            let waits = run.wait() * scale;
            let text = format!("its peers wait {waits:.1} ms a step longer than it does");
            evidence.push(Evidence::figure("fail_slow_waited_for_ms", waits.into(), None, text));
        }
        let sigma = self.channel.ranks.sigma(rank) * 100.0;
        let text = format!("in {} steps since step {onset_step}; the usual scatter is {sigma:.1} %", run.count);
        #[allow(clippy::cast_precision_loss, reason = "steps are fewer than 2^52")]
        evidence.push(Evidence::figure("fail_slow_onset_step", onset_step as f64, None, text));
        if cause == Cause::SlowRank {
            evidence.extend(self.usage(rank, now, usual));
        }
        (percent, evidence)
    }

    /// Returns figures of the CPU and of the forward pass in the latest step.
    fn usage(&self, rank: usize, now: f32, usual: f32) -> Vec<Evidence> {
        let mut evidence = Vec::new();
        let figure = |at: usize, series: Series| {
            let latest = self.rows.get(rank).map(|row| row[series as usize])?;
            let usual = self.usual[at].get(rank).copied()?;
            (latest.is_finite() && usual > 0.0).then_some((latest, usual))
        };
        if let Some((cpu, usual_cpu)) = figure(0, Series::Cpu) {
            let (name, text) = if cpu - usual_cpu >= (now - usual) / 2.0 {
                ("fail_slow_computing", "it computes longer: more work, slower code, or a slower core")
            } else {
                ("fail_slow_starved", "it does not get its CPU, or it waits for its device")
            };
            let text = format!("{cpu:.1} ms on a CPU, usually {usual_cpu:.1} ms: {text}");
            evidence.push(Evidence::figure(name, cpu.into(), f64::from(usual_cpu), text));
        }
        if let Some((forward, usual_forward)) = figure(1, Series::Forward) {
            let text = format!("{forward:.1} ms in the forward pass, usually {usual_forward:.1} ms");
            evidence.push(Evidence::figure("fail_slow_forward_ms", forward.into(), f64::from(usual_forward), text));
        }
        evidence
    }
}

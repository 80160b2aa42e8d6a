//! The account of a run: what each recovery took, in parts, and whether the job ended as if nothing had happened.

use super::compared::Compared;
use super::copies::Copies;
use super::figures::Figures;
use super::job::Run;
use super::striker::Seen;
use crate::hosts::Hosts;
use crate::program::Failure;
use crate::samples::Samples;
use serde::Serialize;
use std::fmt::Write as _;
use taskd_core::job::JobTime;
use taskd_core::kernel::DropReason;

/// What one fault took, in milliseconds from the fault on; each part ends where the next begins.
#[derive(Clone, Debug, Serialize)]
pub struct Recovery {
    /// The rank that was hit.
    pub who: String,
    /// The last step that all ranks had completed.
    pub step: u64,
    /// How it was mended.
    pub how: String,
    /// What was decided, and why nothing cheaper was.
    pub decisions: Vec<String>,
    /// Until the runtime knew.
    pub detect_ms: f64,
    /// Until it had decided.
    pub decide_ms: f64,
    /// Until the survivors had left the broken groups, and each new rank was there and built.
    pub stop_ms: f64,
    /// What of that was the building of the new rank: from when it was the rank until it had all that its steps need.
    /// Of a standby that waited at its step loop next to nothing; `None`: no rank came.
    pub build_ms: Option<f64>,
    /// Until all had met.
    pub rebuild_ms: f64,
    /// Until all had the state of one step.
    pub repair_ms: f64,
    /// Until all had completed a step.
    pub resume_ms: f64,
    /// From the fault to there.
    pub total_ms: f64,
    /// Steps that had been completed by all before the fault and were done again.
    pub steps_lost: u64,
    /// Between when it was decided and when it was over, by the job's clock.
    #[serde(skip)]
    during: Option<(JobTime, JobTime)>,
}

impl Recovery {
    /// `resumed` is the first step that all have completed after it, and when.
    pub(super) fn of(who: String, step: u64, at: f64, seen: &Seen, (first, resumed): (u64, f64)) -> Recovery {
        let mut last = at;
        let mut part = |until: Option<f64>| {
            let until = until.unwrap_or(last);
            let ms = (until - last) * 1e3;
            last = until;
            (ms * 10.0).round() / 10.0
        };
        let stage = |names: &[&str]| {
            let ends = seen.stages.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(_, t)| *t);
            ends.reduce(f64::max)
        };
        Recovery {
            who,
            step,
            how: seen.closed.as_ref().map_or_else(|| "not recovered".into(), |(how, _)| how.clone()),
            decisions: seen.decisions.clone(),
            detect_ms: part(seen.found),
            decide_ms: part(seen.decided),
            stop_ms: part(stage(&["abort", "start", "stop"])),
            build_ms: None,
            rebuild_ms: part(stage(&["join"])),
            repair_ms: part(stage(&["sync-state"])),
            resume_ms: part(Some(resumed)),
            total_ms: ((resumed - at) * 1e4).round() / 10.0,
            steps_lost: (step + 1).saturating_sub(first),
            during: seen.decided_at.zip(seen.closed_at),
        }
    }

    /// Takes what new ranks have reported of their building; of several the longest.
    pub(super) fn take_builds(&mut self, reported: &[Figures]) {
        let Some((from, until)) = self.during else { return };
        let reported = reported.iter().filter(|figures| from <= figures.at && figures.at <= until);
        self.build_ms = reported.filter_map(|figures| figures.of("built_ms")).reduce(f64::max);
    }
}

/// From what ranks were started, those of the job's own start included.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Started {
    /// From standbys that had run the program ahead of their rank.
    pub seated_from_parked: u64,
    /// From standbys that only waited.
    pub seated_from_waiting: u64,
    /// As new processes.
    pub otherwise: u64,
}

impl Started {
    /// As the hosts' guards have counted, since they began; `None` where one does not report it.
    pub(super) async fn of(hosts: &Hosts) -> Option<Started> {
        let mut all = Started::default();
        for host in hosts.iter() {
            let guard = host.counters().await.ok()?.guard;
            all.seated_from_parked += guard.standbys_seated_parked;
            all.seated_from_waiting += guard.standbys_seated - guard.standbys_seated_parked;
            all.otherwise += guard.standbys_missed;
        }
        Some(all)
    }
}

/// The account of a job that a fault has ended, as it was to.
#[derive(Debug, Serialize)]
pub struct Ending {
    /// The rank that was hit.
    pub who: String,
    /// The last step that all ranks had completed.
    pub step: u64,
    /// Why the job ended.
    pub reason: String,
    /// From the fault until no process was left, in milliseconds.
    pub total_ms: f64,
    /// What became of it when it was started again, where it had saved its state.
    pub again: Option<Account>,
}

impl Ending {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let Ending { who, step, reason, total_ms, again } = self;
        let again =
            again.as_ref().map_or_else(String::new, |reported| format!("\n  started again:\n{}", reported.ending()));
        format!("\n  {who} was hit after step {step}, and {total_ms:.1} ms later no process was left: {reason}{again}")
    }

    /// Whether it is as it should be.
    ///
    /// # Errors
    /// It is not.
    pub fn judge(&self) -> Result<(), Failure> {
        self.again.as_ref().map_or(Ok(()), Account::judge)
    }
}

/// What checksums of the state have cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Checksums {
    /// How many all ranks have made.
    pub made: u64,
    /// What one takes a rank, in milliseconds.
    pub each_ms: f64,
    /// The same for each step that a rank has computed: it makes few.
    pub each_step_ms: f64,
}

impl Checksums {
    fn of(run: &Run) -> Option<Checksums> {
        let figures = run.report.replicas?;
        let (steps, took_ms) = (run.lines.values().map(Vec::len).sum::<usize>(), figures.took_us as f64 / 1e3);
        let (each_ms, each_step_ms) = (took_ms / figures.checks as f64, took_ms / steps as f64);
        Some(Checksums { made: figures.checks, each_ms, each_step_ms })
    }
}

/// The account.
#[derive(Debug, Serialize)]
pub struct Account {
    /// What each fault took.
    pub recoveries: Vec<Recovery>,
    /// What ranks have copied of others.
    pub copies: Option<Copies>,
    /// From what ranks were started.
    pub started: Option<Started>,
    /// Whether the world has kept its size throughout: only then it trains the same as undisturbed.
    pub world_kept: bool,
    /// Whether all ranks have ended with the same parameters.
    pub replicas_equal: bool,
    /// Whether every rank had the undisturbed run's model, optimizer and random numbers after every step.
    pub state_equal: bool,
    /// Whether each loss was the undisturbed run's to the bit.
    pub loss_bit_equal: bool,
    /// Steps of single ranks that were compared with the undisturbed run's.
    pub steps_compared: usize,
    /// What the checksums have cost by which ranks prove that they are replicas.
    pub checksums: Option<Checksums>,
    /// Recoveries as the runtime counts them.
    pub restarts: u32,
    /// Facts of ranks that were dropped because they were reported in an older world: a few around each recovery.
    pub old_facts: u64,
}

impl Account {
    /// Compares a run with the undisturbed one.
    #[must_use]
    pub fn of(reference: &Run, run: Run) -> Account {
        let pairs = || reference.outcomes.iter().zip(&run.outcomes);
        let world_kept = !run.recoveries.iter().any(|r| r.how.ends_with("shrink"));
        let mut reported = Account {
            world_kept,
            replicas_equal: run.outcomes.iter().all(|outcome| outcome.weights == run.outcomes[0].weights),
            state_equal: pairs().all(|(a, b)| a.sha256 == b.sha256),
            loss_bit_equal: pairs().all(|(a, b)| a.loss.to_bits() == b.loss.to_bits()),
            steps_compared: 0,
            checksums: Checksums::of(&run),
            restarts: run.report.restarts,
            old_facts: run.report.counts.drops.get(&DropReason::OldGeneration).copied().unwrap_or(0),
            recoveries: run.recoveries,
            copies: run.copies,
            started: run.started,
        };
        let compared = Compared::of(&reference.lines, &run.lines);
        compared.differences.iter().filter(|_| world_kept).for_each(|line| println!("{line}"));
        reported.state_equal &= compared.state_equal;
        reported.loss_bit_equal &= compared.loss_bit_equal;
        reported.steps_compared = compared.steps;
        reported
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::from(
            "\n  victim         step  how                                  detect  decide    stop  (build)  rebuild  repair  resume     all, ms\n",
        );
        for r in &self.recoveries {
            let _ = writeln!(
                out,
                "  {:<13} {:>5}  {:<36} {:>6.1} {:>7.1} {:>7.1} {:>8} {:>8.1} {:>7.1} {:>7.1} {:>11.1}",
                r.who,
                r.step,
                r.how,
                r.detect_ms,
                r.decide_ms,
                r.stop_ms,
                r.build_ms.map_or_else(|| "-".into(), |ms| format!("({ms:.1})")),
                r.rebuild_ms,
                r.repair_ms,
                r.resume_ms,
                r.total_ms
            );
            let more = r.decisions.iter().filter(|_| r.decisions.len() > 1);
            more.for_each(|decision| _ = writeln!(out, "      {decision}"));
        }
        let all: Samples = self.recoveries.iter().map(|r| r.total_ms).collect();
        let _ = writeln!(out, "  from the fault to the first step that all ranks have completed, ms: {all}");
        let lost = self.recoveries.iter().map(|r| r.steps_lost).max().unwrap_or(0);
        let _ = writeln!(out, "  completed steps that were repeated, at most: {lost}");
        out += &self.copies.as_ref().map_or_else(String::new, Copies::table);
        if let Some(Checksums { made, each_ms, each_step_ms }) = self.checksums {
            let _ = writeln!(
                out,
                "  checksums of the state {made}, each of {each_ms:.2} ms; for each step of a rank {each_step_ms:.3} ms"
            );
        }
        if let Some(Started { seated_from_parked, seated_from_waiting, otherwise }) = self.started {
            let _ = writeln!(
                out,
                "  ranks started from a parked standby {seated_from_parked}, from one that waited {seated_from_waiting}, otherwise {otherwise}"
            );
        }
        out + &self.ending()
    }

    /// What the ranks have ended with, for people.
    fn ending(&self) -> String {
        if !self.world_kept {
            let how = if self.replicas_equal { "equal" } else { "DIFFERENT" };
            return format!("  the world was smaller for a time; at the end all ranks have {how} parameters\n");
        }
        format!(
            "  compared with the undisturbed run in {} steps of single ranks: state {}, loss {}\n",
            self.steps_compared,
            if self.state_equal { "equal" } else { "DIFFERS" },
            if self.loss_bit_equal { "equal to the bit" } else { "DIFFERS" }
        )
    }

    /// Whether it is as it should be.
    ///
    /// # Errors
    /// It is not.
    pub fn judge(&self) -> Result<(), Failure> {
        if !self.replicas_equal {
            return Err("the ranks have ended with different parameters".into());
        }
        if self.state_equal && self.loss_bit_equal || !self.world_kept {
            Ok(())
        } else {
            Err("the job differs from the undisturbed run".into())
        }
    }
}

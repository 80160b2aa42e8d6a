//! The account of a run: the phases of each recovery, and whether the job ended as an undisturbed one.

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

/// The phases of one recovery, in milliseconds from the fault on; each phase ends where the next begins.
#[derive(Clone, Debug, Serialize)]
pub struct Recovery {
    /// The rank that was hit.
    pub who: String,
    /// The last step that all ranks had completed.
    pub step: u64,
    /// The outcome of the incident.
    pub how: String,
    /// The decisions, with the reasons against cheaper strategies.
    pub decisions: Vec<String>,
    /// Until the runtime found the fault.
    pub detect_ms: f64,
    /// Until the runtime had decided.
    pub decide_ms: f64,
    /// Until the survivors had left the broken groups, and each new rank was started and built.
    pub stop_ms: f64,
    /// The part of that in which the new rank was built: from when it had its rank until it had all that its steps
    /// need. Of a standby that waited at its step loop almost zero; `None`: there was no new rank.
    pub build_ms: Option<f64>,
    /// Until all ranks had met at the rendezvous.
    pub rebuild_ms: f64,
    /// Until all ranks had the state of one step.
    pub repair_ms: f64,
    /// Until all ranks had completed a step.
    pub resume_ms: f64,
    /// From the fault until all ranks had completed a step.
    pub total_ms: f64,
    /// Steps that all ranks had completed before the fault and that were repeated.
    pub steps_lost: u64,
    /// Time of the decision and of the end of the incident, by the job's clock.
    #[serde(skip)]
    during: Option<(JobTime, JobTime)>,
}

impl Recovery {
    /// `resumed` is the first step that all ranks have completed after the recovery, and its time.
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

    /// Sets the build time from the reports of the new ranks; of several the longest.
    pub(super) fn take_builds(&mut self, reported: &[Figures]) {
        let Some((from, until)) = self.during else { return };
        let reported = reported.iter().filter(|figures| from <= figures.at && figures.at <= until);
        self.build_ms = reported.filter_map(|figures| figures.of("built_ms")).reduce(f64::max);
    }
}

/// The ways in which ranks were started, those of the job's own start included.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Started {
    /// Ranks from standbys that had run the program up to its step loop.
    pub seated_from_parked: u64,
    /// Ranks from standbys that had not.
    pub seated_from_waiting: u64,
    /// Ranks from new processes.
    pub otherwise: u64,
}

impl Started {
    /// Returns the counts of the hosts' guards since their start; `None` if a guard does not report them.
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

/// The account of a job that a fault has ended, as expected.
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
    /// The account of the job after its restart from a saved state.
    pub again: Option<Account>,
}

impl Ending {
    /// Returns the account as text.
    #[must_use]
    pub fn table(&self) -> String {
        let Ending { who, step, reason, total_ms, again } = self;
        let again =
            again.as_ref().map_or_else(String::new, |reported| format!("\n  started again:\n{}", reported.ending()));
        format!("\n  {who} was hit after step {step}, and {total_ms:.1} ms later no process was left: {reason}{again}")
    }

    /// Checks that the job ended as expected.
    ///
    /// # Errors
    /// It did not.
    pub fn judge(&self) -> Result<(), Failure> {
        self.again.as_ref().map_or(Ok(()), Account::judge)
    }
}

/// The cost of the checksums of the state.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Checksums {
    /// Number of checksums that all ranks have made.
    pub made: u64,
    /// Time of one checksum in milliseconds.
    pub each_ms: f64,
    /// The same for each step that a rank has computed; most steps have no checksum.
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
    /// The recovery from each fault.
    pub recoveries: Vec<Recovery>,
    /// The copies of state between ranks.
    pub copies: Option<Copies>,
    /// The ways in which ranks were started.
    pub started: Option<Started>,
    /// True if the world has kept its size: only then the training is that of the undisturbed run.
    pub world_kept: bool,
    /// True if all ranks have ended with the same parameters.
    pub replicas_equal: bool,
    /// True if every rank had the undisturbed run's model, optimizer and random numbers after every step.
    pub state_equal: bool,
    /// True if each loss was the undisturbed run's to the bit.
    pub loss_bit_equal: bool,
    /// Steps of single ranks that were compared with the undisturbed run's.
    pub steps_compared: usize,
    /// The cost of the checksums by which ranks prove that they are replicas.
    pub checksums: Option<Checksums>,
    /// Recoveries as the runtime counts them.
    pub restarts: u32,
    /// Facts that were dropped because ranks reported them in an older world: a few around each recovery.
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

    /// Returns the account as text.
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

    /// Returns the result of the ranks as text.
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

    /// Checks that the run is as expected.
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

//! Real MindSpore on the CPU: three workers and a scheduler; a worker is killed, then the scheduler, and no progress is
//! lost.
//!
//! `cargo run --release --example mindspore_train`. The first run makes a Python environment with MindSpore in the
//! user's cache directory (about 3 GB, a minute); `TASKD_PYTHON_MINDSPORE` names an interpreter to use instead. The
//! script is `examples/python/train_mindspore.py`, an ordinary script for msrun.
//!
//! `--faults 50` sends 50 SIGKILLs and SIGSTOPs to workers and scheduler at random moments, also while they start.
//! `--beside-msrun 3` measures the time from a kill to the first new step, in turn with plain `msrun --join=True`.

use clap::Parser;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::account::Account;
use taskd_examples::mindspore::{self, Job, Phases, Plan, RANKS, Recovery};
use taskd_examples::program::{self, Failure, number};
use taskd_examples::samples::Samples;
use taskd_mindspore::venv;

/// Three MindSpore workers and their scheduler train under supervision; a worker is killed, then the scheduler.
#[derive(Debug, Parser)]
struct Options {
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Training steps; 0: as many as needed for the faults.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0, value_parser = number::<u64>(0, 1_000_000))]
    steps: u64,
    /// Random SIGKILLs and SIGSTOPs, in place of a killed worker and a killed scheduler.
    #[arg(long, allow_negative_numbers = true, value_parser = number::<u32>(1, 10_000))]
    faults: Option<u32>,
    /// Rounds that measure a kill under taskd and under plain msrun.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0, value_parser = number::<u32>(0, 100))]
    beside_msrun: u32,
    /// Trains again with three workers to the middle, and from there with this number.
    #[arg(long, allow_negative_numbers = true, value_parser = number::<u32>(1, 6))]
    then_workers: Option<u32>,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// The account of a run.
#[derive(Debug, Serialize)]
struct Trained {
    #[serde(flatten)]
    account: Account,
    /// The framework's own start in seconds: interpreter, import, group, first step; no system can be faster.
    floor_s: f64,
    /// The same by phase.
    floor_phases_ms: Phases,
    /// The time from a fault to the first new step, by phase: the median of each.
    phases_ms: Option<Phases>,
    /// What each fault cost.
    recoveries: Vec<Recovery>,
    /// Processes of the job that were left after its end.
    left: usize,
    /// The result of continuing with another number of workers.
    resized: Option<Resized>,
    /// Kills in turn with msrun: taskd's times and msrun's.
    beside_msrun: Vec<Pair>,
}

/// A training that was continued in another world size: the same batches, summed up in another order.
#[derive(Debug, Serialize)]
struct Resized {
    workers: u32,
    /// The step from which it was continued.
    from_step: u64,
    /// Relative difference of the final loss from that of the undisturbed run.
    loss_differs: f64,
}

/// One round.
#[derive(Debug, Serialize)]
struct Pair {
    taskd_phases_ms: Phases,
    msrun_phases_ms: Phases,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("mindspore_train", async {
        let reported = Box::pin(run(&options)).await?;
        program::print(&reported, options.json, || reported.table());
        reported.judge()
    })
}

async fn run(options: &Options) -> Result<Trained, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??;
    let dir = tempfile::Builder::new().prefix("taskd-mindspore-").tempdir()?;
    let faults = options.faults.unwrap_or(0);
    let steps = if options.steps > 0 { options.steps } else { 200 + 20 * u64::from(faults) };
    let job = Job {
        python,
        dir: dir.path().join("job"),
        ranks: RANKS,
        steps,
        checkpoint_every: 10,
        pace_ms: 10,
        restarts_max: 10 + 2 * faults,
    };
    println!("undisturbed   {RANKS} workers and a scheduler, {steps} steps");
    let undisturbed = mindspore::run(&job.in_dir(&dir.path().join("reference")), Plan::quiet(), false).await?;
    let reference = &undisturbed.outcome;
    println!("              loss {:.6}, state {:.16}", reference.loss, reference.sha256);
    println!(
        "supervised    the same again, seed {}; msrun's logs in {}",
        options.seed,
        job.dir.join("msrun_log").display()
    );
    let plan = match options.faults {
        Some(faults) => Plan::random(options.seed, faults),
        None => Plan::worker_then_scheduler(options.seed, steps),
    };
    let run = mindspore::run(&job, plan, true).await?;
    let resized = match options.then_workers {
        Some(workers) => {
            Some(Box::pin(resized(&job.in_dir(&dir.path().join("resized")), workers, reference.loss)).await?)
        }
        None => None,
    };
    let beside_msrun = Box::pin(beside_msrun(options, &job, dir.path())).await?;

    let mut account = Account::of(&run.report, run.rows.clone());
    account.steps = Some(run.outcome.steps);
    account.final_loss = Some(run.outcome.loss);
    account.loss_equal = Some(run.outcome.loss.to_bits() == reference.loss.to_bits());
    account.state_equal = Some(run.has_state_of(reference));
    account.goodput = run.goodput;
    Ok(Trained {
        account,
        floor_s: undisturbed.floor.floor() / 1e3,
        floor_phases_ms: undisturbed.floor,
        phases_ms: Phases::median(run.recoveries.iter().map(|recovery| recovery.phases)),
        recoveries: run.recoveries,
        left: run.left.len() + undisturbed.left.len(),
        resized,
        beside_msrun,
    })
}

/// Trains to the middle, and from its checkpoint with another number of workers.
async fn resized(job: &Job, workers: u32, undisturbed: f64) -> Result<Resized, Failure> {
    let middle = job.steps / 2 / job.checkpoint_every * job.checkpoint_every;
    mindspore::run(&Job { steps: middle, ..job.clone() }, Plan::quiet(), false).await?;
    let rest = mindspore::run(&Job { ranks: workers, ..job.clone() }, Plan::quiet(), false).await?;
    let loss_differs = (rest.outcome.loss - undisturbed).abs() / undisturbed;
    println!("resized       from step {middle} on with {workers} workers, loss {:.6}", rest.outcome.loss);
    if rest.outcome.world != workers || rest.outcome.steps != job.steps {
        return Err(format!("the resized training ended with {:?}", rest.outcome).into());
    }
    Ok(Resized { workers, from_step: middle, loss_differs })
}

/// Kills a worker under taskd and one under msrun, in turn.
async fn beside_msrun(options: &Options, job: &Job, dir: &Path) -> Result<Vec<Pair>, Failure> {
    let mut pairs = Vec::new();
    for round in 0..options.beside_msrun {
        let short = Job { steps: 60, ..job.in_dir(&dir.join(format!("taskd-{round}"))) };
        let plan = Plan::worker_then_scheduler(options.seed + u64::from(round), short.steps);
        let ours = mindspore::run(&short, Plan([plan.0[0].clone()].into()), false).await?;
        let taskd_phases_ms = ours.recoveries.first().ok_or("the worker was not hit")?.phases;
        let theirs = Job { steps: 1_000_000, ..job.in_dir(&dir.join(format!("msrun-{round}"))) };
        let port = 18_118 + u16::try_from(round).unwrap_or(0);
        let msrun_phases_ms = mindspore::msrun_after_kill(&theirs, port, 20).await?;
        println!(
            "round {:<3}     from the kill to the first new step: taskd {:.1} s, msrun {:.1} s",
            round + 1,
            taskd_phases_ms.total() / 1e3,
            msrun_phases_ms.total() / 1e3
        );
        pairs.push(Pair { taskd_phases_ms, msrun_phases_ms });
    }
    Ok(pairs)
}

impl Trained {
    /// The minimum in this run is the time that the framework itself took in each recovery.
    fn table(&self) -> String {
        let mut out = self.account.table();
        let row = |out: &mut String, what: &str, p: &Phases| {
            let _ = writeln!(
                out,
                "  {what:<34} {:>9.0} {:>8.0} {:>7.0} {:>7.0} {:>11.0} {:>9.0}",
                p.restart,
                p.import,
                p.group,
                p.build,
                p.first_step,
                p.total()
            );
        };
        let _ = writeln!(
            out,
            "\n  from the fault to the first new step, ms   restart   import   group   build  first step       all"
        );
        row(&mut out, "(the job's own start)", &self.floor_phases_ms);
        for recovery in &self.recoveries {
            let what = format!("{}{}", recovery.fault, if recovery.in_start { ", in a start" } else { "" });
            row(&mut out, &what, &recovery.phases);
        }
        let mut spread = |what: &str, values: Vec<f64>| {
            if !values.is_empty() {
                let _ = writeln!(out, "  {what:<44} {}", values.into_iter().collect::<Samples>());
            }
        };
        spread("restart, ms", self.recoveries.iter().map(|r| r.phases.restart).collect());
        spread(
            "all, relative to its own start",
            self.recoveries.iter().map(|r| r.phases.total() / r.phases.floor()).collect(),
        );
        spread("killed under taskd, ms", self.beside_msrun.iter().map(|p| p.taskd_phases_ms.total()).collect());
        spread("killed under msrun, ms", self.beside_msrun.iter().map(|p| p.msrun_phases_ms.total()).collect());
        let times = |p: &Pair| p.msrun_phases_ms.total() / p.taskd_phases_ms.total();
        spread("time under msrun / time under taskd", self.beside_msrun.iter().map(times).collect());
        if let Some(Resized { workers, from_step, loss_differs }) = &self.resized {
            let _ = writeln!(
                out,
                "  with {workers} workers from step {from_step} on the loss differs by a share of {loss_differs:.1e}"
            );
        }
        let _ = writeln!(out, "  processes left: {}", self.left);
        out
    }

    /// Checks that the run is as expected.
    fn judge(&self) -> Result<(), Failure> {
        match (self.account.state_equal, self.account.loss_equal, self.left) {
            (Some(true), Some(true), 0) => Ok(()),
            (_, _, 1..) => Err("processes of the job are left".into()),
            _ => Err("the final state differs from that of the undisturbed job".into()),
        }
    }
}

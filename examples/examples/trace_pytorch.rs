//! Records what the ranks of a real DDP training do, step by step, while kinds are switched off and on, and then writes
//! a file for ui.perfetto.dev.
//!
//! `cargo run --release --example trace_pytorch`. The script (`examples/python/train_traced.py`) does not use taskd.
//! The records are in `--out`: `trace.pftrace` for Perfetto, and the native records below `records`. The Python
//! environment is that of `pytorch_ddp`. With `--features live -- --live`, the report page follows the run.

use clap::Parser;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taskd_core::detect::{self, ExitDetector, FaultDetector};
use taskd_core::job::{Domain, Role};
use taskd_core::launch::guard;
#[cfg(feature = "live")]
use taskd_core::live::RunDirectory;
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;
use taskd_core::trace::Signal;
use taskd_core::trace::switches::{Mode, Requested, Switch, TraceControl};
use taskd_examples::breakdown::{Account, Breakdown, Phase};
use taskd_examples::files::Files;
#[cfg(feature = "live")]
use taskd_examples::live;
use taskd_examples::program::{self, Failure, number};
use taskd_examples::traced::{Launchers, TracedJob, reach};
use taskd_pytorch::venv;

/// Records a DDP training, switches kinds while it runs, and breaks down its steps.
#[derive(Debug, Parser)]
struct Options {
    /// Ranks of the training.
    #[arg(long, allow_negative_numbers = true, default_value_t = 2, value_parser = number::<u32>(2, 64))]
    ranks: u32,
    /// Steps of each of the four phases.
    #[arg(long, allow_negative_numbers = true, default_value_t = 40, value_parser = number::<u64>(10, 100_000))]
    steps: u64,
    /// Directory for the files. Default: a temporary one, deleted at the end.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    /// Serves the report page of the run while it runs, on this host alone, and prints its address.
    #[cfg(feature = "live")]
    #[arg(long)]
    live: bool,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("trace_pytorch", async {
        run(&options).await?.print(options.json);
        Ok(())
    })
}

async fn run(options: &Options) -> Result<Account, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??;
    let dir = tempfile::Builder::new().prefix("taskd-trace-").tempdir()?;
    let out = options.out.clone().unwrap_or_else(|| dir.path().join("trace"));
    fs::create_dir_all(&out)?;
    let job = TracedJob {
        python,
        dir: dir.path().to_owned(),
        ranks: options.ranks,
        device_ms: 20,
        checkpoint_every: 20,
        shards: false,
    };

    let files = Files::begin(&out)?;
    #[cfg(feature = "live")]
    let live = match options.live {
        true => Some(live::open(RunDirectory::new("trace_pytorch").with_store(files.records())).await?),
        false => None,
    };
    let control = TraceControl::new(Mode::Native);
    let breakdown = Arc::new(Mutex::new(Breakdown::default()));
    let launchers = job.launchers().await?;
    let runtime = runtime(&job, &launchers, &control, &files, Arc::clone(&breakdown))?;
    let running = tokio::spawn(runtime.run());
    let phases = switch_under(&job, options.steps, &control).await;
    job.stop()?;
    let report = running.await?;
    launchers.local.shutdown(Duration::ZERO).await?;
    program::completed(&report)?;
    let written = files.finish()?;
    #[cfg(feature = "live")]
    if let Some(live) = live {
        live.end().await;
    }
    let breakdown = breakdown.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Account::of(&phases?, &breakdown, written))
}

/// Runs the training, with a source that takes its records out and passes them to the sinks.
fn runtime(
    job: &TracedJob,
    at: &Launchers,
    control: &TraceControl,
    files: &Files,
    breakdown: Arc<Mutex<Breakdown>>,
) -> Result<Runtime, Failure> {
    let recordings = at.local.recordings().control(control.clone()).sink(files.sink());
    let runtime = Runtime::builder()
        .job(job.spec())
        .source(recordings)
        .trace(control.clone())
        .detector(ExitDetector::new())
        .detector(steps_into(breakdown))
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&at.torch));
    Ok(runtime.build()?)
}

/// Returns a detector that finds no faults, and adds the times of each step to `breakdown`.
fn steps_into(breakdown: Arc<Mutex<Breakdown>>) -> impl FaultDetector {
    detect::detector_fn("breakdown", move |seen, _job, _out| {
        if let (Signal::Step(times), Domain::Process(Role::Rank(rank))) = (&seen.signal, &seen.about) {
            breakdown.lock().unwrap_or_else(PoisonError::into_inner).add(rank.0, times);
        }
    })
}

/// Switches to the usual kinds, to these without communication, to none, and to the usual ones again, each for `steps`
/// steps.
async fn switch_under(job: &TracedJob, steps: u64, control: &TraceControl) -> Result<Vec<Phase>, Failure> {
    let no_communication = Requested { communication: Switch::Off, ..Requested::USUAL };
    let plan = [
        ("all kinds", Requested::USUAL),
        ("without communication", no_communication),
        ("nothing", Requested::NONE),
        ("all kinds again", Requested::USUAL),
    ];
    let mut phases = Vec::new();
    for (name, requested) in plan {
        let begun = Instant::now();
        let ranks = control.switch(requested, "trace_pytorch");
        let switched = begun.elapsed();
        let from = phases.last().map_or(0, |phase: &Phase| phase.to);
        let to = reach(job, from + steps).await?;
        println!("steps {from:>4} to {to:>4}  {name}; {ranks} ranks were switched in {switched:.1?}");
        phases.push(Phase { name: name.to_owned(), from, to, switched_us: switched.as_secs_f64() * 1e6 });
    }
    Ok(phases)
}

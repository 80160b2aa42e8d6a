//! The cost of recording for a Python program and a real DDP training, in ranks that a launcher has started.
//!
//! The programs are `bench_calls.py` and `bench_ddp.py` of `examples/soak/python`; they measure, and this module
//! compares.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::job::{JobSpec, Rank, WorkerSpec};
use taskd_core::launch::LocalLauncher;
use taskd_core::launch::python::Standbys;
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;
use taskd_core::trace::RecordBatch;
use taskd_core::trace::recorder::{Event, Kind};
use taskd_examples::overhead::Overhead;
use taskd_examples::program::{self, Failure};
use taskd_examples::samples::Samples;
use taskd_pytorch::TorchLauncher;
use taskd_pytorch::venv;

/// Nanoseconds, each the median of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Calls {
    /// Begin and end of a range through ctypes, by the library's own functions.
    python_range_ns_ctypes: f64,
    /// The same through the stable-ABI module.
    python_range_ns_abi3: f64,
    /// One call of `taskd.range_start` or `taskd.range_end` with recording off; the slower of the two bindings.
    python_off_ns: f64,
    /// `taskd.range_start` and `taskd.range_end`.
    python_public_range_ns_ctypes: f64,
    python_public_range_ns_abi3: f64,
    /// `with taskd.range(...)`.
    python_with_ns_ctypes: f64,
    python_with_ns_abi3: f64,
}

/// The cost of recording for a training of two ranks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Training {
    /// Time in hooks per collective in microseconds, with two collectives in a step of some 100 ms: from the medians of
    /// each kind of call, without the time that reading the clocks takes.
    hook_us_per_collective_p50: f64,
    /// The same in the same run if Python code records the collectives, as with `TASKD_NATIVE=ctypes`.
    hook_us_per_collective_p50_python: f64,
    /// The first as a share of the second.
    hook_us_native_to_python: f64,
    /// Time in hooks in percent of a step of some 100 ms and of 10 ms, with two collectives each: the sum of all calls.
    ddp_hook_percent_100ms: f64,
    ddp_hook_percent_10ms: f64,
    /// The same for ten collectives in a step of some 100 ms.
    ddp_hook_percent_100ms_10_collectives: f64,
    /// As the three above, from the medians of each kind of call: without the calls that waited for a processor.
    ddp_hook_percent_p50_100ms: f64,
    ddp_hook_percent_p50_10ms: f64,
    ddp_hook_percent_p50_100ms_10_collectives: f64,
    /// The first and the last of these if Python code records the collectives.
    ddp_hook_percent_p50_100ms_python: f64,
    ddp_hook_percent_p50_100ms_10_collectives_python: f64,
    /// Slowdown of a step by wall time with all kinds on, in percent of that with all off.
    ddp_wall_percent: f64,
    /// The 95 % confidence interval of the slowdown.
    ddp_wall_ci: (f64, f64),
    /// Recorded collectives, and collectives that the group itself counted, in all runs.
    collectives_seen: u64,
    collectives_expected: u64,
}

/// The output of `bench_calls.py`.
#[derive(Debug, serde::Deserialize)]
struct CallRounds {
    native: String,
    bare: Vec<f64>,
    public: Vec<f64>,
    context: Vec<f64>,
    off: Vec<f64>,
}

/// The output of `bench_ddp.py`.
#[derive(Debug, serde::Deserialize)]
struct Hooks {
    ways: Ways,
    issued: u64,
    /// Collectives that were issued only to measure the clocks, and that no hook saw.
    unseen: u64,
}

/// The ways to record a collective, measured in turns.
#[derive(Debug, serde::Deserialize)]
struct Ways {
    native: Way,
    python: Way,
}

#[derive(Debug, serde::Deserialize)]
struct Way {
    collectives_a_step: f64,
    hook_us: f64,
    hook_percent: f64,
    hook_percent_p50: f64,
    /// By hook: the median of a call, in microseconds.
    parts_us: BTreeMap<String, f64>,
    step_ms: f64,
}

/// The output of `bench_ddp.py` for steps in blocks.
#[derive(Debug, serde::Deserialize)]
struct Blocks {
    on_ms: Vec<f64>,
    off_ms: Vec<f64>,
}

/// Returns an interpreter with torch.
pub(crate) async fn interpreter() -> Result<PathBuf, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    Ok(located.await??)
}

/// Measures marks, prints a table, and returns the figures.
pub(crate) async fn calls(python: &Path, quick: bool) -> Result<Calls, Failure> {
    let (rounds, times) = if quick { (3, 1_000) } else { (51, 10_000) };
    println!("\nnanoseconds in Python, {rounds} rounds of {times}, in turns: median (least to most)\n");
    println!(
        "| through | begin and end | taskd.range_start and range_end | with taskd.range | a call that is off |\n|---|---|---|---|---|"
    );
    let mut medians = Vec::new();
    for way in ["ctypes", "abi3"] {
        let args = [rounds.to_string(), times.to_string()];
        let script = Script { native: way, ..Script::new(python, "bench_calls.py", &args, 1) };
        let (taken, _) = script.run::<CallRounds>().await?;
        let off = taken.off.iter().map(|pair| pair / 2.0).collect();
        let [bare, public, context, off] =
            [taken.bare, taken.public, taken.context, off].map(|values| values.into_iter().collect::<Samples>());
        println!("| {way} (`{}`) | {bare} | {public} | {context} | {off} |", taken.native);
        medians.push([bare, public, context, off].map(|samples| samples.median()));
    }
    let [ctypes, abi3] = [medians[0], medians[1]];
    Ok(Calls {
        python_range_ns_ctypes: ctypes[0],
        python_range_ns_abi3: abi3[0],
        python_off_ns: ctypes[3].max(abi3[3]),
        python_public_range_ns_ctypes: ctypes[1],
        python_public_range_ns_abi3: abi3[1],
        python_with_ns_ctypes: ctypes[2],
        python_with_ns_abi3: abi3[2],
    })
}

/// Measures trainings, prints a table, and returns the figures.
pub(crate) async fn training(python: &Path, quick: bool) -> Result<Training, Failure> {
    let (mut seen, mut expected) = (0, 0);
    println!("\na DDP training of two ranks (gloo), all kinds on; time in hooks by the clock of rank 0\n");
    println!(
        "| collectives a step | recorded by | a step, ms | hooks, µs a collective | of the step, % | from medians, % | µs a call (medians) |\n|---|---|---|---|---|---|---|"
    );
    let mut hooks = Vec::new();
    for (step_ms, extra) in [(100, 1), (10, 1), (100, 9)] {
        let args = ddp("hooks", step_ms, extra, if quick { 10 } else { 100 });
        let (run, recorded) = Script::new(python, "bench_ddp.py", &args, 2).run::<Hooks>().await?;
        for (name, way) in [("native code", &run.ways.native), ("Python", &run.ways.python)] {
            way.print(name);
        }
        (seen, expected) = (seen + recorded, expected + run.issued - run.unseen);
        hooks.push(run);
    }
    println!("\n{seen} collectives of rank 0 were recorded, {expected} issued by the groups' own count");
    if seen != expected {
        return Err(format!("{seen} collectives were recorded, and {expected} issued").into());
    }
    let [two, short, ten] = [0, 1, 2].map(|at| &hooks[at].ways);
    let us = |way: &Way| way.hook_us;
    println!(
        "a collective costs {:.1} µs with native code, {:.2} of the {:.1} µs with Python code in the same run",
        us(&two.native),
        us(&two.native) / us(&two.python),
        us(&two.python),
    );
    let args = ddp("blocks", 100, 1, if quick { 80 } else { 1600 });
    let (blocks, _) = Script::new(python, "bench_ddp.py", &args, 2).run::<Blocks>().await?;
    let pace = |(off, on): (&f64, &f64)| [1e3 / off, 1e3 / on];
    let wall = Overhead::of(&blocks.off_ms.iter().zip(&blocks.on_ms).map(pace).collect::<Vec<_>>());
    println!("by wall time, in alternating blocks of one run: slower by {wall}");
    Ok(Training {
        hook_us_per_collective_p50: two.native.hook_us,
        hook_us_per_collective_p50_python: two.python.hook_us,
        hook_us_native_to_python: two.native.hook_us / two.python.hook_us,
        ddp_hook_percent_100ms: two.native.hook_percent,
        ddp_hook_percent_10ms: short.native.hook_percent,
        ddp_hook_percent_100ms_10_collectives: ten.native.hook_percent,
        ddp_hook_percent_p50_100ms: two.native.hook_percent_p50,
        ddp_hook_percent_p50_10ms: short.native.hook_percent_p50,
        ddp_hook_percent_p50_100ms_10_collectives: ten.native.hook_percent_p50,
        ddp_hook_percent_p50_100ms_python: two.python.hook_percent_p50,
        ddp_hook_percent_p50_100ms_10_collectives_python: ten.python.hook_percent_p50,
        ddp_wall_percent: wall.slower_percent,
        ddp_wall_ci: wall.interval_percent,
        collectives_seen: seen,
        collectives_expected: expected,
    })
}

impl Way {
    fn print(&self, name: &str) {
        let Way { collectives_a_step, step_ms, hook_us, hook_percent, hook_percent_p50, parts_us } = self;
        let parts: Vec<_> = parts_us.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
        println!(
            "| {collectives_a_step} | {name} | {step_ms:.1} | {hook_us:.1} | {hook_percent:.4} | {hook_percent_p50:.4} | {} |",
            parts.join(", ")
        );
    }
}

fn ddp(what: &str, step_ms: u32, extra: u32, steps: u32) -> Vec<String> {
    let (step_ms, extra, steps) = (step_ms.to_string(), extra.to_string(), steps.to_string());
    ["--what", what, "--step-ms", &step_ms, "--extra", &extra, "--steps", &steps].map(str::to_owned).to_vec()
}

/// A program of `examples/soak/python`.
pub(crate) struct Script<'a> {
    python: &'a Path,
    name: &'a str,
    args: &'a [String],
    ranks: u32,
    /// The binding through which it records: `ctypes` or `abi3`; empty for the default.
    native: &'a str,
    standbys: Standbys,
    /// True if it reports figures that find numerical faults.
    numerical: bool,
}

impl<'a> Script<'a> {
    /// Creates a program that is run as by an unmodified launcher.
    pub(crate) fn new(python: &'a Path, name: &'a str, args: &'a [String], ranks: u32) -> Script<'a> {
        Script { python, name, args, ranks, native: "", standbys: Standbys::template(), numerical: false }
    }

    /// Has it report figures that find numerical faults.
    pub(crate) fn numerical(self) -> Script<'a> {
        Script { numerical: true, ..self }
    }

    pub(crate) fn standbys(self, standbys: Standbys) -> Script<'a> {
        Script { standbys, ..self }
    }

    /// Runs it as a job whose records are read. Returns what rank 0 printed, and how many operations of process groups
    /// it recorded.
    pub(crate) async fn run<T: DeserializeOwned>(&self) -> Result<(T, u64), Failure> {
        let dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
        let local = Arc::new(LocalLauncher::builder(dir.path().join("run")).job_name("bench").build().await?);
        let torch = TorchLauncher::new(Arc::clone(&local), dir.path().join("torch")).standbys(self.standbys.clone());
        let recorded = Arc::new(AtomicU64::new(0));
        let runtime = Runtime::builder()
            .job(self.spec())
            .source(local.recordings().sink(counting(Arc::clone(&recorded))))
            .detector(ExitDetector::new())
            .strategy(ExitStrategy::new())
            .launcher(torch);
        let report = runtime.build()?.run().await;
        local.shutdown(Duration::ZERO).await?;
        if let Err(ended) = program::completed(&report) {
            let kept = dir.keep(); // a rank's output explains more than its exit status
            eprintln!("the ranks' output is kept in {}", kept.display());
            for rank in 0..self.ranks {
                let stderr = kept.join(format!("run/procs/rank-{rank}.1/stderr.log"));
                eprintln!("{}:\n{}", stderr.display(), std::fs::read_to_string(&stderr).unwrap_or_default());
            }
            return Err(ended.into());
        }
        let printed = std::fs::read_to_string(dir.path().join("run/procs/rank-0.1/stdout.log"))?;
        let line = printed.lines().last().ok_or_else(|| format!("{} printed nothing", self.name))?;
        Ok((serde_json::from_str(line)?, recorded.load(Ordering::Relaxed)))
    }

    fn spec(&self) -> JobSpec {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(self.name);
        let program = [self.python, &script].map(|path| path.to_string_lossy().into_owned());
        let worker = WorkerSpec::new(program.into_iter().chain(self.args.iter().cloned()));
        let mut worker = worker.with_env("PYTHONFAULTHANDLER", "1"); // a crash leaves the Python stacks in its output
        if !self.native.is_empty() {
            worker = worker.with_env("TASKD_NATIVE", self.native);
        }
        if self.numerical {
            worker = worker.with_env("TASKD_NUMERICAL", "on");
        }
        let mut spec = JobSpec::new("bench", self.ranks, worker);
        spec.policy.start_timeout = Duration::from_secs(300);
        spec
    }
}

/// Returns a sink that counts the communication operations that rank 0 began.
fn counting(recorded: Arc<AtomicU64>) -> impl Fn(&Arc<RecordBatch>) + Send {
    move |batch: &Arc<RecordBatch>| {
        if batch.origin.rank == Rank(0) {
            let is_begun = |event| matches!(event, Event::Begin { .. });
            let of_group = batch.records.iter().filter(|one| one.kind == Kind::Communication && is_begun(one.event));
            recorded.fetch_add(of_group.count() as u64, Ordering::Relaxed);
        }
    }
}

//! One program under supervision, with the probe loaded: the work of its GPU, by name.
//!
//! The program is not changed. If CUPTI is missing, that is reported, and the program runs nevertheless.

use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::launch::LocalLauncher;
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;
use taskd_core::trace::recorder::{Detail, Event};
use taskd_core::trace::{RecordBatch, Signal, SourceError, TraceBatch, TraceSource};
use taskd_examples::program::{self, Failure};
use taskd_hw_cuda::cupti::{self, CuptiProfile, CuptiSource, FAMILY};

/// Most names that are counted separately; all names beyond are counted as one.
const NAMES_MAX: usize = 10_000;
/// Most names in the table.
const SHOWN: usize = 12;

/// A program whose GPU is to be traced.
#[derive(Debug, Args)]
pub(super) struct Traced {
    /// Path of CUPTI, if the loader does not find it. NVTX ranges are recorded only with this option.
    #[arg(long)]
    cupti: Option<PathBuf>,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true)]
    command: Vec<String>,
}

/// The work under one name.
#[derive(Clone, Debug, Default, Serialize)]
struct Line {
    kind: String,
    name: String,
    count: u64,
    total_ms: f64,
    bytes: u64,
}

type Sums = BTreeMap<(String, String), Line>;

/// The result.
#[derive(Debug, Serialize)]
struct Account {
    completed: bool,
    stand_in: bool,
    unavailable: Option<String>,
    /// By total time, the longest first.
    work: Vec<Line>,
    figures: BTreeMap<String, f64>,
}

pub(super) async fn run(options: &Traced) -> Result<(), Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-gpu-watch-").tempdir()?;
    let profile = options.cupti.iter().fold(CuptiProfile::new(), |profile, path| profile.with_library(path));
    let mut worker = profile.apply(WorkerSpec::new(options.command.iter().cloned()))?;
    worker = worker.with_env("TASKD_TRACE", "all");
    if profile.is_stand_in() {
        println!("This is no GPU: the library declares itself a stand-in for CUPTI.");
    }
    let launcher = Arc::new(LocalLauncher::builder(dir.path()).job_name("gpu-watch").build().await?);
    let (sink, source) = cupti::reader();
    let source = if profile.is_stand_in() { source.with_stand_in() } else { source };
    let (sums, counted) = (Arc::new(Mutex::new(Sums::new())), Arc::new(Mutex::new(Counted::default())));
    let adding = Arc::clone(&sums);
    let add = move |batch: &Arc<RecordBatch>| add(batch, &mut adding.lock().unwrap_or_else(PoisonError::into_inner));
    let runtime = Runtime::builder()
        .job(JobSpec::new("gpu-watch", 1, worker))
        .source(launcher.recordings().every(Duration::from_millis(50)).sink(sink).sink(add))
        .source(Shown { source, counted: Arc::clone(&counted) })
        .detector(ExitDetector::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&launcher))
        .build()?;
    let report = runtime.run_with_signals(program::LEAVE).await?;
    launcher.shutdown(Duration::ZERO).await?;
    let counted = std::mem::take(&mut *counted.lock().unwrap_or_else(PoisonError::into_inner));
    let mut work: Vec<Line> = sums.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    work.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    let Counted { figures, unavailable } = counted;
    let account = Account { completed: report.ok, stand_in: profile.is_stand_in(), unavailable, work, figures };
    program::print(&account, options.json, || table(&account));
    program::completed(&report)?;
    Ok(())
}

/// Adds a batch to the sums of each name.
fn add(batch: &RecordBatch, sums: &mut Sums) {
    for record in &batch.records {
        let Event::Span { nanos } = record.event else { continue };
        let key = (format!("{:?}", record.kind), batch.names.get(record.name).to_owned());
        let key = if sums.len() < NAMES_MAX || sums.contains_key(&key) { key } else { (key.0, "others".into()) };
        let line = sums.entry(key.clone()).or_default();
        (line.kind, line.name) = key;
        line.count += 1;
        line.total_ms += nanos as f64 / 1e6;
        if let Detail::Device(work) = record.detail {
            line.bytes += work.bytes;
        }
    }
}

fn table(account: &Account) -> String {
    let mut text = format!("{:<14} {:>10} {:>12} {:>14}  name\n", "kind", "count", "total ms", "bytes");
    for Line { kind, name, count, total_ms, bytes } in account.work.iter().take(SHOWN) {
        text += &format!("{kind:<14} {count:>10} {total_ms:>12.3} {bytes:>14}  {name}\n");
    }
    if let Some(more) = account.work.len().checked_sub(SHOWN + 1) {
        text += &format!("and {} names more\n", more + 1);
    }
    match &account.unavailable {
        Some(why) => text + &format!("CUPTI is unavailable: {why}"),
        None if account.figures.is_empty() => text + "the program did not use CUDA",
        None => text + &format!("figures of CUPTI: {:?}", account.figures),
    }
}

/// What the probe reported of itself.
#[derive(Debug, Default)]
struct Counted {
    figures: BTreeMap<String, f64>,
    unavailable: Option<String>,
}

/// The probe's source, whose facts are also kept.
struct Shown {
    source: CuptiSource,
    counted: Arc<Mutex<Counted>>,
}

#[async_trait::async_trait]
impl TraceSource for Shown {
    taskd_core::delegate!(TraceSource to |this| this.source, except next);

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        let reported = self.source.next().await;
        if let Some(Ok(batch)) = &reported {
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            for fact in &batch.facts {
                match &fact.signal {
                    Signal::Metric { name, value } => drop(counted.figures.insert(name.to_string(), *value)),
                    Signal::Error(error) if error.family == FAMILY => counted.unavailable = Some(error.text.clone()),
                    _ => {}
                }
            }
        }
        reported
    }
}

//! A training in four phases with different kinds switched on, and all its records in files.

use crate::seen::Seen;
use crate::standin::Job;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;
use taskd_core::trace::switches::{Mode, Requested, Switch, TraceControl};
use taskd_examples::files::{Files, Written};
use taskd_examples::program::{self, Failure};
use taskd_hw_ascend::mspti;

/// Records that the rank's memory has room for between two rounds.
const RECORDS: usize = 1 << 14;

/// Steps under the same switches.
#[derive(Debug, Serialize)]
struct Phase {
    name: &'static str,
    /// The step after which the phase began, and the step with which it ended.
    from: u64,
    to: u64,
    /// Spans between these steps, by kind.
    spans: BTreeMap<String, u64>,
}

/// The whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Account {
    /// True if the probe has loaded a stand-in, which it reports: there is no NPU.
    stand_in: bool,
    phases: Vec<Phase>,
    /// Figures of the probe.
    figures: BTreeMap<String, f64>,
    /// Figures of the stand-in.
    of_the_stand_in: Value,
    written: Written,
}

/// Runs the training, with `steps` steps for each phase, and writes its records to `out`.
pub(crate) async fn run(steps: u64, out: Option<&Path>) -> Result<Account, Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-ascend-").tempdir()?;
    let out = out.map_or_else(|| dir.path().join("trace"), Path::to_owned);
    std::fs::create_dir_all(&out)?;
    let job = Job::new(dir.path()).await?;
    let (files, seen, control) = (Files::begin(&out)?, Seen::default(), TraceControl::new(Mode::Native));
    let (sink, source) = mspti::reader();
    let source = if job.is_stand_in { source.with_stand_in() } else { source };
    let recordings = job.local.recordings().control(control.clone()).sink(files.sink()).sink(seen.sink()).sink(sink);
    let runtime = Runtime::builder()
        .job(job.spec(&[], RECORDS))
        .source(recordings)
        .source(source)
        .trace(control.clone())
        .detector(ExitDetector::new())
        .strategy(ExitStrategy::new())
        .launcher(std::sync::Arc::clone(&job.launcher))
        .build()?;
    let running = tokio::spawn(runtime.run());
    let phases = switch_under(&job, steps, &control).await;
    job.send("stop")?;
    let report = running.await?;
    job.local.shutdown(Duration::ZERO).await?;
    program::completed(&report)?;
    let written = files.finish()?;
    let (phases, seen) = (phases?, seen.state());
    let phases = phases.into_iter().map(|(name, from, to)| Phase {
        name,
        from: from.0,
        to: to.0,
        spans: seen.between(from.1, to.1),
    });
    let printed = job.printed("stand-in ").unwrap_or_default();
    Ok(Account {
        stand_in: seen.figure("mspti.stand_in") > 0.0,
        phases: phases.collect(),
        figures: seen.figures.clone(),
        of_the_stand_in: serde_json::from_str(&printed)?,
        written,
    })
}

/// A step, and its time in nanoseconds since 1970.
type Reached = (u64, u64);

/// Switches through the phases, each for `steps` steps. The steps next to a switch are left out: they are recorded
/// partly under one phase's switches and partly under the other's.
async fn switch_under(
    job: &Job,
    steps: u64,
    control: &TraceControl,
) -> Result<Vec<(&'static str, Reached, Reached)>, Failure> {
    let (on, none) = (Switch::On, Requested::NONE);
    let plan = [
        ("what programs mark", Requested { marker: on, ..Requested::USUAL }),
        ("everything", Requested::ALL),
        ("nothing", none),
        ("kernels and copies alone", Requested { kernel: on, copy: on, ..none }),
    ];
    let mut phases = Vec::new();
    let mut before = job.reach(1).await?;
    for (name, requested) in plan {
        control.switch(requested, "ascend_trace");
        let from = job.reach(before.0 + 10).await?; // the probe looks every 20 ms
        let to = job.reach(from.0 + steps).await?;
        println!("steps {:>4} to {:>4}  {name}", from.0, to.0);
        phases.push((name, from, to));
        before = to;
    }
    Ok(phases)
}

impl Account {
    /// Prints a table, or one line of JSON.
    pub(crate) fn print(&self, json: bool) {
        program::print(self, json, || self.table());
    }

    fn table(&self) -> String {
        let mut out = String::from("\n  spans by kind\n");
        for phase in &self.phases {
            let spans: Vec<String> = phase.spans.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
            let spans = if spans.is_empty() { "none".to_owned() } else { spans.join(", ") };
            let _ = writeln!(out, "  {:<25} {spans}", phase.name);
        }
        let figures: Vec<String> = self.figures.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let _ = writeln!(out, "\n  {}\n  the stand-in reports {}", figures.join(", "), self.of_the_stand_in);
        let written = &self.written;
        let _ = writeln!(
            out,
            "\n  {} records, {:.1} bytes each, {} dropped\n  for ui.perfetto.dev, {} ranges: {}",
            written.records,
            written.bytes_per_record,
            written.dropped,
            written.ranges,
            written.perfetto.display(),
        );
        out
    }
}

//! What a marker record costs the probe, from mspti's buffer to the recorder, and whether records are lost at a given
//! rate.
//!
//! The stand-in generates ranges, two marker records each, on one core; on another core the probe takes them out of its
//! buffers and writes them to the recorder, and this process reads them there. The cost of the probe is the CPU time of
//! its thread, as the kernel accounts for it: other load on the machine does not count.

use crate::seen::Seen;
use crate::standin::{Job, wait_for};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;
use taskd_core::trace::recorder::Kind;
use taskd_core::trace::switches::{Mode, Requested, Switch, TraceControl};
use taskd_examples::program::{self, Failure};

/// Records that the rank's memory has room for between two rounds: 16 MiB.
const RECORDS: usize = 1 << 18;
/// The time between two rounds.
const ROUND: Duration = Duration::from_millis(20);

/// One run.
#[derive(Debug, Serialize)]
struct Run {
    /// What the ranges are: forward passes with a name of seven letters, or collectives with a JSON text of a hundred.
    of: &'static str,
    /// Requested marker records per second; 0: as many as the stand-in can generate.
    rate: u64,
    /// Time in which they were generated.
    seconds: f64,
    /// Marker records that were generated, and those that found no free buffer.
    made: u64,
    dropped: u64,
    /// Marker records that the probe has read, and spans that the sink received: half as many.
    read: f64,
    spans: u64,
    /// Records that the recorder has lost.
    lost: u64,
    /// CPU time of the probe in milliseconds, and the records per second of CPU time that follow from it.
    busy_ms: f64,
    records_per_second_of_cpu: f64,
    calls_from_callbacks: u64,
}

/// All runs.
#[derive(Debug, Serialize)]
pub(crate) struct Account {
    stand_in: bool,
    runs: Vec<Run>,
}

/// Runs both kinds at full speed, and then one at `rate` records per second, for `seconds` each.
pub(crate) async fn run(seconds: u64, rate: u64) -> Result<Account, Failure> {
    let mut runs = Vec::new();
    let mut stand_in = false;
    for (kind, rate) in [(Kind::Forward, 0), (Kind::Communication, 0), (Kind::Forward, rate)] {
        let (run, is_stand_in) = one(seconds, rate, kind).await?;
        stand_in = is_stand_in;
        runs.push(run);
    }
    Ok(Account { stand_in, runs })
}

async fn one(seconds: u64, rate: u64, kind: Kind) -> Result<(Run, bool), Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-ascend-").tempdir()?;
    let job = Job::new(dir.path()).await?;
    let (seen, control) = (Seen::default(), TraceControl::new(Mode::Native));
    control.switch(Requested { forward: Switch::On, communication: Switch::On, ..Requested::NONE }, "bench");
    let recordings = job.local.recordings().every(ROUND).control(control.clone()).sink(seen.sink());
    let (flood, at) = (seconds.to_string(), rate.to_string());
    let mut words = vec!["--flood", &flood, "--rate", &at];
    words.extend((kind == Kind::Communication).then_some("--collectives"));
    let runtime = Runtime::builder()
        .job(job.spec(&words, RECORDS))
        .source(recordings)
        .trace(control)
        .detector(ExitDetector::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&job.launcher))
        .build()?;
    let running = tokio::spawn(runtime.run());
    wait_for(|| (seen.state().figure("mspti.stand_in") > 0.0).then_some(())).await?; // the probe is running
    let before = seen.state().figure("mspti.busy_ms");
    job.send("go")?;
    // The run is over when the number of spans stays the same for 300 checks.
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let mut last = (0, 0);
    wait_for(|| {
        let spans = seen.state().spans.get(&kind).copied().unwrap_or(0);
        last = if spans == last.0 && spans > 0 { (spans, last.1 + 1) } else { (spans, 0) };
        (last.1 > 300).then_some(())
    })
    .await?;
    job.send("stop")?;
    let report = running.await?;
    job.local.shutdown(Duration::ZERO).await?;
    program::completed(&report)?;
    let stand_in: Value = serde_json::from_str(&job.printed("stand-in ").unwrap_or_default())?;
    let count = |name: &str| stand_in[name].as_u64().unwrap_or(0);
    let seen = seen.state();
    let (read, busy_ms) = (seen.figure("mspti.records"), seen.figure("mspti.busy_ms") - before);
    let run = Run {
        of: if kind == Kind::Communication { "collectives" } else { "forward passes" },
        rate,
        seconds: stand_in["seconds"].as_f64().unwrap_or(0.0),
        made: count("recorded"),
        dropped: count("dropped"),
        read,
        spans: seen.spans.get(&kind).copied().unwrap_or(0),
        lost: seen.lost,
        busy_ms,
        records_per_second_of_cpu: read / (busy_ms / 1e3),
        calls_from_callbacks: count("calls_from_callbacks"),
    };
    Ok((run, seen.figure("mspti.stand_in") > 0.0))
}

impl Account {
    /// Prints a table, or one line of JSON.
    pub(crate) fn print(&self, json: bool) {
        program::print(self, json, || self.table());
    }

    fn table(&self) -> String {
        let mut out = String::from(
            "\n| ranges of | requested per second | made per second | made | dropped | read | spans | lost | probe on a CPU, ms | records per second of CPU |\n|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for run in &self.runs {
            let _ = writeln!(
                out,
                "| {} | {} | {:.2} million | {} | {} | {} | {} | {} | {:.0} | {:.1} million |",
                run.of,
                if run.rate == 0 { "unlimited".to_owned() } else { run.rate.to_string() },
                run.made as f64 / run.seconds / 1e6,
                run.made,
                run.dropped,
                run.read,
                run.spans,
                run.lost,
                run.busy_ms,
                run.records_per_second_of_cpu / 1e6,
            );
        }
        out
    }
}

//! Prints how much faster a job would run without each cause of delay, from a file of operations.
//!
//! ```text
//! cargo run --release -p taskd-analysis --features parquet --example what_if -- TRACE.parquet [--json]
//! ```
//!
//! The file has the columns of ByteDance's StragglerAnalysis (see `taskd_analysis::what_if::read_parquet`). With
//! `--json` the figures are one JSON object.

use serde_json::json;
use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use taskd_analysis::what_if::{Findings, Model, OperationTrace, Published, attribute, read_parquet};

/// Workers, types and scenarios in the table.
const ROWS_MAX: usize = 12;

/// Times of the parts of a run.
struct Times {
    read: Duration,
    model: Duration,
    attribute: Duration,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_json = arguments.iter().any(|argument| argument == "--json");
    let [path] = &arguments.iter().filter(|argument| *argument != "--json").collect::<Vec<_>>()[..] else {
        eprintln!("usage: what_if TRACE.parquet [--json]");
        return ExitCode::from(2);
    };
    match run(path) {
        Ok((trace, model, findings, times)) if is_json => {
            println!("{}", json(&trace, &model, &findings, &times));
            ExitCode::SUCCESS
        }
        Ok((trace, model, findings, times)) => {
            print(&trace, &model, &findings, &times);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}

type Run = (OperationTrace, Model, Findings, Times);

fn run(path: &str) -> Result<Run, Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let mut trace = read_parquet(File::open(path)?)?;
    let read = begun.elapsed();
    let model = Model::new(std::mem::take(&mut trace.operations))?;
    let modelled = begun.elapsed();
    let findings = attribute(&model);
    let times = Times { read, model: modelled - read, attribute: begun.elapsed() - modelled };
    Ok((trace, model, findings, times))
}

fn print(trace: &OperationTrace, model: &Model, findings: &Findings, times: &Times) {
    println!("{}\n", findings.verdict.sentence);
    for blame in &findings.verdict.blamed {
        println!("Evidence against {} ({}, confidence {} ‰):", blame.component, blame.cause, blame.confidence_permille);
        blame.evidence.iter().for_each(|item| println!("  - {}", item.text));
        println!();
    }
    let what_if = &findings.what_if;
    println!("{:<62} {:>12} {:>8} {:>7}", "without", "mean step s", "speedup", "share");
    let mean = |microseconds: u64| seconds(microseconds) / model.steps().len().max(1) as f64;
    println!("{:<62} {:>12.3} {:>8} {:>7}", "(nothing: the model)", mean(what_if.modelled_us), "1.000", "");
    for scenario in what_if.scenarios.iter().take(ROWS_MAX) {
        let (time, share) = (mean(scenario.time_us), scenario.share * 100.0);
        println!("{:<62} {time:>12.3} {:>8.3} {share:>5.1} %", scenario.without, scenario.speedup);
    }
    print_published(&findings.published);
    let (modelled, measured) = (seconds(what_if.modelled_us), seconds(what_if.measured_us));
    println!(
        "\nModel: {} operations of {} workers in {} steps. Modelled {modelled:.1} s, measured {measured:.1} s: the model \
         leaves out {:.2} % (the host's activity between operations).",
        model.len(),
        model.workers().len(),
        model.steps().len(),
        (measured / modelled - 1.0) * 100.0,
    );
    let counts = model.counts();
    if counts != Default::default() || trace.unknown_rows > 0 {
        println!(
            "Left out or changed: {} sends and receives without their other side, {} without their pass, {} transfers \
             against the clock, {} rows of unknown types {:?}.",
            counts.unpaired,
            counts.unmatched,
            counts.clamped,
            trace.unknown_rows,
            trace.unknown.keys().collect::<Vec<_>>(),
        );
    }
    println!("Time: {:?} to read, {:?} for the model, {:?} to attribute.", times.read, times.model, times.attribute);
}

fn print_published(published: &Published) {
    let share = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", share * 100.0));
    println!("\nBy the definitions of the paper (OSDI 2025):");
    println!("  S    {:.4}  slowdown by all stragglers", published.slowdown);
    println!("  M_W  {}  by the slowest workers", share(published.slowest_workers_share));
    println!("  M_S  {}  by the last stage", share(published.last_stage_share));
    let workers = published.by_worker.iter().take(4).map(|(worker, s)| format!("{} {s:.4}", worker.to_words()));
    println!("  S_w  {}", workers.collect::<Vec<_>>().join(", "));
    let types = published.by_type.iter().take(4).map(|(name, s)| format!("{name} {s:.4}"));
    println!("  S_t  {}", types.collect::<Vec<_>>().join(", "));
}

fn json(trace: &OperationTrace, model: &Model, findings: &Findings, times: &Times) -> serde_json::Value {
    let published = &findings.published;
    let workers = published.by_worker.iter().map(|(worker, s)| json!({ "rank": worker.rank, "slowdown": s }));
    json!({
        "verdict": findings.verdict,
        "what_if": findings.what_if,
        "published": {
            "modelled_s": published.modelled_s,
            "ideal_s": published.ideal_s,
            "slowdown": published.slowdown,
            "slowest_workers_share": published.slowest_workers_share,
            "last_stage_share": published.last_stage_share,
            "by_worker": workers.collect::<Vec<_>>(),
            "by_data_rank": published.by_data_rank,
            "by_stage": published.by_stage,
            "by_type": published.by_type,
        },
        "operations": model.len(),
        "unknown_rows": trace.unknown_rows,
        "read_s": times.read.as_secs_f64(),
        "model_s": times.model.as_secs_f64(),
        "attribute_s": times.attribute.as_secs_f64(),
    })
}

#[allow(clippy::cast_precision_loss, reason = "microseconds are below 2^52")]
fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

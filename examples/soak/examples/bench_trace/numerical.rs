//! The cost of the figures that find numerical faults, in ranks that a launcher has started.
//!
//! The program is `bench_numerical.py` of `examples/soak/python`; it measures, and this module compares.

use super::python::Script;
use serde::{Deserialize, Serialize};
use std::path::Path;
use taskd_examples::overhead::Overhead;
use taskd_examples::program::Failure;

/// Length of the step of which costs are given in percent, in microseconds.
const STEP_US: f64 = 100_000.0;

/// The cost for a training of two ranks, on processors.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// Time in all hooks in a step in which neither a norm nor a checksum is due, in microseconds.
    numerical_hooks_us: f64,
    /// The whole cost for each model, on average, in percent of a step of 100 ms.
    numerical_percent_100ms: Vec<f64>,
    /// Slowdown of the smallest model's step by processor time, in percent, and its 95 % confidence interval.
    numerical_cpu_percent: f64,
    numerical_cpu_ci: (f64, f64),
}

/// The output of `bench_numerical.py`.
#[derive(Debug, Deserialize)]
struct Run {
    models: Vec<Model>,
    hooks_us: f64,
    on_ms: Vec<f64>,
    off_ms: Vec<f64>,
}

#[derive(Debug, Deserialize)]
struct Model {
    parameters: u64,
    norm: Part,
    checksum: Part,
}

/// What is done in every n-th step.
#[derive(Debug, Deserialize)]
struct Part {
    us: f64,
    most_us: f64,
    every: u64,
    #[serde(default)]
    parts: u64,
}

impl Part {
    #[allow(clippy::cast_precision_loss, reason = "a few steps")]
    fn us_per_step(&self) -> f64 {
        self.us / self.every as f64
    }
}

/// Measures the figures, prints a table, and returns the cost.
pub(crate) async fn measure(python: &Path, quick: bool) -> Result<Figures, Failure> {
    let args = if quick { "--layers 1 --rounds 3 --blocks 4" } else { "--layers 10 100 --rounds 21 --blocks 40" };
    let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
    let script = Script::new(python, "bench_numerical.py", &args, 2).numerical();
    let (run, _) = script.run::<Run>().await?;
    println!("\nfigures that find numerical faults (TASKD_NUMERICAL=on), two ranks on processors; medians\n");
    println!(
        "| parameters | norm of gradients, ms (most) | every | checksum of a part, ms (most) | every | parts | µs a step | of 100 ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut percent = Vec::new();
    for Model { parameters, norm, checksum } in &run.models {
        let us = run.hooks_us + norm.us_per_step() + checksum.us_per_step();
        percent.push(100.0 * us / STEP_US);
        println!(
            "| {parameters} | {:.2} ({:.2}) | {} | {:.2} ({:.2}) | {} | {} | {us:.0} | {:.3} % |",
            norm.us / 1e3,
            norm.most_us / 1e3,
            norm.every,
            checksum.us / 1e3,
            checksum.most_us / 1e3,
            checksum.every,
            checksum.parts,
            100.0 * us / STEP_US
        );
    }
    let pace = |(off, on): (&f64, &f64)| [1e3 / off, 1e3 / on];
    let cpu = Overhead::of(&run.off_ms.iter().zip(&run.on_ms).map(pace).collect::<Vec<_>>());
    println!("\nall hooks take {:.1} µs in a step in which neither is due", run.hooks_us);
    println!("by processor time, in alternating blocks of one run of the first model: slower by {cpu}");
    println!("with an accelerator these figures were not measured: there values are read a step later, without a wait");
    Ok(Figures {
        numerical_hooks_us: run.hooks_us,
        numerical_percent_100ms: percent,
        numerical_cpu_percent: cpu.slower_percent,
        numerical_cpu_ci: cpu.interval_percent,
    })
}

//! The time of steps, by rank and phase.
//!
//! It only adds up and prints.

use crate::files::Written;
use crate::program;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use taskd_core::trace::StepTimes;

/// The steps of all ranks.
#[derive(Clone, Debug, Default)]
pub struct Breakdown(BTreeMap<u32, BTreeMap<u64, StepTimes>>);

impl Breakdown {
    /// Adds a step that a rank has completed.
    pub fn add(&mut self, rank: u32, times: &StepTimes) {
        self.0.entry(rank).or_default().insert(times.step, times.clone());
    }
}

/// Steps under the same switches.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// Name of the phase: what was recorded in it.
    pub name: String,
    /// The step after which it began.
    pub from: u64,
    /// The step with which it ended.
    pub to: u64,
    /// Time to switch all ranks, in microseconds.
    pub switched_us: f64,
}

/// One rank in one phase: the mean of its steps, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The phase.
    pub phase: String,
    /// The rank.
    pub rank: u32,
    /// Steps that were recorded.
    pub steps: usize,
    /// Duration of a step.
    pub step_ms: f64,
    /// Time without waiting for other ranks.
    pub own_ms: f64,
    /// Time on a CPU.
    pub cpu_ms: f64,
    /// Time of waiting for other ranks.
    pub wait_ms: f64,
    /// Time of waiting for data.
    pub data_ms: f64,
    /// Time in the forward pass.
    pub forward_ms: f64,
    /// Time of saving checkpoints.
    pub save_ms: f64,
    /// Communication operations in a step.
    pub communications: f64,
}

/// The whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    /// The phases.
    pub phases: Vec<Phase>,
    /// The ranks in each phase.
    pub rows: Vec<Row>,
    /// The files that were written.
    pub written: Written,
}

impl Account {
    /// Computes the means. The steps next to a switch belong to no phase: they are recorded partly under one phase's
    /// switches and partly under the other's.
    #[must_use]
    pub fn of(phases: &[Phase], breakdown: &Breakdown, written: Written) -> Account {
        let rows = phases.iter().flat_map(|phase| {
            let inner = phase.from + 2..=phase.to.saturating_sub(1);
            breakdown.0.iter().map(move |(rank, steps)| {
                let steps: Vec<&StepTimes> = steps.range(inner.clone()).map(|(_, times)| times).collect();
                row(&phase.name, *rank, &steps)
            })
        });
        Account { phases: phases.to_vec(), rows: rows.collect(), written }
    }

    /// Prints a table, or one line of JSON.
    pub fn print(&self, json: bool) {
        program::print(self, json, || self.table());
    }

    fn table(&self) -> String {
        let mut out = String::from(
            "\n  mean of a step, in milliseconds\n  phase                  rank  steps   step    own    cpu   wait   data  forward   save  communications\n",
        );
        for row in &self.rows {
            let _ = writeln!(
                out,
                "  {:<21}  {:>4}  {:>5}  {:>5.1}  {:>5.1}  {:>5.1}  {:>5.1}  {:>5.1}  {:>7.1}  {:>5.1}  {:>14.1}",
                row.phase,
                row.rank,
                row.steps,
                row.step_ms,
                row.own_ms,
                row.cpu_ms,
                row.wait_ms,
                row.data_ms,
                row.forward_ms,
                row.save_ms,
                row.communications,
            );
        }
        let written = &self.written;
        let _ = writeln!(
            out,
            "\n  {} records, {:.1} bytes each ({:.0} as lines of JSON), {} dropped\n  for ui.perfetto.dev, {} ranges: {}",
            written.records,
            written.bytes_per_record,
            written.jsonl_bytes_per_record,
            written.dropped,
            written.ranges,
            written.perfetto.display(),
        );
        out
    }
}

fn row(phase: &str, rank: u32, steps: &[&StepTimes]) -> Row {
    let mean = |part: &dyn Fn(&StepTimes) -> u64| {
        let sum: u64 = steps.iter().map(|times| part(times)).sum();
        sum as f64 / steps.len().max(1) as f64
    };
    let ms = |part: &dyn Fn(&StepTimes) -> u64| mean(part) / 1e6;
    Row {
        phase: phase.to_owned(),
        rank,
        steps: steps.len(),
        step_ms: ms(&|times| times.wall_ns),
        own_ms: ms(&StepTimes::own_ns),
        cpu_ms: ms(&|times| times.cpu_ns.unwrap_or(0)),
        wait_ms: ms(&|times| times.wait_ns),
        data_ms: ms(&|times| times.data_loader_ns),
        forward_ms: ms(&|times| times.forward_ns),
        save_ms: ms(&|times| times.save_checkpoint_ns),
        communications: mean(&|times| times.communications.into()),
    }
}

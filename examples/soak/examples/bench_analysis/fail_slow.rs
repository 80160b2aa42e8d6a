//! The fail-slow engine on one core: 100,000 ranks, 100 steps, 8 series.

use serde::Serialize;
use std::time::Instant;
use taskd_core::detect::fail_slow::{FailSlow, Grid, Layout, Row};
use taskd_examples::program::Failure;

const GRID: Grid = Grid { dp: 625, tp: 8, pp: 20, cp: 1, ep: 1, per_host: 8 };
const STEPS: u64 = 100;
/// Usual values of the eight series, in milliseconds.
const USUAL: Row = [100.0, 20.0, 15.0, 5.0, 2.0, 3.0, 33.0, 90.0];
/// Rank that computes half as long again from step 61 on.
const SLOW_RANK: usize = 4_242;

/// The figures of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    /// Elapsed time in the engine, in seconds.
    failslow_100k_s: f64,
    /// Time on a CPU in the engine, in seconds.
    failslow_100k_cpu_s: f64,
    /// Number of verdicts; one component is slow.
    failslow_verdicts: usize,
}

/// Measures the engine in this process.
pub(crate) fn measure() -> Result<Figures, Failure> {
    let layout = Layout::grid(GRID);
    let ranks = layout.len();
    let mut engine = FailSlow::new(layout);
    let mut rows: Vec<Row> = vec![[0.0; 8]; ranks];
    let mut state = 1_u32;
    let mut figures = Figures { failslow_100k_s: 0.0, failslow_100k_cpu_s: 0.0, failslow_verdicts: 0 };
    for step in 1..=STEPS {
        for (rank, row) in rows.iter_mut().enumerate() {
            for (value, usual) in row.iter_mut().zip(USUAL) {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *value = usual * (1.0 + 0.03 * f32::from(u16::try_from(state >> 16)?) / 65_536.0);
            }
            if step > 60 && rank == SLOW_RANK {
                (row[0], row[1]) = (row[0] * 1.5, 1.0);
            }
        }
        let (began, cpu) = (Instant::now(), cpu_s()?);
        figures.failslow_verdicts += engine.step(step, &rows).len();
        figures.failslow_100k_s += began.elapsed().as_secs_f64();
        figures.failslow_100k_cpu_s += cpu_s()? - cpu;
    }
    let Figures { failslow_100k_s: elapsed, failslow_100k_cpu_s: cpu, failslow_verdicts: verdicts } = figures;
    println!(
        "fail-slow, {ranks} ranks, {STEPS} steps, 8 series: {elapsed:.2} s ({cpu:.2} s of CPU time), {verdicts} verdict(s)"
    );
    Ok(figures)
}

/// Returns the time that this thread has spent on a CPU.
fn cpu_s() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos: f64 = text.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanos / 1e9)
}

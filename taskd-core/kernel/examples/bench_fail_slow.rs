//! Time of the fail-slow engine on one core: 100,000 ranks, 100 steps, 8 series.
//!
//! `cargo run --release -p taskd-kernel --example bench_fail_slow -- [--json]`
#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::disallowed_macros)] // a program, not a part of the package

use std::time::{Duration, Instant};
use taskd_kernel::detect::fail_slow::{FailSlow, Grid, Layout, Row};

/// Returns the time that this thread has spent on a CPU, in nanoseconds; zero where Linux does not report it.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or_default()
}

fn main() {
    let layout = Layout::grid(Grid { dp: 625, tp: 8, pp: 20, cp: 1, ep: 1, per_host: 8 });
    let ranks = layout.len();
    let mut engine = FailSlow::new(layout);
    let mut rows: Vec<Row> = vec![[0.0; 8]; ranks];
    let (mut state, mut spent, mut on_cpu, mut found) = (1_u32, Duration::ZERO, 0, 0);
    for step in 1..=100 {
        for (rank, row) in rows.iter_mut().enumerate() {
            for (value, usual) in row.iter_mut().zip([100.0_f32, 20.0, 15.0, 5.0, 2.0, 3.0, 33.0, 90.0]) {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *value = usual * (1.0 + 0.03 * f32::from(u16::try_from(state >> 16).unwrap_or_default()) / 65_536.0);
            }
            if step > 60 && rank == 4_242 {
                (row[0], row[1]) = (row[0] * 1.5, 1.0);
            }
        }
        let (began, cpu) = (Instant::now(), cpu_ns());
        found += engine.step(step, &rows).len();
        spent += began.elapsed();
        on_cpu += cpu_ns() - cpu;
    }
    let (seconds, cpu) = (spent.as_secs_f64(), Duration::from_nanos(on_cpu).as_secs_f64());
    if std::env::args().any(|arg| arg == "--json") {
        println!(
            "{{\"failslow_100k_s\": {seconds:.3}, \"cpu_s\": {cpu:.3}, \"ranks\": {ranks}, \"steps\": 100, \"verdicts\": {found}}}"
        );
    } else {
        println!("{ranks} ranks, 100 steps, 8 series: {seconds:.3} s ({cpu:.3} s on the CPU), {found} verdict(s)");
    }
}

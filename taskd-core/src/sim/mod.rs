//! A deterministic world around the real kernel: thousands of training jobs, and what can befall them.
//!
//! One seed is one job: its ranks, hosts, plugins, and faults. Nothing sleeps and nothing runs beside it, so a job of an hour
//! takes a second, and the same seed gives the same job, byte for byte. It is not a second runtime: it supervises
//! nothing real.
//!
//! Run your own plugins through it before you run them on a cluster:
//!
//! ```
//! use taskd_core::detect::{DetectorExt, detector};
//! use taskd_core::sim::{self, SimConfig};
//!
//! let plugins = || {
//!     let mut plugins = sim::drawn(7); // built-in ones, and some that are nasty
//!     plugins.detectors.push(detector("acme.calm", |_observation, _view, _findings| {}).boxed());
//!     plugins
//! };
//! let outcome = sim::run(7, &SimConfig::default().with_ranks(8..=16), &plugins);
//! assert_eq!(outcome.violation, None);
//! assert!(outcome.faults.values().sum::<u32>() >= 5 && outcome.rank_steps > 8_000);
//! ```

mod agent;
mod audit;
mod chaos;
mod config;
mod dice;
mod event;
mod fleet;
mod launcher;
mod log;
mod narrate;
mod operator;
mod outcome;
mod plugins;
mod queue;
mod scene;
mod sources;
mod step_loop;
mod supervisor;
mod training;
mod world;

pub use chaos::FaultKind;
pub use config::SimConfig;
pub use outcome::{Outcome, Violation};
pub use plugins::drawn;

use crate::kernel::Plugins;
use log::Log;
use world::World;

/// Makes the plugins of a job, anew for each start of its supervisor.
pub type PluginMaker<'a> = dyn Fn() -> Plugins + 'a;

fn with_saboteur(maker: &PluginMaker<'_>) -> Plugins {
    let mut plugins = maker();
    plugins.detectors.push(Box::new(plugins::Saboteur));
    plugins
}

/// Runs a job twice and requires the same log, byte for byte; then gives the log to a kernel of its own and requires the
/// same commands.
///
/// # Errors
/// What differs.
pub fn repeat(seed: u64, config: &SimConfig, plugins: &PluginMaker<'_>) -> Result<(), String> {
    let log = || match World::new(seed, config, plugins, Log::Bytes(Vec::new())).run(seed).1 {
        Log::Bytes(bytes) => bytes,
        Log::Off | Log::Lines(..) => Vec::new(),
    };
    let first = log();
    if first != log() {
        return Err(format!("seed {seed} gives another log when it is run again"));
    }
    log::replay(&first, config, plugins).map_err(|e| format!("seed {seed}: {e}"))
}

/// One of so many jobs is refused before it runs.
const ONE_IN_REFUSED: u64 = 50;

/// Runs one job. One in fifty is refused by its launcher at first, and its user starts it once more.
pub fn run(seed: u64, config: &SimConfig, plugins: &PluginMaker<'_>) -> Outcome {
    let job = || World::new(seed, config, plugins, Log::Off).run(seed).0;
    if !seed.is_multiple_of(ONE_IN_REFUSED) {
        return job();
    }
    let refused = World::stillborn(seed, config, plugins).run(seed).0;
    if refused.violation.is_some() {
        return refused;
    }
    let mut outcome = job();
    outcome.counts.add(&refused.counts);
    outcome
}

/// Runs a job again and tells its last `lines` lines.
pub fn explain(seed: u64, config: &SimConfig, plugins: &PluginMaker<'_>, lines: usize) -> (Outcome, Vec<String>) {
    let strict = SimConfig { drops_at_once: true, ..config.clone() };
    let (outcome, log) = World::new(seed, &strict, plugins, Log::Lines(Vec::new(), lines)).run(seed);
    match log {
        Log::Lines(lines, _) => (outcome, lines),
        _ => (outcome, Vec::new()),
    }
}

//! A deterministic simulation around the real kernel: thousands of training jobs with injected faults.
//!
//! One seed is one job: its ranks, hosts, plugins, and faults. There are no sleeps and no threads, so a job of an hour
//! takes a second, and the same seed gives the same job, byte for byte. The simulation is not a second runtime: it
//! supervises no real process.
//!
//! Run your own plugins through it before you run them on a cluster:
//!
//! ```
//! use taskd_core::detect::{FaultDetectorExt, detector_fn};
//! use taskd_core::sim::{self, SimConfig};
//!
//! let plugins = || {
//!     let mut plugins = sim::drawn(7); // built-in ones, and some that are nasty
//!     plugins.detectors.push(detector_fn("acme.calm", |_observation, _view, _findings| {}).boxed());
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

/// Function that creates the plugins (detectors and strategies) of a simulated job. The simulation calls it at each
/// start of the job's supervisor.
pub type PluginMaker<'a> = dyn Fn() -> Plugins + 'a;

fn with_saboteur(maker: &PluginMaker<'_>) -> Plugins {
    let mut plugins = maker();
    plugins.detectors.push(Box::new(plugins::Saboteur));
    plugins
}

/// Runs a simulated job twice and requires that both runs write the same log, byte for byte. Then passes the log to
/// a new decision kernel and requires the same commands from it.
///
/// # Errors
/// Returns a description of the difference.
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

/// One job in this many is refused before it runs.
const ONE_IN_REFUSED: u64 = 50;

/// Runs the simulated job that the seed determines. One job in fifty is first refused by its launcher, and then its
/// user starts it once more.
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

/// Runs the simulated job of a seed again, and returns the job's outcome and the last `lines` lines of its log.
pub fn explain(seed: u64, config: &SimConfig, plugins: &PluginMaker<'_>, lines: usize) -> (Outcome, Vec<String>) {
    let strict = SimConfig { drops_at_once: true, ..config.clone() };
    let (outcome, log) = World::new(seed, &strict, plugins, Log::Lines(Vec::new(), lines)).run(seed);
    match log {
        Log::Lines(lines, _) => (outcome, lines),
        _ => (outcome, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The short simulation: what mutations of the kernel are tested with, beside its own tests.
    #[test]
    fn a_few_small_jobs_break_no_invariant_and_replay() {
        let config = SimConfig::default().with_ranks(8..=32);
        for seed in 1..=8 {
            let outcome = run(seed, &config, &|| drawn(seed));
            assert_eq!(outcome.violation, None, "seed {seed}");
        }
        repeat(1, &config, &|| drawn(1)).expect("a run is the same again");
    }
}

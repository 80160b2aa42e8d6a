//! The simulation's own plugins: one for each kind of behavior that a kernel has to handle.
//!
//! Some are what a team might write, some are hostile on purpose. The plugins of a job are drawn from its seed.

mod detectors;
mod saboteur;
mod strategies;
mod strict;

pub(super) use saboteur::Saboteur;

use super::dice::Dice;
use crate::detect::{
    ExitDetector, FailedStepDetector, FaultDetectorExt, ProgramErrorDetector, RestartStormDetector, ShrunkDetector,
    SilenceDetector, StallDetector,
};
use crate::job::Name;
use crate::kernel::Plugins;
use crate::recover::{ExitStrategy, Grow, Recover, RecoveryStrategyExt, Restart, Retry, Shrink};
use std::time::Duration;

/// Silence after which the detectors of a drawn set report a rank.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(6);
/// Time for which a world may be smaller before its ranks are added again.
const GROW_AFTER: Duration = Duration::from_secs(15);
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Number of restarts within `STORM_WINDOW` that counts as a storm. It is high, because simulated jobs have more faults
/// in ten minutes than real ones in a month.
const STORM: u32 = 100;
const STORM_WINDOW: Duration = Duration::from_secs(600);

/// The strategy that replaces lost ranks only.
pub(super) const REPLACE: Name = Name::new("sim.replace");
/// The built-in strategy that nearly always helps.
pub(super) const RESTART: Name = Name::new("restart");
/// The metric at which the saboteur panics.
pub(super) const POISON: &str = "sim.poison";
/// The metric of a busy rank: its heartbeats are missing from now on, which a detector without probes cannot know.
pub(super) const BUSY: &str = "sim.busy";
/// The metric of a link: 1 while it is down.
pub(super) const LINK_DOWN: &str = "sim.link_down";

/// Returns the detectors and strategies for the simulated job of a seed: built-in ones, and some that exist only in
/// the simulation. They fit the default [`SimConfig`](super::SimConfig).
#[must_use]
pub fn drawn(seed: u64) -> Plugins {
    let mut dice = Dice::new(seed ^ 0x706c_7567_696e_7321); // other draws than those of the world
    let mut plugins = Plugins {
        detectors: vec![
            ExitDetector::default().boxed(),
            FailedStepDetector::new().boxed(),
            ProgramErrorDetector::default().boxed(),
            SilenceDetector::after(SILENT_AFTER).boxed(),
            StallDetector::after(STALLED_AFTER).boxed(),
            RestartStormDetector::more_than(STORM, STORM_WINDOW).boxed(),
        ],
        strategies: Vec::new(),
    };
    detectors::draw(&mut dice, &mut plugins.detectors);
    if dice.chance(850) {
        plugins.strategies.push(Retry::new().boxed());
    }
    let may_shrink = dice.chance(500);
    let replaces = if may_shrink { 500 } else { 750 };
    if dice.chance(replaces) {
        plugins.strategies.push(Recover::in_place().boxed());
    }
    if dice.chance(replaces) {
        plugins.strategies.push(Recover::elsewhere().boxed());
    }
    if may_shrink {
        plugins.detectors.push(ShrunkDetector::after(GROW_AFTER).boxed());
        plugins.strategies.extend([Shrink::new().before_restart().boxed(), Grow::new().boxed()]);
    }
    strategies::draw(&mut dice, &mut plugins.strategies);
    plugins.strategies.push(Restart::default().boxed());
    if dice.chance(700) {
        plugins.strategies.push(ExitStrategy::new().boxed());
    }
    plugins
}

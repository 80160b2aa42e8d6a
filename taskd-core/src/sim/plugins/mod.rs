//! Plugins of the simulation's own: one for each kind of behaviour that a kernel has to cope with.
//!
//! Some are what a team might write, some exist to be nasty. Which of them a job has is drawn from its seed.

mod detectors;
mod saboteur;
mod stopgap;
mod strategies;

pub(super) use saboteur::Saboteur;

use super::dice::Dice;
use crate::job::Name;
use crate::kernel::Plugins;

/// The strategy that replaces lost ranks only.
pub(super) const REPLACE: Name = Name::new("sim.replace");
/// The metric at which the saboteur panics.
pub(super) const POISON: &str = "sim.poison";
/// The metric of a link: 1 while it is down.
pub(super) const LINK_DOWN: &str = "sim.link_down";

/// The plugins of a seed.
#[must_use]
pub fn drawn(seed: u64) -> Plugins {
    let mut dice = Dice::new(seed ^ 0x7069_7567_696e_7321);
    let mut plugins = Plugins::default();
    plugins.detectors.extend(stopgap::detectors());
    detectors::draw(&mut dice, &mut plugins.detectors);
    strategies::draw(&mut dice, &mut plugins.strategies);
    plugins.strategies.push(Box::new(stopgap::Restart));
    if dice.chance(700) {
        plugins.strategies.push(Box::new(stopgap::GiveUp));
    }
    plugins
}

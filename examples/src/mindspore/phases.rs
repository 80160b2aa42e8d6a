//! The phases of a recovery: the time until the new processes start, and the time that the framework itself takes.

use crate::samples::Samples;
use serde::{Deserialize, Serialize};

/// The times of rank 0's start, in seconds since 1970, as the script prints them with its first step.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Start {
    /// When the process was started.
    pub begun: f64,
    /// When MindSpore was imported.
    pub imported: f64,
    /// When the group was initialised.
    pub joined: f64,
    /// When model, optimizer and checkpoint were loaded.
    pub built: f64,
}

/// The time from a fault to the first new step, by phase, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Phases {
    /// From the fault until the new rank 0 was started: detection, decision, stop, start.
    pub restart: f64,
    /// Start of the interpreter, and import of MindSpore.
    pub import: f64,
    /// Initialisation of the group.
    pub group: f64,
    /// Building of model and optimizer, and loading of the checkpoint.
    pub build: f64,
    /// The first step.
    pub first_step: f64,
}

impl Phases {
    /// Returns the phases from a fault, in seconds since 1970, to the end of the first step after a start.
    #[must_use]
    pub fn between(fault: f64, start: &Start, first_step: f64) -> Phases {
        let millis = |from: f64, to: f64| ((to - from) * 1e4).round() / 10.0;
        Phases {
            restart: millis(fault, start.begun),
            import: millis(start.begun, start.imported),
            group: millis(start.imported, start.joined),
            build: millis(start.joined, start.built),
            first_step: millis(start.built, first_step),
        }
    }

    /// Returns the median of each phase; `None` for no recoveries.
    #[must_use]
    pub fn median(of: impl Iterator<Item = Phases> + Clone) -> Option<Phases> {
        let median = |phase: fn(Phases) -> f64| of.clone().map(phase).collect::<Samples>().median();
        of.clone().next().map(|_| Phases {
            restart: median(|p| p.restart),
            import: median(|p| p.import),
            group: median(|p| p.group),
            build: median(|p| p.build),
            first_step: median(|p| p.first_step),
        })
    }

    /// Returns the time that the framework itself takes, in milliseconds: all phases but the restart.
    #[must_use]
    pub fn floor(&self) -> f64 {
        self.import + self.group + self.build + self.first_step
    }

    /// Returns the sum of all phases, in milliseconds.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.restart + self.floor()
    }
}

/// One fault and its recovery.
#[derive(Clone, Debug, Serialize)]
pub struct Recovery {
    /// The fault and its target: `SIGKILL to rank 1`.
    pub fault: String,
    /// True if it occurred before that generation had completed a step.
    pub in_start: bool,
    /// The time to the first step of a later generation, by phase.
    #[serde(rename = "phases_ms")]
    pub phases: Phases,
    /// The sum, in milliseconds.
    pub total_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up() {
        let start = Start { begun: 10.5, imported: 12.0, joined: 14.0, built: 14.25 };
        let phases = Phases::between(10.0, &start, 15.0);
        let expected = Phases { restart: 500.0, import: 1500.0, group: 2000.0, build: 250.0, first_step: 750.0 };
        assert_eq!(phases, expected);
        assert!((phases.total() - 5000.0).abs() < 1e-9 && (phases.floor() - 4500.0).abs() < 1e-9);
    }
}

//! What a recovery's time goes into: until the new processes are there, and what the framework then takes for itself.

use crate::samples::Samples;
use serde::{Deserialize, Serialize};

/// How rank 0 came up, in seconds since 1970, as the script prints with its first step.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Start {
    /// The process was started.
    pub begun: f64,
    /// MindSpore was imported.
    pub imported: f64,
    /// The group was there.
    pub joined: f64,
    /// Model, optimizer and checkpoint were loaded.
    pub built: f64,
}

/// Where the time from a fault to the first new step went, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Phases {
    /// From the fault until the new rank 0 was started: noticed, decided, stopped, started.
    pub restart: f64,
    /// Interpreter, and import of MindSpore.
    pub import: f64,
    /// Until the group was there.
    pub group: f64,
    /// Model, optimizer, checkpoint.
    pub build: f64,
    /// The first step.
    pub first_step: f64,
}

impl Phases {
    /// From a fault, in seconds since 1970, over a start to the end of its first step.
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

    /// The median of each phase; `None` of none.
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

    /// What the framework takes for itself, in milliseconds: everything but the restart.
    #[must_use]
    pub fn floor(&self) -> f64 {
        self.import + self.group + self.build + self.first_step
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.restart + self.floor()
    }
}

/// One fault, and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Recovery {
    /// What was done to which process: `SIGKILL to rank 1`.
    pub fault: String,
    /// Whether it struck before the job had stepped in that world.
    pub in_start: bool,
    /// From there to the first step in a later world.
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

//! What a user chooses about simulated jobs; everything else is drawn from the seed.

use crate::kernel::Checks;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The frame of a simulated job.
///
/// The default is the full size: 8 to 512 ranks, at least 1,000 steps of each, five to nine faults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimConfig {
    /// How many ranks; drawn so that small jobs are as likely as large ones.
    pub ranks: RangeInclusive<u32>,
    /// Steps that every rank takes at least. What may end a job early (an operator, a broken program, a spent budget)
    /// comes only after these.
    pub steps_min: u64,
    /// How many faults are planned before the last step; most bring others with them, and up to three orders of operators
    /// come on top.
    pub faults: RangeInclusive<u32>,
    /// In how many of a thousand jobs something happens after `steps_min` that rightly ends the job.
    pub ended_permille: u32,
    /// How many of a thousand jobs are run by something else and only observed ([`Mode::Observe`](crate::job::Mode)).
    pub observed_permille: u32,
    /// The shortest time after which one of the detectors calls a rank silent. A healthy rank's heartbeats are never
    /// kept from the kernel for longer than this.
    pub silence_within: Duration,
    /// How long the job may take to decide about a fault, its supervisor's absence not counted.
    pub answer_within: Duration,
    /// How long a job without chaos may go without a step and without an end.
    pub finish_within: Duration,
    /// Which of the kernel's checks are in force.
    pub checks: Checks,
    /// Compare our account of drops with the kernel's after every step, to find the step at which they part.
    pub(super) drops_at_once: bool,
}

impl Default for SimConfig {
    fn default() -> SimConfig {
        SimConfig {
            ranks: 8..=512,
            steps_min: 1_000,
            faults: 5..=9,
            ended_permille: 150,
            observed_permille: 125,
            silence_within: super::plugins::SILENT_AFTER,
            answer_within: Duration::from_secs(300),
            finish_within: Duration::from_secs(900),
            checks: Checks::default(),
            drops_at_once: false,
        }
    }
}

impl SimConfig {
    /// Sets how many ranks a job has.
    #[must_use]
    pub fn with_ranks(mut self, ranks: RangeInclusive<u32>) -> SimConfig {
        self.ranks = ranks;
        self
    }

    /// Sets how many steps every rank takes at least.
    #[must_use]
    pub fn with_steps_min(mut self, steps: u64) -> SimConfig {
        self.steps_min = steps;
        self
    }

    /// Sets how many faults are planned.
    #[must_use]
    pub fn with_faults(mut self, faults: RangeInclusive<u32>) -> SimConfig {
        self.faults = faults;
        self
    }

    /// Sets the shortest bound after which one of the detectors calls a rank silent.
    #[must_use]
    pub fn with_silence_within(mut self, within: Duration) -> SimConfig {
        self.silence_within = within;
        self
    }

    /// Sets how many of a thousand jobs are only observed.
    #[must_use]
    pub fn with_observed_permille(mut self, permille: u32) -> SimConfig {
        self.observed_permille = permille;
        self
    }

    /// Takes checks of the kernel out, to see what they are for.
    #[must_use]
    pub fn with_checks(mut self, checks: Checks) -> SimConfig {
        self.checks = checks;
        self
    }
}

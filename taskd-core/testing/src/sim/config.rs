//! The user's settings for simulated jobs; everything else is drawn from the seed.

use crate::kernel::Checks;
use crate::state::HostHistory;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The settings of simulated jobs.
///
/// The default simulates jobs of the full size: 8 to 512 ranks, at least 1,000 steps per rank, and five to nine
/// faults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimConfig {
    /// Range from which the number of ranks of a simulated job is drawn. The draw is uniform in the logarithm, so that
    /// small jobs are as likely as large ones.
    pub ranks: RangeInclusive<u32>,
    /// Minimum number of training steps of every rank. Events that may end a job early (an operator's order, a broken
    /// program, a spent recovery budget) come only after these steps.
    pub steps_min: u64,
    /// Range from which the number of planned faults is drawn. They are planned before the last step. Most of them
    /// cause further faults, and up to three operators' orders are added.
    pub faults: RangeInclusive<u32>,
    /// Share of jobs, in thousandths, in which a fault that must end the job is injected after `steps_min`.
    pub ended_permille: u32,
    /// Share of jobs, in thousandths, that another system runs and taskd only observes
    /// ([`Mode::DryRun`](crate::job::Mode)).
    pub observed_permille: u32,
    /// Silence limit: the shortest time without a heartbeat after which a detector reports a rank. The simulation never
    /// delays a healthy rank's heartbeats for longer than this.
    pub silence_within: Duration,
    /// Maximum time from the injection of a fault to a decision about it, not counting the time in which the supervisor
    /// is absent.
    pub answer_within: Duration,
    /// Maximum time that a job may need for its next step or its end once no further faults are injected.
    pub finish_within: Duration,
    /// Safety checks of the decision kernel that are enabled: all by default. A test can disable a check to show what
    /// happens without it.
    pub checks: Checks,
    /// History of hosts that the job is given, if any. The job's hosts are named `host-0`, `host-1` and so on.
    pub host_history: Option<HostHistory>,
    /// Compares the audit's count of drops with the kernel's after every step, to find the step at which they begin to
    /// differ.
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
            host_history: None,
            drops_at_once: false,
        }
    }
}

impl SimConfig {
    /// Sets the range from which the number of ranks is drawn.
    #[must_use]
    pub fn with_ranks(mut self, ranks: RangeInclusive<u32>) -> SimConfig {
        self.ranks = ranks;
        self
    }

    /// Sets the minimum number of steps of every rank.
    #[must_use]
    pub fn with_steps_min(mut self, steps: u64) -> SimConfig {
        self.steps_min = steps;
        self
    }

    /// Sets the range of the number of planned faults.
    #[must_use]
    pub fn with_faults(mut self, faults: RangeInclusive<u32>) -> SimConfig {
        self.faults = faults;
        self
    }

    /// Sets the silence limit: the shortest time without a heartbeat after which a detector reports a rank.
    #[must_use]
    pub fn with_silence_within(mut self, within: Duration) -> SimConfig {
        self.silence_within = within;
        self
    }

    /// Sets the share of jobs, in thousandths, that another system runs and taskd only observes.
    #[must_use]
    pub fn with_observed_permille(mut self, permille: u32) -> SimConfig {
        self.observed_permille = permille;
        self
    }

    /// Gives the jobs a history of hosts, so that placement prefers hosts with fewer incidents, and incidents of the job
    /// are recorded.
    #[must_use]
    pub fn with_host_history(mut self, history: HostHistory) -> SimConfig {
        self.host_history = Some(history);
        self
    }

    /// Sets the safety checks of the decision kernel that are enabled. Disable a check to see what happens without it.
    #[must_use]
    pub fn with_checks(mut self, checks: Checks) -> SimConfig {
        self.checks = checks;
        self
    }
}

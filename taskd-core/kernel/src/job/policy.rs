//! The policy of a job: what the runtime may do to keep the job training, and its time limits.
//!
//! This module only defines the settings; strategies and the kernel act within them.

use super::seconds::Seconds;
use super::{ConfigProblems, InMemoryCheckpoints, Name, Ready};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum number of reasons of permissions.
const REASONS_MAX: usize = 256;
/// Maximum size, in bytes, of one text in [`Policy::reasons`]. A job with a longer text is invalid
/// ([`JobSpec::problems`](super::JobSpec::problems)).
pub const REASON_BYTES_MAX: usize = 1024;

/// Permission of a recovery strategy: automatic, never, or with an operator's approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Permission {
    /// The kernel carries out a proposal of the strategy as soon as it has chosen the proposal.
    Auto,
    /// The kernel does not ask the strategy for a proposal. Each decision lists the strategy as refused, with the text
    /// from [`Policy::reasons`] if there is one.
    Never,
    /// If the kernel chooses a proposal of the strategy, the recovery waits until an operator approves it. If the
    /// operator declines it, the kernel decides again without this strategy.
    Ask,
}

/// Selects if the runtime carries out its decisions, or only reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The runtime starts the job and recovers it.
    #[default]
    #[serde(alias = "act")]
    Enforce,
    /// The runtime watches a job that another system runs: it makes, reports and logs every decision, and carries out
    /// none. It never starts or stops a process.
    #[serde(alias = "observe")]
    DryRun,
}

/// Limit on the number of hosts that may be removed from the job within a time window without an operator's approval. A
/// runtime that finds faults on many hosts at once is likely to be wrong itself. A recovery that would exceed the limit
/// waits until an operator approves it. Hosts that an operator drains count too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RemovalCap {
    /// Maximum number of hosts that may be removed within the last `within` before a recovery needs an operator's
    /// approval.
    pub nodes_max: u32,
    /// Length of the time window, which ends now, in which removed hosts are counted.
    #[serde(with = "Seconds")]
    pub within: Duration,
}

impl Default for RemovalCap {
    /// Returns the default limit: two hosts per hour.
    fn default() -> RemovalCap {
        RemovalCap { nodes_max: 2, within: Duration::from_secs(3600) }
    }
}

/// The recovery budget of a job: the number of recoveries that the kernel may still begin. Each counted recovery
/// withdraws one, and healthy training adds one from time to time. While the budget is empty, the kernel refuses all
/// proposals that would draw on it.
///
/// A plain limit on restarts penalises long jobs: ten faults in a month are normal, ten in an hour are a defect. (The
/// idea is that of tower's retry budget.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSpec {
    /// Number of recoveries in the budget when the job starts, and the maximum to which the budget is refilled.
    /// Default: 10.
    pub recoveries_max: u32,
    /// Time of healthy training (no incident is open) after which one recovery is added to the budget, up to
    /// `recoveries_max`. Default: one hour.
    #[serde(with = "Seconds")]
    pub refill_every: Duration,
}

impl BudgetSpec {
    /// A refill period longer than any job: a century.
    const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

    /// Returns a budget of a fixed number of recoveries without refill, however long the job trains: a plain limit on
    /// restarts.
    #[must_use]
    pub const fn fixed(recoveries_max: u32) -> BudgetSpec {
        BudgetSpec { recoveries_max, refill_every: BudgetSpec::NEVER }
    }

    /// Returns true if healthy training ever refills the budget.
    #[must_use]
    pub fn refills(&self) -> bool {
        self.refill_every < BudgetSpec::NEVER
    }
}

impl Default for BudgetSpec {
    /// Returns the default budget: ten recoveries, one restored for each hour of healthy training.
    fn default() -> BudgetSpec {
        BudgetSpec { recoveries_max: 10, refill_every: Duration::from_secs(3600) }
    }
}

/// Policy of a job: which recoveries the runtime may carry out, and which limits and time limits apply to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Policy {
    /// Permissions of recovery strategies, by name. A strategy that is not in the map has `default_permission`.
    pub strategies: BTreeMap<Name, Permission>,
    /// Permission of strategies that `strategies` does not name.
    pub default_permission: Permission,
    /// Correlation window: faults within this time of the first one belong to the same incident, because ranks that
    /// fail from one cause do not fail at the same instant. Default: 20 ms. The window is skipped for killed ranks if
    /// all other ranks are in step loops in which a recovery can keep their processes.
    #[serde(with = "Seconds")]
    #[serde(alias = "correlate")]
    pub correlation_window: Duration,
    /// The recovery budget: how many recoveries the runtime may begin, and how fast that number is restored.
    pub budget: BudgetSpec,
    /// Maximum number of failures of one strategy within one incident. After that many, the kernel does not ask the
    /// strategy again, and chooses among the proposals of the others. Default: 2.
    #[serde(alias = "tries_max")]
    pub max_attempts: u32,
    /// Time between SIGTERM and SIGKILL when a process is stopped. Default: 10 s.
    #[serde(with = "Seconds")]
    #[serde(alias = "stop_grace")]
    pub termination_grace_period: Duration,
    /// Condition that a newly started rank must meet before its start is complete. With [`Ready::Training`], the
    /// default, and with [`Ready::Stepping`] an incident stays open until the job trains again.
    pub ready: Ready,
    /// Time limit within which a newly started rank must meet the condition in `ready`. If the rank does not, its start
    /// has failed, except that a running rank counts as started with [`Ready::Training`]. Default: 600 s.
    #[serde(with = "Seconds")]
    #[serde(alias = "start_within")]
    pub start_timeout: Duration,
    /// Minimum length of a gap in the supervisor's own execution that counts as its suspension: deadlines for missing
    /// signals start again after the gap, and no rank is blamed for the gap. Default: 1 s.
    #[serde(with = "Seconds")]
    #[serde(alias = "slept_over")]
    pub suspend_threshold: Duration,
    /// Exit code with which a rank requests not to be restarted: the job stops with a report. The default is 64, the
    /// first code of BSD's `sysexits.h` (`EX_USAGE`), which no signal, shell or framework uses for anything else.
    #[serde(alias = "do_not_restart_code")]
    pub no_restart_exit_code: i32,
    /// Selects if the runtime carries out its decisions, or only reports them.
    #[serde(default)]
    pub mode: Mode,
    /// Limit on the number of hosts that may be removed from the job within a time window without an operator's
    /// approval.
    #[serde(default)]
    pub node_removals: RemovalCap,
    /// Directory in which ranks save a checkpoint when one of them is lost and the others cannot continue, or when an
    /// operator requests one. It must belong to this job alone and be visible on all hosts. The program has to load the
    /// checkpoint when it starts (in Python `taskd.load_checkpoint`); ranks find the path in `TASKD_CHECKPOINT_DIR`.
    /// `None`: no checkpoint is saved.
    #[serde(default)]
    #[serde(alias = "dump_dir")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Configuration of in-memory checkpoints: copies of each rank's state in host memory, from which the job continues
    /// if no newer state or checkpoint is left. `None`: no copies are made.
    #[serde(default)]
    #[serde(alias = "memory")]
    pub in_memory_checkpoints: Option<InMemoryCheckpoints>,
    /// Minimum number of ranks with which the job may continue when some are lost and cannot be placed again
    /// ([`Shrink`](crate::recover::Shrink)). Fewer ranks change the training result, so the job has to allow them
    /// explicitly. 0, the default, means all ranks: the job never continues with fewer. In a job document, 1 means one
    /// rank, as in all earlier versions of the format.
    #[serde(alias = "ranks_min")]
    pub min_ranks: u32,
    /// Number of ranks with which the job starts; the others are absent until hosts have room for them
    /// ([`Grow`](crate::recover::Grow)). 0, the default, means all ranks.
    #[serde(default)]
    pub start_ranks: u32,
    /// The job trains with a multiple of this number of ranks, unless all of its ranks train: for example the ranks of
    /// one model replica, or of the hosts that are added and removed together. 0 and 1 allow every number. Default: 0.
    #[serde(default)]
    pub rank_unit: u32,
    /// Reasons for the permissions, by strategy name, for people, at most 256 of [`REASON_BYTES_MAX`] bytes each. They
    /// appear in the line that the runtime logs when it starts, and in each decision that could not use the strategy.
    /// The runtime makes no decision based on them.
    #[serde(default)]
    pub reasons: BTreeMap<Name, String>,
}

impl Policy {
    /// Returns the permission of a strategy: its own in `strategies`, or `default_permission`.
    #[must_use]
    pub fn permission(&self, strategy: &Name) -> Permission {
        self.strategies.get(strategy).copied().unwrap_or(self.default_permission)
    }

    /// Returns the minimum number of ranks for a job of `ranks` ranks: `min_ranks`, or all of them if that is 0.
    #[must_use]
    pub const fn min_ranks_of(&self, ranks: u32) -> u32 {
        match self.min_ranks {
            0 => ranks,
            least => least,
        }
    }

    /// Returns the number of ranks with which a job of `ranks` ranks starts: `start_ranks`, or all of them if that is 0.
    #[must_use]
    pub const fn start_ranks_of(&self, ranks: u32) -> u32 {
        match self.start_ranks {
            0 => ranks,
            first => first,
        }
    }

    /// Returns by how many ranks `ranks` ranks exceed the largest number with which the job may train: the remainder by
    /// `rank_unit`.
    pub(crate) const fn beyond_unit(&self, ranks: usize) -> usize {
        match self.rank_unit {
            0 => 0,
            unit => ranks % unit as usize,
        }
    }

    /// Adds to `problems` each setting of the policy that is invalid for a job of `ranks` ranks.
    #[doc(hidden)]
    pub fn check(&self, ranks: u32, problems: &mut ConfigProblems) {
        problems.check(self.max_attempts > 0, "policy.max_attempts", "must be at least 1");
        problems.check(!self.start_timeout.is_zero(), "policy.start_timeout", "must be longer than zero");
        problems.check(!self.budget.refill_every.is_zero(), "policy.budget.refill_every", "must be longer than zero");
        problems.check(!self.node_removals.within.is_zero(), "policy.node_removals.within", "must be longer than zero");
        problems.check(
            self.checkpoint_dir.as_ref().is_none_or(|dir| dir.is_absolute() && dir.to_str().is_some()),
            "policy.checkpoint_dir",
            "must be an absolute path in UTF-8",
        );
        problems.check(
            self.min_ranks <= ranks.max(1),
            "policy.min_ranks",
            "must be 1 to the number of ranks, or 0 for all of them",
        );
        problems.check(
            self.start_ranks == 0 || (self.min_ranks_of(ranks)..=ranks).contains(&self.start_ranks),
            "policy.start_ranks",
            "must be policy.min_ranks to the number of ranks, or 0 for all of them",
        );
        problems.check(
            (1..=255).contains(&self.no_restart_exit_code),
            "policy.no_restart_exit_code",
            "must be 1 to 255 (0 means success)",
        );
        let reasons = &self.reasons;
        problems.check(
            reasons.len() <= REASONS_MAX && reasons.values().all(|text| text.len() <= REASON_BYTES_MAX),
            "policy.reasons",
            "must be at most 256, of 1024 bytes each",
        );
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            strategies: BTreeMap::new(),
            default_permission: Permission::Auto,
            correlation_window: Duration::from_millis(20),
            budget: BudgetSpec::default(),
            max_attempts: 2,
            termination_grace_period: Duration::from_secs(10),
            ready: Ready::Training,
            start_timeout: Duration::from_secs(600),
            suspend_threshold: Duration::from_secs(1),
            no_restart_exit_code: 64,
            mode: Mode::Enforce,
            node_removals: RemovalCap::default(),
            checkpoint_dir: None,
            in_memory_checkpoints: None,
            min_ranks: 0,
            start_ranks: 0,
            rank_unit: 0,
            reasons: BTreeMap::new(),
        }
    }
}

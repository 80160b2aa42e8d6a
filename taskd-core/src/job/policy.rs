//! What the runtime may do to keep a job training, and how long it waits for what.
//!
//! It decides and carries out nothing: strategies and the kernel do, within what it allows.

use super::seconds::Seconds;
use super::{ConfigProblems, MemoryCheckpoints, Name, Ready};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Most reasons of permissions.
const REASONS_MAX: usize = 256;
/// Most bytes of the reason of one permission.
pub const REASON_BYTES_MAX: usize = 1024;

/// What a strategy may do by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Permission {
    /// It is carried out when chosen.
    Auto,
    /// It is never chosen; the reason stands in the decision.
    Never,
    /// When chosen it is held until an operator approves it; declined, the next one is taken.
    Ask,
}

/// Whether the runtime acts, or only says what it would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It starts the job, and recovers it.
    #[default]
    Act,
    /// It watches a job that something else runs: every decision is made, told and logged, and none is carried out. No
    /// process is ever started or stopped.
    Observe,
}

/// A cap on how many hosts recoveries may take out of the job in a time: what finds fault with many hosts at once is more
/// likely wrong itself. Beyond it a recovery is held until an operator approves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RemovalCap {
    /// Most hosts.
    pub nodes_max: u32,
    /// In this time.
    #[serde(with = "Seconds")]
    pub within: Duration,
}

impl Default for RemovalCap {
    /// Two hosts an hour.
    fn default() -> RemovalCap {
        RemovalCap { nodes_max: 2, within: Duration::from_secs(3600) }
    }
}

/// The recovery budget: recoveries withdraw, healthy progress deposits.
///
/// A plain limit on restarts punishes a job for its age: ten faults in a month are life, ten in an hour are a defect.
/// (The idea is that of tower's retry budget.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSpec {
    /// What the budget starts with and never exceeds; each counted recovery takes one.
    pub recoveries_max: u32,
    /// Healthy training time that gives one back.
    #[serde(with = "Seconds")]
    pub refill_every: Duration,
}

impl BudgetSpec {
    /// A refill that no job lives to see: a century.
    const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

    /// As many recoveries and no more, however long the job trains: for those who count restarts so.
    #[must_use]
    pub const fn fixed(recoveries_max: u32) -> BudgetSpec {
        BudgetSpec { recoveries_max, refill_every: BudgetSpec::NEVER }
    }

    /// Whether what was taken comes back some day.
    #[must_use]
    pub fn refills(&self) -> bool {
        self.refill_every < BudgetSpec::NEVER
    }
}

impl Default for BudgetSpec {
    /// Ten recoveries, one back for each hour of healthy training.
    fn default() -> BudgetSpec {
        BudgetSpec { recoveries_max: 10, refill_every: Duration::from_secs(3600) }
    }
}

/// What the runtime may do, and how long it waits for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Policy {
    /// Permissions by strategy name; a strategy that is not named here has `default_permission`.
    pub strategies: BTreeMap<Name, Permission>,
    /// For strategies that `strategies` does not name.
    pub default_permission: Permission,
    /// Faults that come within this time of the first belong to one incident: ranks that die of one cause do not die at
    /// one instant. A rank that was killed is not waited with if all others are in step loops that keep their processes.
    #[serde(with = "Seconds")]
    pub correlate: Duration,
    /// The recovery budget.
    pub budget: BudgetSpec,
    /// How often one strategy may fail within one incident before the next dearer one is taken.
    pub tries_max: u32,
    /// Grace between SIGTERM and SIGKILL when a process is stopped.
    #[serde(with = "Seconds")]
    pub stop_grace: Duration,
    /// When a started rank counts as started. With [`Ready::Training`], the default, and [`Ready::Stepping`] an incident stays open
    /// until the job trains again.
    pub ready: Ready,
    /// How long a started rank may take until it is `ready`.
    #[serde(with = "Seconds")]
    pub start_within: Duration,
    /// A gap in the supervisor's own running that is longer than this is its own sleep: silence deadlines are armed
    /// anew after it, and nobody is blamed for it.
    #[serde(with = "Seconds")]
    pub slept_over: Duration,
    /// A rank that exits with this code asks not to be restarted: the job stops with a report. The default is 64, the
    /// first code of BSD's `sysexits.h` (`EX_USAGE`), which no signal, shell or framework uses for anything else.
    pub do_not_restart_code: i32,
    /// Whether the runtime acts at all.
    #[serde(default)]
    pub mode: Mode,
    /// How many hosts recoveries may take out of the job.
    #[serde(default)]
    pub node_removals: RemovalCap,
    /// Where ranks save a checkpoint when one of them is lost and the others cannot go on, or an operator asks for one: a directory
    /// of this job's alone that all hosts see. For programs that load it when they start (in Python `taskd.load_dump`); ranks find
    /// it in `TASKD_DUMP`. `None`: none is saved.
    #[serde(default)]
    pub dump_dir: Option<PathBuf>,
    /// Whether ranks keep copies of their state in memory, from which the job goes on when nothing newer is left. `None`: they do not.
    #[serde(default)]
    pub memory: Option<MemoryCheckpoints>,
    /// With how few ranks the job may train on when some are lost and cannot be placed again
    /// ([`Shrink`](crate::recover::Shrink)): another number of ranks makes another training, so the job has to ask for it. 0, the
    /// default, means all of them: the world never shrinks. A document that names 1 means 1, as it always did.
    pub ranks_min: u32,
    /// Why a strategy has the permission that it has, by its name, for people: it stands in the line that the runtime starts with,
    /// and in each decision that had to do without the strategy. Nothing is decided by it.
    #[serde(default)]
    pub reasons: BTreeMap<Name, String>,
}

impl Policy {
    /// What a strategy may do by itself.
    #[must_use]
    pub fn permission(&self, strategy: &Name) -> Permission {
        self.strategies.get(strategy).copied().unwrap_or(self.default_permission)
    }

    /// With how few ranks a job of so many may train on: all of them, where the policy does not say.
    #[must_use]
    pub const fn ranks_at_least(&self, ranks: u32) -> u32 {
        match self.ranks_min {
            0 => ranks,
            least => least,
        }
    }

    /// Notes what is not sound in a job of so many ranks.
    pub(super) fn check(&self, ranks: u32, problems: &mut ConfigProblems) {
        problems.check(self.tries_max > 0, "policy.tries_max", "must be at least 1");
        problems.check(!self.start_within.is_zero(), "policy.start_within", "must be longer than zero");
        problems.check(!self.budget.refill_every.is_zero(), "policy.budget.refill_every", "must be longer than zero");
        problems.check(!self.node_removals.within.is_zero(), "policy.node_removals.within", "must be longer than zero");
        problems.check(
            self.dump_dir.as_ref().is_none_or(|dir| dir.is_absolute() && dir.to_str().is_some()),
            "policy.dump_dir",
            "must be an absolute path in UTF-8",
        );
        problems.check(
            self.ranks_min <= ranks.max(1),
            "policy.ranks_min",
            "must be 1 to the number of ranks, or 0 for all of them",
        );
        problems.check(
            (1..=255).contains(&self.do_not_restart_code),
            "policy.do_not_restart_code",
            "must be 1 to 255 (0 means success)",
        );
        let reasons = &self.reasons;
        problems.check(
            reasons.len() <= REASONS_MAX && reasons.values().all(|text| text.len() <= REASON_BYTES_MAX),
            "policy.reasons",
            "must be 256 at most, of 1024 bytes each",
        );
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            strategies: BTreeMap::new(),
            default_permission: Permission::Auto,
            correlate: Duration::from_millis(20),
            budget: BudgetSpec::default(),
            tries_max: 2,
            stop_grace: Duration::from_secs(10),
            ready: Ready::Training,
            start_within: Duration::from_secs(600),
            slept_over: Duration::from_secs(1),
            do_not_restart_code: 64,
            mode: Mode::Act,
            node_removals: RemovalCap::default(),
            dump_dir: None,
            memory: None,
            ranks_min: 0,
            reasons: BTreeMap::new(),
        }
    }
}

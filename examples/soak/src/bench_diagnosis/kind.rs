//! The kinds of faults and layouts, and the verdict that each must lead to.
//!
//! How a fault is injected is in `inject`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use taskd_core::job::{GroupId, GroupKind, Rank};

/// What is injected into a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing.
    Clean,
    /// Busy loops in the container of one rank take most of its CPU time.
    BusyLoop,
    /// The container of one rank has its CPU time reduced.
    Throttled,
    /// One rank is held up a third of the time: it takes 50 % longer.
    Slow50,
    /// One rank is held up a sixth of the time: it takes 20 % longer.
    Slow20,
    /// The storage from which one rank reads its batches is slow.
    SlowInput,
    /// The storage to which one rank writes its checkpoints is slow.
    SlowCheckpoint,
    /// The connections between two ranks have a narrow bandwidth.
    SlowLink,
    /// One rank is stopped.
    Frozen,
    /// One rank leaves a collective out. Only its program can do that.
    Skip,
    /// One rank reduces more elements than the others. Only its program can do that.
    Size,
    /// The script becomes 50 % slower on all ranks. No rank is at fault.
    Slower,
}

impl Kind {
    /// Returns the correct cause: the name in a fault's evidence; `none` if nothing may be blamed.
    #[must_use]
    pub const fn cause(self) -> &'static str {
        match self {
            Kind::Clean | Kind::Slower => "none",
            Kind::BusyLoop | Kind::Throttled | Kind::Slow50 | Kind::Slow20 => "slow-rank",
            Kind::SlowInput => "slow-input",
            Kind::SlowCheckpoint => "slow-checkpoint",
            Kind::SlowLink => "slow-link",
            Kind::Frozen => "frozen",
            Kind::Skip => "skipped",
            Kind::Size => "mismatched",
        }
    }

    /// Returns true if one rank is at fault.
    #[must_use]
    pub const fn has_victim(self) -> bool {
        !matches!(self, Kind::Clean | Kind::Slower | Kind::SlowLink)
    }

    /// Returns true if the training stands still.
    #[must_use]
    pub const fn is_hang(self) -> bool {
        matches!(self, Kind::Frozen | Kind::Skip | Kind::Size)
    }

    /// Returns the time in which the verdict must come.
    #[must_use]
    pub const fn within(self, ranks: Ranks) -> Within {
        match self {
            // A pipeline waits for itself in a third of its step: the rank's own computation takes only 20 % longer.
            Kind::Slow50 if ranks.is_pipeline() => Within::Steps(30),
            Kind::Slow50 => Within::Steps(8),
            Kind::Slow20 => Within::Steps(30),
            Kind::Frozen | Kind::Skip | Kind::Size => Within::Milliseconds(2000),
            _ => Within::Any,
        }
    }

    /// Returns the number of steps after the injection in which a verdict is awaited; 0 for a hang.
    #[must_use]
    pub const fn steps_awaited(self) -> u64 {
        match self {
            Kind::Frozen | Kind::Skip | Kind::Size => 0,
            Kind::Clean => 100,
            Kind::Slow20 | Kind::Slower => 60,
            _ => 40,
        }
    }
}

/// The time in which a verdict must come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// Steps from the injection.
    Steps(i64),
    /// Milliseconds from the injection.
    Milliseconds(u32),
    /// No time is required.
    Any,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// The ranks of a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
pub enum Ranks {
    /// Four replicas.
    #[value(name = "4")]
    #[serde(rename = "4")]
    Four,
    /// Eight replicas.
    #[value(name = "8")]
    #[serde(rename = "8")]
    Eight,
    /// Two pipeline stages of two replicas.
    #[value(name = "2x2")]
    #[serde(rename = "2x2")]
    TwoByTwo,
}

impl Ranks {
    /// Returns the number of ranks.
    #[must_use]
    pub const fn count(self) -> u32 {
        if matches!(self, Ranks::Eight) { 8 } else { 4 }
    }

    /// Returns true for pipeline stages.
    #[must_use]
    pub const fn is_pipeline(self) -> bool {
        matches!(self, Ranks::TwoByTwo)
    }

    /// Returns the time of a step on the simulated accelerator, in milliseconds: long enough that the cores of a small
    /// machine are mostly idle.
    #[must_use]
    pub const fn device_ms(self) -> u32 {
        if matches!(self, Ranks::Eight) { 80 } else { 48 }
    }

    /// Returns the two ranks that exchange data in each step, if `victim` is one of them.
    #[must_use]
    pub const fn link(self, victim: u32) -> [u32; 2] {
        match self {
            Ranks::TwoByTwo => [victim % 2, victim % 2 + 2],
            _ => [victim, (victim + 1) % self.count()],
        }
    }

    /// Returns the process groups.
    #[must_use]
    pub fn groups(self) -> BTreeMap<GroupId, Vec<Rank>> {
        let lists: &[(GroupKind, u32, &[u32])] = match self {
            Ranks::Four => &[(GroupKind::Dp, 0, &[0, 1, 2, 3])],
            Ranks::Eight => &[(GroupKind::Dp, 0, &[0, 1, 2, 3, 4, 5, 6, 7])],
            Ranks::TwoByTwo => &[
                (GroupKind::Dp, 0, &[0, 1]),
                (GroupKind::Dp, 1, &[2, 3]),
                (GroupKind::Pp, 0, &[0, 2]),
                (GroupKind::Pp, 1, &[1, 3]),
            ],
        };
        let group = |(kind, index, ranks): &(GroupKind, u32, &[u32])| {
            (GroupId { kind: kind.clone(), index: *index }, ranks.iter().copied().map(Rank).collect())
        };
        lists.iter().map(group).collect()
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

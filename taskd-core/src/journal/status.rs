//! What a journal says of itself: whether it can write, what it counted, and what is missing from it.

use super::queue::Queue;
use super::record::{self, EncodeError, Kind};
use super::{Log, form};
use crate::job::{JobTime, Seq};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// Whether a log is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogHealth {
    /// It is.
    #[default]
    Fine,
    /// It is not. The runtime decides on, new records are lost and counted, and writing is tried again.
    Degraded {
        /// Why, and what would help.
        reason: String,
    },
}

/// The health of a journal's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub(super) logs: [LogHealth; 3],
}

impl Health {
    /// One log's.
    #[must_use]
    pub const fn of(&self, log: Log) -> &LogHealth {
        &self.logs[log as usize]
    }

    /// Why something is not being written; `None` when all is well.
    #[must_use]
    pub fn trouble(&self) -> Option<(Log, &str)> {
        Log::ALL.into_iter().find_map(|log| match self.of(log) {
            LogHealth::Fine => None,
            LogHealth::Degraded { reason } => Some((log, reason.as_str())),
        })
    }
}

/// What a journal counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct JournalCounts {
    /// Records written.
    pub records: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Records lost: at the queue's bound, on a disk that took none, or with a file that somebody removed.
    pub lost: u64,
    /// Those of them that found the queue full.
    pub overflows: u64,
    /// Tries to write that failed.
    pub write_failures: u64,
    /// Files that could not be synced.
    pub sync_failures: u64,
    /// Files that were removed under our hands.
    pub files_removed: u64,
    /// Old files that went because their log had reached its bound.
    pub files_expired: u64,
    /// Commands that left before their record was known to be written.
    pub late: u64,
    /// Snapshots written.
    pub snapshots: u64,
}

/// Health and counts of a [`Journal`](super::Journal). It keeps nothing open, and clones share it.
#[derive(Clone)]
pub struct JournalMonitor(Arc<Queue>);

impl JournalMonitor {
    pub(super) fn of(queue: &Arc<Queue>) -> JournalMonitor {
        JournalMonitor(Arc::clone(queue))
    }

    /// Whether the logs are being written. The receiver sees each change once.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.0.health()
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        self.0.counts()
    }
}

impl fmt::Debug for JournalMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalMonitor").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// What came of a record before its command left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It survives this process.
    Yes,
    /// It is not known to be written within [`write_wait_max`](super::JournalConfig::write_wait_max). Counted.
    Late,
    /// A log is degraded: the record may be lost, which [`JournalCounts::lost`] says.
    Degraded,
}

/// Records that are missing from a log, told by the log itself as soon as it could be written again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Which log.
    pub log: Log,
    /// The first input whose record is missing.
    pub from: Seq,
    /// The last one.
    pub to: Seq,
    /// How many of this log's records were lost.
    pub records: u64,
    /// Why.
    pub reason: String,
}

impl Gap {
    /// Takes another loss in: losses come in the order of inputs, and the first reason is kept.
    pub(super) fn extend(gap: &mut Option<Gap>, log: Log, from: Seq, to: Seq, records: u64, reason: &str) {
        match gap {
            None => *gap = Some(Gap { log, from, to, records, reason: reason.to_owned() }),
            Some(gap) => {
                gap.from = gap.from.min(from);
                gap.to = gap.to.max(to);
                gap.records += records;
            }
        }
    }

    /// Appends its record.
    pub(super) fn encode(&self, out: &mut Vec<u8>, now: JobTime) -> Result<(), EncodeError> {
        record::encode(out, Kind::Gap, self.to, now, |out| form::write_named(out, self))
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gap { log, from, to, records, reason } = self;
        write!(f, "{records} records of {log} between {from} and {to} were lost: {reason}")
    }
}

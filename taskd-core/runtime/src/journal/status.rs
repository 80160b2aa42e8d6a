//! Health and counters of a journal, and gaps in its logs.

use super::queue::Queue;
use super::record::{self, EncodeError, Kind};
use super::{Log, form};
use crate::job::{JobTime, Seq};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// Health of one log of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogHealth {
    /// The log is being written.
    #[default]
    Fine,
    /// The log is not being written. The runtime continues, new records are lost and counted, and writing is retried.
    Degraded {
        /// Reason why the log is not being written, and what to do about it.
        reason: String,
    },
}

/// Health of a journal's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub(super) logs: [LogHealth; 3],
}

impl Health {
    /// Returns the health of one log.
    #[must_use]
    pub const fn of(&self, log: Log) -> &LogHealth {
        &self.logs[log as usize]
    }

    /// Returns the first log that is not being written, with the reason; `None` if all logs are being written.
    #[must_use]
    pub fn trouble(&self) -> Option<(Log, &str)> {
        Log::ALL.into_iter().find_map(|log| match self.of(log) {
            LogHealth::Fine => None,
            LogHealth::Degraded { reason } => Some((log, reason.as_str())),
        })
    }
}

/// Counters of a journal since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct JournalCounts {
    /// Number of records written.
    pub records: u64,
    /// Number of bytes written.
    pub bytes: u64,
    /// Number of records lost, for any reason: the journal's queue was full, the record could not be encoded, the disk
    /// refused the record, or another process removed the record's file.
    pub lost: u64,
    /// Number of records lost because the journal's queue was full.
    pub overflows: u64,
    /// Number of failed attempts to write to a log.
    pub write_failures: u64,
    /// Number of failed attempts to sync a log file to disk.
    pub sync_failures: u64,
    /// Number of files that another process removed while they were being written.
    pub files_removed: u64,
    /// Number of old files, of logs and of snapshots, that the journal removed because the files of their kind had
    /// reached a limit.
    pub files_expired: u64,
    /// Number of the decision kernel's steps whose commands were sent before the journal knew that the step's record
    /// was written.
    pub late: u64,
    /// Number of snapshots of the decision kernel's state written.
    pub snapshots: u64,
}

/// Monitor of a [`Journal`](super::Journal)'s health and counters. The monitor keeps no file of the journal open.
/// Clones monitor the same journal.
#[derive(Clone)]
pub struct JournalMonitor(Arc<Queue>);

impl JournalMonitor {
    pub(super) fn of(queue: &Arc<Queue>) -> JournalMonitor {
        JournalMonitor(Arc::clone(queue))
    }

    /// Returns a receiver of the health of the journal's logs. The receiver is notified when the health changes; of
    /// several changes in quick succession, it sees only the last one.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.0.health()
    }

    /// Returns the journal's counters.
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

/// Result of waiting until the record of a decision kernel's step is written, before the commands of the step are
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The record is written, and survives the end of this process.
    Yes,
    /// The record was not written within [`write_wait_max`](super::JournalConfig::write_wait_max);
    /// `JournalCounts::late` counts this.
    Late,
    /// A log of the journal cannot be written at present, so the record may be lost; [`JournalCounts::lost`] counts
    /// lost records.
    Degraded,
}

/// A range of records that a log has lost. The journal notes the range in the log itself as soon as it can write to
/// the log again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Log from which the records are missing.
    pub log: Log,
    /// Number of the first input whose record is missing.
    pub from: Seq,
    /// Number of the last input whose record is missing.
    pub to: Seq,
    /// Number of this log's records that were lost in the range.
    pub records: u64,
    /// Reason why the first record of the range was lost.
    pub reason: String,
}

impl Gap {
    /// Adds a loss to the gap. Losses come in the order of inputs; the first reason is kept.
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

    /// Appends the gap's record.
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

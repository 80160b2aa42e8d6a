//! Limits of a journal.

use crate::job::{ConfigError, ConfigProblems};
use std::time::Duration;

/// Limits of a [`Journal`](super::Journal). Records that are dropped at a limit are counted in
/// [`JournalCounts`](super::JournalCounts). A [`Gap`](super::Gap) describes them, or they are visible as a removed
/// file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Maximum number of bytes of each log that wait for a slow disk. Beyond it, the newest records are dropped.
    /// Default: 32 MiB.
    pub queue_bytes_max: usize,
    /// Maximum time that [`written`](super::Journal::written) waits; after it, a command is sent before its record is
    /// written. Default: 20 ms.
    pub write_wait_max: Duration,
    /// Longest time between a write and its sync, if the disk keeps up. Default: 500 ms.
    pub sync_every: Duration,
    /// Time between a failed write to one of the journal's log files and the next attempt. Default: 1 s.
    pub retry_every: Duration,
    /// Size in bytes at which the journal begins a new file of the decisions log. A file may be one record larger.
    /// Range: 4096 bytes to 512 MiB. Default: 8 MiB.
    pub decisions_segment_bytes: u64,
    /// Maximum total size of all files of the decisions log, in bytes. Beyond it the oldest file is removed, if no
    /// restart needs it. Default: 1 GiB.
    pub decisions_bytes_max: u64,
    /// Size in bytes at which the journal begins a new file of the observations log. Range: 4096 bytes to 512 MiB.
    /// Default: 32 MiB.
    pub observations_segment_bytes: u64,
    /// Maximum total size of all files of the observations log, in bytes. Beyond it the oldest file is removed.
    /// Default: 2 GiB.
    pub observations_bytes_max: u64,
    /// Maximum total size of all snapshots, in bytes. Beyond it the oldest one is removed, except the last two.
    /// Default: 256 MiB.
    pub snapshots_bytes_max: u64,
    /// Maximum number of files of each log. Beyond it the oldest file is removed, unless a restart needs it. Many short
    /// starts leave many small files. Default: 2000.
    pub files_max: usize,
    /// Number of decision records after which a snapshot of the decision kernel's state is due. A restart has to replay
    /// the inputs since the last snapshot. Default: 10 000.
    pub snapshot_every_decisions: u64,
    /// Number of observations after which a snapshot of the decision kernel's state is due. Default: 250 000.
    pub snapshot_every_observations: u64,
}

impl Default for JournalConfig {
    /// Returns limits for a few GiB of disk, and for restarts that replay at most half a second's worth of inputs.
    fn default() -> JournalConfig {
        JournalConfig {
            queue_bytes_max: 32 << 20,
            write_wait_max: Duration::from_millis(20),
            sync_every: Duration::from_millis(500),
            retry_every: Duration::from_secs(1),
            decisions_segment_bytes: 8 << 20,
            decisions_bytes_max: 1 << 30,
            observations_segment_bytes: 32 << 20,
            observations_bytes_max: 2 << 30,
            snapshots_bytes_max: 256 << 20,
            files_max: 2000,
            snapshot_every_decisions: 10_000,
            snapshot_every_observations: 250_000,
        }
    }
}

impl JournalConfig {
    /// Returns all problems of these limits; empty if the limits are valid.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = ConfigProblems::default();
        let segment_is_sound = |bytes: u64| (4096..=FILE_BYTES_MAX / 2).contains(&bytes);
        let why = "must be 4096 bytes to 512 MiB";
        problems.check(segment_is_sound(self.decisions_segment_bytes), "journal.decisions_segment_bytes", why);
        problems.check(segment_is_sound(self.observations_segment_bytes), "journal.observations_segment_bytes", why);
        problems.check(self.queue_bytes_max > 0, "journal.queue_bytes_max", "must be at least 1");
        problems.check(!self.sync_every.is_zero(), "journal.sync_every", "must be longer than zero");
        problems.check(!self.retry_every.is_zero(), "journal.retry_every", "must be longer than zero");
        problems.check(self.snapshot_every_decisions > 0, "journal.snapshot_every_decisions", "must be at least 1");
        problems.check(
            self.snapshot_every_observations > 0,
            "journal.snapshot_every_observations",
            "must be at least 1",
        );
        problems.all()
    }
}

/// Largest file that is read, in bytes. The journal's own files end long before.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 30;

//! The bounds of a journal.

use crate::job::{ConfigError, ConfigProblems};
use std::time::Duration;

/// Bounds of a [`Journal`](super::Journal). What is dropped at one is counted in
/// [`JournalCounts`](super::JournalCounts) and named by a [`Gap`](super::Gap) or a removed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Bytes of each log that may wait for a slow disk. Beyond it the newest records are dropped.
    pub queue_bytes_max: usize,
    /// How long [`written`](super::Journal::written) waits before a command leaves without its record.
    pub write_wait_max: Duration,
    /// How long what was written may stay unsynced while the disk keeps up.
    pub sync_every: Duration,
    /// How long a log that could not be written is left alone before the next try.
    pub retry_every: Duration,
    /// Size at which a file of decisions is ended and the next begun, in bytes. One record more may stand in it.
    pub decisions_segment_bytes: u64,
    /// All decisions together, in bytes; then the oldest file goes, unless a restart needs it.
    pub decisions_bytes_max: u64,
    /// Size at which a file of observations is ended and the next begun, in bytes.
    pub observations_segment_bytes: u64,
    /// All observations together, in bytes; then the oldest file goes.
    pub observations_bytes_max: u64,
    /// All snapshots together, in bytes; then the oldest goes, but never one of the last two.
    pub snapshots_bytes_max: u64,
    /// Files of each log; then the oldest goes, unless a restart needs it. Small ones come from many short starts.
    pub files_max: usize,
    /// Records of decisions after which a snapshot is due: a restart takes these inputs again.
    pub snapshot_every_decisions: u64,
    /// Observations after which a snapshot is due.
    pub snapshot_every_observations: u64,
}

impl Default for JournalConfig {
    /// Some GiB of disk, and restarts that read at most half a second's worth of inputs.
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
    /// Everything that is wrong with these bounds; empty when they are sound.
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

/// Largest file that is read, in bytes: ours end long before.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 30;

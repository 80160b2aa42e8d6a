//! The writing thread: writes batches to files, and enforces the quota.
//!
//! No error ends the thread, and no other thread waits for it. Records that the disk does not accept are lost; the loss
//! is counted, logged once, and recorded in the file with the next records.

use super::config::StoreConfig;
use super::files::Format;
use super::lane::{Appended, Context, Lane};
use super::queue::{Queue, Waiting};
use super::quota::Quota;
use crate::job::Rank;
use crate::trace::{Origin, RecordBatch};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// Maximum number of ranks that are stored.
const RANKS_MAX: usize = 4096;

/// State of the writing thread.
#[derive(Debug)]
pub(super) struct Writer {
    config: StoreConfig,
    queue: Arc<Queue>,
    quota: Quota,
    lanes: BTreeMap<(Rank, Format), Lane>,
    /// Records dropped at the queue that are not yet recorded in a batch, per rank.
    dropped: BTreeMap<Rank, u64>,
    /// Why records are being lost, or the quota cannot be kept.
    trouble: Option<String>,
}

impl Writer {
    pub(super) fn new(config: StoreConfig, queue: Arc<Queue>) -> Writer {
        let quota = Quota::new(config.bytes_max, config.files_max);
        Writer { config, queue, quota, lanes: BTreeMap::new(), dropped: BTreeMap::new(), trouble: None }
    }

    /// Writes batches until the queue is closed.
    pub(super) fn run(mut self) {
        let _ = std::fs::create_dir_all(&self.config.root); // if this fails, the first write reports the error
        self.quota.scan(&self.config.root);
        let is_partial = self.quota.is_partial;
        self.queue.update(|status| status.is_partial = is_partial);
        while let Some(waiting) = self.queue.take() {
            self.write(waiting);
            self.queue.settle();
        }
        self.queue.end();
    }

    fn write(&mut self, waiting: Waiting) {
        let now = unix_seconds();
        let mut trouble = None;
        for (rank, records) in waiting.dropped {
            let dropped = self.dropped.entry(rank).or_default();
            *dropped = dropped.saturating_add(records);
        }
        for mut batch in merged(waiting.batches, &mut self.dropped) {
            for format in self.config.formats.clone() {
                let failed = self.append(format, &mut batch, now);
                trouble = trouble.or(failed.map(|error| format!("{}{}", self.place(&error), advice(&error))));
            }
        }
        let aged = self.quota.age();
        let stored_bytes = self.quota.bytes();
        self.queue.update(|status| {
            status.stored_bytes = stored_bytes;
            status.deleted_files += aged.files;
            status.deleted_bytes += aged.bytes;
        });
        let undeleted = |error| format!("{}: old files cannot be deleted", self.place(&error));
        self.report(trouble.or_else(|| aged.error.map(undeleted)));
    }

    fn place(&self, error: &io::Error) -> String {
        format!("records cannot be stored in {}: {error}", self.config.root.display())
    }

    /// Appends a batch to its rank's file of one format. Returns the error if that failed.
    fn append(&mut self, format: Format, batch: &mut RecordBatch, now: u64) -> Option<io::Error> {
        let Writer { config, quota, lanes, .. } = self;
        let rank = batch.origin.rank;
        let is_full = lanes.len() >= RANKS_MAX * config.formats.len() && !lanes.contains_key(&(rank, format));
        let appended = if is_full {
            let error = Some(io::Error::other(format!("there are more than {RANKS_MAX} ranks")));
            Appended { lost: batch.records.len() as u64, error, ..Appended::default() }
        } else {
            let dir = || config.root.join(&config.task).join(rank.0.to_string());
            let lane = lanes.entry((rank, format)).or_insert_with(|| Lane::new(format, dir()));
            lane.append(batch, &mut Context { task: &config.task, file_bytes: config.file_bytes, now, quota })
        };
        self.queue.update(|status| {
            let counts = status.counts_mut(format);
            counts.records += appended.records;
            counts.bytes += appended.bytes;
            counts.lost += appended.lost;
            counts.files += u64::from(appended.is_new_file);
            counts.failures += u64::from(appended.error.is_some());
            counts.files_removed += u64::from(appended.was_removed);
        });
        appended.error
    }

    /// Logs a problem when it begins and when it ends, and updates the status.
    fn report(&mut self, trouble: Option<String>) {
        match (&self.trouble, &trouble) {
            (None, Some(reason)) => tracing::warn!("{reason}"),
            (Some(_), None) => tracing::info!("records are stored again in {}", self.config.root.display()),
            _ => {}
        }
        if self.trouble != trouble {
            self.queue.update(|status| {
                status.trouble.clone_from(&trouble);
                status.last_error = trouble.clone().or(status.last_error.take());
            });
            self.trouble = trouble;
        }
    }
}

/// Merges the waiting batches to one per process, and adds the records dropped before to their losses.
fn merged(waiting: Vec<Arc<RecordBatch>>, dropped: &mut BTreeMap<Rank, u64>) -> Vec<RecordBatch> {
    let mut all: Vec<RecordBatch> = Vec::new();
    let mut places: BTreeMap<Origin, usize> = BTreeMap::new();
    for batch in waiting {
        let lost = batch.lost.saturating_add(dropped.remove(&batch.origin.rank).unwrap_or(0));
        match places.get(&batch.origin).and_then(|place| all.get_mut(*place)) {
            Some(one) if batch.names.len() >= one.names.len() => {
                one.names = Arc::clone(&batch.names);
                one.lost = one.lost.saturating_add(lost);
                one.records.extend_from_slice(&batch.records);
            }
            _ => {
                places.insert(batch.origin, all.len());
                all.push(RecordBatch { lost, ..RecordBatch::clone(&batch) });
            }
        }
    }
    all.retain(|batch| !batch.records.is_empty() || batch.lost > 0);
    all
}

/// Returns the remedy for an error, if there is one.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space on this disk",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "; make it writable",
        io::ErrorKind::NotFound => "; create this directory",
        _ => "",
    }
}

/// Reads the wall clock, for file names only.
#[allow(clippy::disallowed_methods)]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::synthetic::SyntheticJob;

    #[test]
    fn waiting_batches_are_merged_per_process_with_dropped_counts() {
        let batches: Vec<_> =
            SyntheticJob::new(2).steps(2).run().map(|batch| RecordBatch { lost: 1, ..batch }).collect();
        let mut dropped = BTreeMap::from([(Rank(1), 10), (Rank(2), 20)]);
        let mut merged = merged(batches.iter().cloned().map(Arc::new).collect(), &mut dropped);
        merged.sort_by_key(|batch| batch.origin);
        assert_eq!(merged.iter().map(|batch| (batch.origin.rank.0, batch.lost)).collect::<Vec<_>>(), [(0, 2), (1, 12)]);
        let of_rank_0 = batches.into_iter().filter(|batch| batch.origin.rank == Rank(0));
        assert!(merged[0].records == of_rank_0.flat_map(|batch| batch.records).collect::<Vec<_>>());
        assert_eq!(dropped, BTreeMap::from([(Rank(2), 20)]), "rank 2 has to wait for its next batch");
    }
}

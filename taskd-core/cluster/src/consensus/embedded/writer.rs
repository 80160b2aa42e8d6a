//! Writes the store of a voter: on one thread, in the order of the jobs.

use super::disk::{self, DiskError};
use super::types::Types;
use openraft::storage::LogFlushed;
use redb::Database;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

pub(super) type Done = oneshot::Sender<Result<(), redb::Error>>;

/// Returns the time that the next write takes.
pub(super) type Takes = Arc<dyn Fn() -> Duration + Send + Sync>;

/// One write.
pub(super) enum Job {
    Append(Vec<(u64, Vec<u8>)>, Option<LogFlushed<Types>>),
    Vote(Vec<u8>, Done),
    Truncate(u64, Done),
    Purge(Vec<u8>, u64, Done),
    Snapshot(Vec<u8>, Done),
    /// Written with the next one: the engine does not need it to be correct.
    Committed(Vec<u8>),
}

/// Starts to write to a database. Returns the queue of the jobs, and what becomes true when the file is closed, after the
/// queue's end. In a simulation a task of this runtime writes, because no thread has the runtime's time.
pub(super) fn start(
    dir: &Path,
    database: Database,
    takes: Option<Takes>,
) -> Result<(UnboundedSender<Job>, watch::Receiver<bool>), DiskError> {
    let (jobs, queue) = unbounded_channel();
    let (closing, closed) = watch::channel(false);
    let writer = Writer { database, committed: None };
    if let Some(takes) = takes {
        tokio::spawn(async move {
            writer.write_slowly(queue, &*takes).await;
            closing.send_replace(true);
        });
        return Ok((jobs, closed));
    }
    let thread = std::thread::Builder::new().name("voter-store".into());
    let work = move || {
        writer.write_all(queue);
        closing.send_replace(true);
    };
    let failed = |source| DiskError::Io { action: "starting the thread of", path: dir.to_owned(), source };
    thread.spawn(work).map_err(failed)?;
    Ok((jobs, closed))
}

/// The database, and what is written with the next job.
struct Writer {
    database: Database,
    committed: Option<Vec<u8>>,
}

impl Writer {
    /// Writes until the store is closed, and closes the file. After an error the engine stops this voter.
    fn write_all(mut self, mut queue: UnboundedReceiver<Job>) {
        while let Some(job) = queue.blocking_recv() {
            self.write(job);
        }
        self.finish();
    }

    async fn write_slowly(mut self, mut queue: UnboundedReceiver<Job>, takes: &(dyn Fn() -> Duration + Send + Sync)) {
        while let Some(job) = queue.recv().await {
            tokio::time::sleep(takes()).await;
            self.write(job);
        }
        self.finish();
    }

    fn write(&mut self, job: Job) {
        let (database, pending) = (&self.database, self.committed.take());
        let (result, done) = match job {
            Job::Committed(bytes) => {
                self.committed = Some(bytes);
                return;
            }
            Job::Append(entries, flushed) => {
                let result = write(database, pending, None, LogChange::Append(&entries));
                if let Some(flushed) = flushed {
                    flushed.log_io_completed(result.map_err(|error| io::Error::other(error.to_string())));
                }
                return;
            }
            Job::Vote(bytes, done) => (write(database, pending, Some(("vote", &bytes)), LogChange::None), done),
            Job::Snapshot(bytes, done) => (write(database, pending, Some(("snapshot", &bytes)), LogChange::None), done),
            Job::Truncate(since, done) => {
                let range = LogChange::Remove(Bound::Included(since), Bound::Unbounded);
                (write(database, pending, None, range), done)
            }
            Job::Purge(bytes, upto, done) => {
                let range = LogChange::Remove(Bound::Unbounded, Bound::Included(upto));
                (write(database, pending, Some(("purged", &bytes)), range), done)
            }
        };
        // The engine no longer waits if it stopped.
        let _ = done.send(result);
    }

    fn finish(self) {
        if self.committed.is_some()
            && let Err(error) = write(&self.database, self.committed, None, LogChange::None)
        {
            tracing::warn!(%error, "the last write of the voter's store failed; the next start reads less of the log");
        }
    }
}

/// A change of the table of entries.
enum LogChange<'a> {
    None,
    Append(&'a [(u64, Vec<u8>)]),
    Remove(Bound<u64>, Bound<u64>),
}

/// Writes one key, a change of the log and the index of the last committed entry, in one step.
fn write(
    database: &Database,
    committed: Option<Vec<u8>>,
    key: Option<(&str, &[u8])>,
    change: LogChange<'_>,
) -> Result<(), redb::Error> {
    disk::write(database, |meta, log| {
        for (key, value) in committed.as_deref().map(|value| ("committed", value)).into_iter().chain(key) {
            meta.insert(key, value)?;
        }
        match change {
            LogChange::None => {}
            LogChange::Append(entries) => {
                for (index, bytes) in entries {
                    log.insert(index, bytes.as_slice())?;
                }
            }
            LogChange::Remove(from, to) => log.retain_in((from, to), |_, _| false)?,
        }
        Ok(())
    })
}

//! Error records of processes that have not ended: a program may fail, and then block indefinitely in its exit
//! handlers.
//!
//! One directory's modification time is read four times a second, and only while the launcher is watched; files are
//! read only when it has changed. The framework interprets the records.
//!
//! A record is sent to every call of `watch` that waits at that time. Since a watcher may be between two calls, each
//! record is sent several times.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;
use tokio::time::Instant;

use super::error::{ErrorRecord, Failure, read_error_file};
use super::{Framework, PythonLauncher, on_files};
use crate::job::ProcId;
use crate::launch::{Change, Launcher, Phase, WorkerEvent, WorkerMessage};

/// Interval of the check of the directory, which costs one `stat`.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Number of checks in which files are read after a change: file times are coarse, and a record may be written in
/// parts. A record is also reported this many times.
const LOOKS_AFTER_CHANGE: u32 = 4;

/// Maximum number of unread reports per watcher. A watcher that is further behind gets them with the next check.
const UNREAD_MAX: usize = 16;

/// State of the directory of error records.
#[derive(Debug)]
pub(super) struct Records {
    state: Mutex<State>,
    /// True while a check is pending: if the disk does not respond, no second thread is blocked on it.
    is_looking: Arc<AtomicBool>,
    changes: broadcast::Sender<Vec<Change>>,
}

#[derive(Debug, Default)]
struct State {
    looked_at: Option<Instant>,
    changed: Option<SystemTime>,
    looks_left: u32,
    /// Processes with a record, and the number of times that each record is still to be reported.
    found: BTreeMap<ProcId, (WorkerMessage, u32)>,
}

impl Default for Records {
    fn default() -> Records {
        let (changes, _) = broadcast::channel(UNREAD_MAX);
        Records { state: Mutex::default(), is_looking: Arc::default(), changes }
    }
}

impl Records {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs under the lock
    }

    /// Returns a receiver of all later reports.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Vec<Change>> {
        self.changes.subscribe()
    }

    /// Starts a check, unless another watcher has just made one or the last one is pending. The returned function has
    /// to be called when the check is complete.
    fn begin(&self) -> Option<impl FnOnce() + Send + use<>> {
        let (mut state, now) = (self.lock(), Instant::now());
        if state.looked_at.is_some_and(|at| now.duration_since(at) < LOOK_EVERY / 2) {
            return None;
        }
        let is_looking = Arc::clone(&self.is_looking);
        if is_looking.swap(true, Ordering::AcqRel) {
            return None;
        }
        state.looked_at = Some(now);
        Some(move || is_looking.store(false, Ordering::Release))
    }

    /// Returns true if files have to be read, given the directory's current modification time.
    fn is_due(&self, changed: Option<SystemTime>) -> bool {
        let mut state = self.lock();
        if state.changed != changed {
            (state.changed, state.looks_left) = (changed, LOOKS_AFTER_CHANGE);
        }
        let is_due = state.looks_left > 0 && changed.is_some();
        state.looks_left = state.looks_left.saturating_sub(1);
        is_due
    }

    /// Returns the running processes without a known record, and forgets the records of processes that have ended.
    fn without(&self, running: Vec<ProcId>) -> Vec<ProcId> {
        let mut state = self.lock();
        state.found.retain(|proc, _| running.contains(proc));
        running.into_iter().filter(|proc| !state.found.contains_key(proc)).collect()
    }

    /// Stores the record of a process.
    fn found(&self, proc: ProcId, what: WorkerMessage) {
        self.lock().found.insert(proc, (what, LOOKS_AFTER_CHANGE));
    }

    /// Sends the pending reports about uncaught exceptions to all watchers of the launcher.
    fn report(&self) {
        let mut state = self.lock();
        let open = state.found.iter_mut().filter(|(_, (_, left))| *left > 0);
        let changes: Vec<Change> = open
            .map(|(proc, (what, left))| {
                *left -= 1;
                Change::Worker(WorkerEvent::new(proc.clone(), what.clone()))
            })
            .collect();
        drop(state);
        if !changes.is_empty() {
            let _ = self.changes.send(changes); // there may be no watcher left
        }
    }
}

impl<L: Launcher, F: Framework> PythonLauncher<L, F> {
    /// Checks for records of processes that have not ended, for as long as the launcher is watched.
    pub(super) async fn follow_records(&self) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Some(over) = self.records.begin() {
                self.look_for_records(over).await;
                self.records.report();
            }
        }
    }

    /// Reads the records of uncaught exceptions that running processes have written since the last check. Returns
    /// `None` if nothing has changed, or the directory cannot be read now.
    async fn look_for_records(&self, over: impl FnOnce() + Send + 'static) -> Option<()> {
        let dir = self.files.errors();
        let changed = on_files(move || {
            let changed = changed_at(&dir);
            over();
            changed
        });
        if !self.records.is_due(changed.await?) {
            return None;
        }
        let running = self.inner.list().await.ok()?.procs.into_iter().filter(|status| status.phase == Phase::Running);
        let running = running.map(|status| status.proc).filter(|proc| self.is_ours(proc));
        let procs = self.records.without(running.collect());
        let paths: Vec<PathBuf> = procs.iter().map(|proc| self.files.error(proc)).collect();
        let read = on_files(move || last_words(&paths)).await?;
        for (proc, record) in procs.into_iter().zip(read) {
            let Some(record) = record else { continue };
            let report = self.framework.report(&Failure::new(&proc, Some(&record), ""));
            if let Some(report) = report {
                let step = report.step.or(record.step);
                self.records.found(proc, WorkerMessage::ErrorRecorded(Box::new(report.with_step(step))));
            }
        }
        Some(())
    }
}

/// Returns the time of the last write or rename in a directory; `None` if the directory does not exist.
fn changed_at(dir: &Path) -> Option<SystemTime> {
    std::fs::metadata(dir).and_then(|metadata| metadata.modified()).ok()
}

/// Reads the records of uncaught exceptions; `None` for a process without one. A file that cannot be read now is read
/// again when the process exits, and the report of that exit states the reason.
fn last_words(paths: &[PathBuf]) -> Vec<Option<ErrorRecord>> {
    paths.iter().map(|path| read_error_file(path).ok().flatten().filter(|record| record.uncaught)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::python::report_of;

    #[test]
    fn files_are_read_a_few_times_after_each_change_and_then_not_any_more() {
        let records = Records::default();
        assert!(!records.is_due(None), "there is no directory yet");
        let at = |s| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(s));
        for change in [1, 2] {
            let due = (0..10).filter(|_| records.is_due(at(change))).count();
            assert_eq!(due, LOOKS_AFTER_CHANGE as usize);
        }
    }

    #[test]
    fn a_record_is_reported_a_few_times_to_all_watchers() {
        let (records, first, second) = (Records::default(), ProcId::rank(1, 1), ProcId::rank(1, 2));
        assert_eq!(records.without(vec![first.clone()]), std::slice::from_ref(&first));
        records.found(first.clone(), WorkerMessage::ErrorRecorded(Box::new(report_of("KeyError: 3"))));
        let mut watching = [records.subscribe(), records.subscribe()];
        (0..9).for_each(|_| records.report());
        for watching in &mut watching {
            let received = std::iter::from_fn(|| watching.try_recv().ok()).count();
            assert_eq!(received, LOOKS_AFTER_CHANGE as usize);
        }
        assert!(records.without(vec![first]).is_empty());
        assert_eq!(records.without(vec![second.clone()]), [second]);
        assert!(records.lock().found.is_empty(), "the one before has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_one_look_at_a_time_however_many_watch() {
        let records = Records::default();
        let over = records.begin().expect("the first");
        tokio::time::advance(LOOK_EVERY).await;
        assert!(records.begin().is_none(), "it has not come back");
        over();
        records.begin().expect("it has")();
        assert!(records.begin().is_none(), "another watcher has just looked");
        tokio::time::advance(LOOK_EVERY).await;
        assert!(records.begin().is_some());
    }
}

//! Error records of processes that have not ended: a program may fail, and then wait for ever in what it does at its exit.
//!
//! One directory's time of change is looked at every moment; files are read only when it has changed. It judges no record.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::error::{ErrorRecord, read_error_file};
use crate::job::ProcId;

/// How often the directory is looked at: one `stat`.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// After a change files are read in so many looks: times of files are coarse, and a record may be written in parts.
const LOOKS_AFTER_CHANGE: u32 = 4;

/// What is known of the directory with error records.
#[derive(Debug, Default)]
pub(super) struct Records {
    state: Mutex<State>,
    /// A look has not come back: the disk does not answer, and gets no second thread to keep.
    is_looking: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    changed: Option<SystemTime>,
    looks_left: u32,
    /// Whose records were told.
    told: BTreeSet<ProcId>,
}

impl Records {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // no code of others runs under it
    }

    /// Begins to look, unless the last look has not come back; what is returned is called when it has.
    pub(super) fn begin(&self) -> Option<impl FnOnce() + Send + use<>> {
        let is_looking = Arc::clone(&self.is_looking);
        (!is_looking.swap(true, Ordering::AcqRel)).then_some(move || is_looking.store(false, Ordering::Release))
    }

    /// Whether files are to be read, when the directory has changed last at this time.
    pub(super) fn is_due(&self, changed: Option<SystemTime>) -> bool {
        let mut state = self.lock();
        if state.changed != changed {
            (state.changed, state.looks_left) = (changed, LOOKS_AFTER_CHANGE);
        }
        let is_due = state.looks_left > 0 && changed.is_some();
        state.looks_left = state.looks_left.saturating_sub(1);
        is_due
    }

    /// Those of which no record was told. What is told of others is forgotten: they have ended.
    pub(super) fn untold(&self, running: BTreeSet<ProcId>) -> Vec<ProcId> {
        let mut state = self.lock();
        state.told.retain(|proc| running.contains(proc));
        running.into_iter().filter(|proc| !state.told.contains(proc)).collect()
    }

    /// A record of this process is told. False: it was told already.
    pub(super) fn tell(&self, proc: &ProcId) -> bool {
        self.lock().told.insert(proc.clone())
    }
}

/// When something was last written into a directory or renamed there; `None` where there is none.
pub(super) fn changed_at(dir: &Path) -> Option<SystemTime> {
    std::fs::metadata(dir).and_then(|metadata| metadata.modified()).ok()
}

/// The records by which processes end, as far as there are any. What cannot be read is read again with the exit, which says why.
pub(super) fn last_words(paths: &[PathBuf]) -> Vec<Option<ErrorRecord>> {
    paths.iter().map(|path| read_error_file(path).ok().flatten().filter(|record| record.uncaught)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_record_is_told_once_for_each_process() {
        let (records, first, second) = (Records::default(), ProcId::rank(1, 1), ProcId::rank(1, 2));
        assert_eq!(records.untold([first.clone()].into()), std::slice::from_ref(&first));
        assert!(records.tell(&first) && !records.tell(&first));
        assert!(records.untold([first].into()).is_empty());
        assert_eq!(records.untold([second.clone()].into()), [second]);
        assert!(records.lock().told.is_empty(), "the one before has ended");
    }

    #[test]
    fn there_is_one_look_at_a_time() {
        let records = Records::default();
        let over = records.begin().expect("the first");
        assert!(records.begin().is_none(), "it has not come back");
        over();
        assert!(records.begin().is_some());
    }
}

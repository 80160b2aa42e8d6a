//! Ranks that have completed: the job's record has them before their hosts may forget them.

use super::Inner;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use taskd_runtime::job::ProcId;
use taskd_runtime::launch::{Change, LaunchError, Phase, ProcStatus};

/// Completed ranks that are not acknowledged yet. There are at most as many as hosts list.
#[derive(Debug, Default)]
pub(super) struct Completed(Mutex<BTreeSet<ProcId>>);

impl Completed {
    /// Notes the ranks among `procs` that have completed.
    pub(super) fn see<'a>(&self, procs: impl IntoIterator<Item = &'a ProcStatus>) {
        let well = |phase: &Phase| phase.is_exited() && phase.termination().is_some_and(|how| how.is_success());
        let completed = procs.into_iter().filter(|status| status.proc.role.rank().is_some() && well(&status.phase));
        self.lock().extend(completed.map(|status| status.proc.clone()));
    }

    /// Notes the ranks that have completed by these changes.
    pub(super) fn see_changes(&self, changes: &[Change]) {
        self.see(changes.iter().filter_map(|change| match change {
            Change::Proc(status) => Some(status),
            _ => None,
        }));
    }

    fn among(&self, exits: &[ProcId]) -> Vec<ProcId> {
        let known = self.lock();
        exits.iter().filter(|proc| known.contains(proc)).cloned().collect()
    }

    fn forget(&self, procs: &[ProcId]) {
        let mut known = self.lock();
        procs.iter().for_each(|proc| _ = known.remove(proc));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<ProcId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

impl Inner {
    /// Stores those of the exits that are completed ranks.
    ///
    /// # Errors
    /// Those of [`Inner::store_completed`]: the exits must not be acknowledged then.
    pub(super) async fn keep_completed(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        let completed = self.completed.among(exits);
        if !completed.is_empty() {
            self.store_completed(&completed).await?;
            self.completed.forget(&completed);
        }
        Ok(())
    }
}

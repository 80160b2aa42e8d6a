//! What a local launcher knows: the history that `list` and `watch` serve, and what a new guard must be told of the past.
//!
//! It talks to nobody; the link to the guard feeds it.

use super::guards::Past;
use crate::job::{Exit, Incarnation, Name, NodeId, ProcId, Role, Termination};
use crate::launch::guard::wire::{JobId, ProcReport};
use crate::launch::{
    Change, ChangeLog, GuardState, GuardStatus, LaunchError, LinkStatus, NodeState, NodeStatus, Phase, ProcStatus,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Everything that the launcher's calls, its link and its sources share.
#[derive(Debug)]
pub(super) struct History {
    pub(super) log: ChangeLog,
    pub(super) job: JobId,
    node: NodeId,
    book: Mutex<Book>,
    /// Why nothing will come any more.
    over: watch::Sender<Option<LaunchError>>,
}

#[derive(Debug, Default)]
struct Book {
    /// Processes that run, and exits that were not acknowledged.
    reports: BTreeMap<ProcId, ProcReport>,
    /// The latest incarnation of each role that was acknowledged.
    over: BTreeMap<Role, Incarnation>,
}

impl History {
    pub(super) fn new(job: JobId, node: NodeId, slots: u32) -> History {
        let log = ChangeLog::starting_now();
        log.push(Change::Node(NodeStatus { node: node.clone(), state: NodeState::Ready, slots }));
        History { log, job, node, book: Mutex::default(), over: watch::Sender::new(None) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner) // no code of others runs under it
    }

    /// On which host everything is.
    pub(super) fn node(&self) -> NodeId {
        self.node.clone()
    }

    /// Takes what is known of the guard.
    pub(super) fn guard(&self, status: GuardStatus) {
        match &status.state {
            GuardState::Silent(why) => tracing::warn!(node = %status.node, "{why}; what it guards is left as it is"),
            GuardState::Gone(end) => tracing::warn!(node = %status.node, "{}; what it guarded ends with it", end.why),
            GuardState::Answers => tracing::debug!(node = %status.node, pid = status.pid, "the guard answers"),
        }
        self.log.push(Change::Guard(status));
    }

    /// Takes what the guard says of a process.
    pub(super) fn learn(&self, report: ProcReport) {
        let status = ProcStatus {
            proc: report.proc.clone(),
            node: Some(self.node.clone()),
            instance: Name::from(format!("{}:{}", report.pid, report.start_time)),
            pid: Some(report.pid),
            phase: report.phase.clone(),
        };
        if self.log.push(Change::Proc(status)) {
            self.book().reports.insert(report.proc.clone(), report);
        }
    }

    /// The guard died, and everything with it: what had not exited has now, and nobody knows how, unless it was seen dying.
    pub(super) fn lose_all(&self) {
        let running: Vec<ProcReport> =
            self.book().reports.values().filter(|report| !report.phase.is_exited()).cloned().collect();
        for mut report in running {
            let how = report.phase.termination().unwrap_or(Termination::Unknown);
            report.phase = Phase::Exited(Box::new(Exit::new(how)));
            report.page = None;
            self.learn(report);
        }
    }

    /// Nobody can be told anything any more.
    pub(super) fn unlink_all(&self) {
        for LinkStatus { proc, .. } in self.log.listing().links.into_iter().filter(|link| link.linked.is_some()) {
            self.log.push(Change::Link(LinkStatus { proc, linked: None }));
        }
    }

    /// Forgets exits that the owner has in its log.
    pub(super) fn acknowledge(&self, exits: &[ProcId]) {
        self.log.acknowledge(exits);
        let mut book = self.book();
        for proc in exits {
            if book.reports.get(proc).is_some_and(|report| report.phase.is_exited()) {
                book.reports.remove(proc);
                let last = book.over.entry(proc.role.clone()).or_default();
                *last = (*last).max(proc.incarnation);
            }
        }
    }

    /// What a guard that is started now must know.
    pub(super) fn past(&self) -> Past {
        let book = self.book();
        Past {
            job: Some(self.job.clone()),
            exits: book.reports.values().filter(|report| report.phase.is_exited()).cloned().collect(),
            over: book.over.iter().map(|(role, last)| (role.clone(), *last)).collect(),
        }
    }

    /// The processes that run.
    pub(super) fn running(&self) -> Vec<ProcReport> {
        self.book().reports.values().filter(|report| !report.phase.is_over()).cloned().collect()
    }

    /// The processes that run, and those whose exits were not acknowledged.
    pub(super) fn reports(&self) -> Vec<ProcReport> {
        self.book().reports.values().cloned().collect()
    }

    /// Nothing will come any more.
    pub(super) fn end(&self, why: LaunchError) {
        self.over.send_replace(Some(why));
    }

    pub(super) fn why_over(&self) -> Option<LaunchError> {
        self.over.borrow().clone()
    }

    /// Waits until nothing will come any more, and says why.
    pub(super) async fn ended(&self) -> LaunchError {
        let mut over = self.over.subscribe();
        let why = over.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or(LaunchError::Stale) // the sender lives as long as `self`
    }
}

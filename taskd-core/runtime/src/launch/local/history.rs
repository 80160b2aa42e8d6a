//! The state that a local launcher keeps: the history behind `list` and `watch`, and the past that a new guard must
//! receive.
//!
//! This module does no communication; the link to the guard feeds it.

use super::guard_connect::Past;
use crate::job::{Exit, Incarnation, Name, NodeId, ProcId, Role, Termination};
use crate::launch::guard::wire::{JobId, ProcReport};
use crate::launch::{
    Change, ChangeLog, GuardState, GuardStatus, LaunchError, LinkStatus, NodeState, NodeStatus, Phase, ProcStatus,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The state shared by the launcher's calls, its link and its sources.
#[derive(Debug)]
pub(super) struct History {
    pub(super) log: ChangeLog,
    pub(super) job: JobId,
    node: NodeId,
    book: Mutex<Book>,
    /// Reason why no further change will come; `None` while changes can come.
    over: watch::Sender<Option<LaunchError>>,
}

#[derive(Debug, Default)]
struct Book {
    /// Running processes, and exits that were not acknowledged.
    reports: BTreeMap<ProcId, ProcReport>,
    /// Latest acknowledged incarnation of each role.
    over: BTreeMap<Role, Incarnation>,
}

impl History {
    pub(super) fn new(job: JobId, node: NodeId, slots: u32) -> History {
        let log = ChangeLog::starting_now();
        log.push(Change::Node(NodeStatus::new(node.clone(), NodeState::Ready, slots)));
        History { log, job, node, book: Mutex::default(), over: watch::Sender::new(None) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }

    /// Returns the host of all processes.
    pub(super) fn node(&self) -> NodeId {
        self.node.clone()
    }

    /// Records the number of standbys that can take a rank now.
    pub(super) fn has_standbys(&self, ready: u32) {
        if let Some(status) = self.log.node(&self.node) {
            self.log.push(Change::Node(status.with_standbys(ready)));
        }
    }

    /// Records a state of the guard.
    pub(super) fn guard(&self, status: GuardStatus) {
        match &status.state {
            GuardState::Silent(why) => tracing::warn!(node = %status.node, "{why}; its processes are not touched"),
            GuardState::Gone(end) => tracing::warn!(node = %status.node, "{}; its processes end with it", end.why),
            GuardState::Answers => tracing::debug!(node = %status.node, pid = status.pid, "the guard answers"),
            other => tracing::warn!(node = %status.node, ?other, "the guard has an unknown state"),
        }
        self.log.push(Change::Guard(status));
    }

    /// Records the guard's report about a process.
    pub(super) fn learn(&self, report: ProcReport) {
        let status = ProcStatus::new(
            report.proc.clone(),
            Name::from(format!("{}:{}", report.pid, report.start_time)),
            report.phase.clone(),
        )
        .with_node(self.node.clone())
        .with_pid(report.pid);
        if self.log.push(Change::Proc(status)) {
            self.book().reports.insert(report.proc.clone(), report);
        }
    }

    /// Records that the guard died, and everything with it: processes that had not exited have now, with an unknown
    /// termination unless their death was observed.
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

    /// Records that no process has a link any more.
    pub(super) fn unlink_all(&self) {
        for LinkStatus { proc, .. } in self.log.listing().links.into_iter().filter(|link| link.link.is_some()) {
            self.log.push(Change::Link(LinkStatus::new(proc, None)));
        }
    }

    /// Forgets exits that are in the owner's log.
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

    /// Returns the past that a newly started guard must know.
    pub(super) fn past(&self) -> Past {
        let book = self.book();
        Past {
            job: Some(self.job.clone()),
            exits: book.reports.values().filter(|report| report.phase.is_exited()).cloned().collect(),
            over: book.over.iter().map(|(role, last)| (role.clone(), *last)).collect(),
        }
    }

    /// Returns the running processes.
    pub(super) fn running(&self) -> Vec<ProcReport> {
        self.book().reports.values().filter(|report| !report.phase.is_over()).cloned().collect()
    }

    /// Returns the running processes, and those whose exits were not acknowledged.
    pub(super) fn reports(&self) -> Vec<ProcReport> {
        self.book().reports.values().cloned().collect()
    }

    /// Records that no further change will come.
    pub(super) fn end(&self, why: LaunchError) {
        self.over.send_replace(Some(why));
    }

    pub(super) fn why_over(&self) -> Option<LaunchError> {
        self.over.borrow().clone()
    }

    /// Waits until no further change will come, and returns the reason.
    pub(super) async fn ended(&self) -> LaunchError {
        let mut over = self.over.subscribe();
        let why = over.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or(LaunchError::Stale) // the sender lives as long as `self`
    }
}

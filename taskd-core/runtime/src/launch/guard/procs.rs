//! The guard's table of processes: their state, and the reports that its owner has not received yet.
//!
//! This module is bookkeeping only: it sends no signal or message and reads no clock.

use super::lifeline::Waiter;
use super::proc_cgroups::ProcCgroup;
use super::streams::Stream;
use super::tree::Member;
use super::wire::ProcReport;
use crate::job::{Incarnation, ProcId, Role};
use crate::launch::Phase;
use crate::redact::SecretNames;
use crate::worker::page::Page;
use rustix::process::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Identifies a process in events; never reused.
pub(super) type Key = u64;

/// One process with all its resources.
#[derive(Debug)]
pub(super) struct Proc {
    pub(super) report: ProcReport,
    pub(super) pid: Pid,
    /// Names of secrets, whose values are left out of every command line that is logged or reported.
    pub(super) secrets: SecretNames,
    /// Its page, and the memory that begins with the page; kept until the process is forgotten.
    pub(super) page: Option<(Arc<Page>, OwnedFd)>,
    /// Index of the counter of its OOM kills.
    pub(super) oom_place: Option<usize>,
    pub(super) lifeline: Option<Waiter>,
    /// Control group of the process and its descendants.
    pub(super) cgroup: ProcCgroup,
    /// Readable at its end, if the guard gets no signal for that.
    pub(super) end: Option<OwnedFd>,
    pub(super) stdout: Option<Stream>,
    pub(super) stderr: Option<Stream>,
    /// Time at which it is killed, if a stop was requested.
    pub(super) kill_at: Option<Instant>,
    /// True if the fence has killed it.
    pub(super) is_fenced: bool,
    pub(super) tree: Tree,
    /// Remaining processes of the tree, as of the last check.
    pub(super) left: Vec<Member>,
    /// True if its batch failed to start: it is never reported to the owner.
    pub(super) withdrawn: bool,
    pub(super) acknowledged: bool,
}

/// State of the removal of a process and its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// The process and its descendants are not to be removed.
    Wanted,
    /// The process and its descendants are being removed.
    Sweeping(Sweep),
    /// Nothing is left of the process and its descendants.
    Gone,
}

/// The removal of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sweep {
    /// Time of the next check.
    pub(super) next_at: Instant,
    /// Interval after that check.
    pub(super) pause: Duration,
    /// Time at which a failure to remove it is reported.
    pub(super) complain_at: Option<Instant>,
}

impl Proc {
    /// Returns true if the process has ended and was reaped.
    pub(super) fn has_exited(&self) -> bool {
        self.report.phase.is_exited()
    }

    /// Returns true if the guard has to keep nothing of the process.
    fn is_done(&self) -> bool {
        self.tree == Tree::Gone && (self.acknowledged || self.withdrawn)
    }
}

/// All processes.
#[derive(Debug, Default)]
pub(super) struct Procs {
    all: BTreeMap<Key, Proc>,
    by_id: BTreeMap<ProcId, Key>,
    /// The latest incarnation of each role whose exit was acknowledged; it and all before it are over.
    over: BTreeMap<Role, Incarnation>,
    /// Processes with a report that the owner has not received, oldest first.
    unreported: VecDeque<Key>,
    next: Key,
}

impl Procs {
    /// Makes the table of a guard that replaces an earlier one of the same job.
    pub(super) fn inherited(exits: Vec<ProcReport>, over: Vec<(Role, Incarnation)>) -> Procs {
        let mut procs = Procs { over: over.into_iter().collect(), ..Procs::default() };
        for mut report in exits {
            report.page = None; // it was held by the earlier guard
            let pid = i32::try_from(report.pid).ok().and_then(Pid::from_raw).unwrap_or(Pid::INIT);
            procs.insert(Proc {
                report,
                pid,
                page: None,
                oom_place: None,
                lifeline: None,
                secrets: SecretNames::default(),
                cgroup: ProcCgroup::default(),
                end: None,
                stdout: None,
                stderr: None,
                kill_at: None,
                is_fenced: false,
                tree: Tree::Gone,
                left: Vec::new(),
                withdrawn: false,
                acknowledged: false,
            });
        }
        procs
    }

    /// Returns the key of the next process.
    pub(super) const fn next_key(&self) -> Key {
        self.next
    }

    pub(super) fn insert(&mut self, proc: Proc) -> Key {
        let key = self.next;
        self.next += 1;
        self.by_id.insert(proc.report.proc.clone(), key);
        self.all.insert(key, proc);
        key
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Proc> {
        self.all.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Proc> {
        self.all.get_mut(&key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Proc)> {
        self.all.iter().map(|(key, proc)| (*key, proc))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Proc)> {
        self.all.iter_mut().map(|(key, proc)| (*key, proc))
    }

    /// Returns the process that was started under this id, unless it is over and acknowledged.
    pub(super) fn find(&self, id: &ProcId) -> Option<Key> {
        self.by_id.get(id).copied()
    }

    /// Returns true if the exit of this process was acknowledged, so that it is never started again.
    pub(super) fn is_over(&self, id: &ProcId) -> bool {
        self.over.get(&id.role).is_some_and(|last| id.incarnation <= *last)
    }

    /// Returns the process with this pid that has not been reaped.
    pub(super) fn running_with(&self, pid: Pid) -> Option<Key> {
        self.iter().find(|(_, proc)| proc.pid == pid && !proc.has_exited()).map(|(key, _)| key)
    }

    /// Returns a process that must be gone before this one can be started: another incarnation, or a failed start of
    /// the same one.
    pub(super) fn in_the_way_of(&self, id: &ProcId) -> Option<&Proc> {
        let same_role = self.all.values().filter(|p| p.report.proc.role == id.role && p.tree != Tree::Gone);
        same_role.into_iter().find(|p| p.withdrawn || p.report.proc != *id)
    }

    /// Moves a process to a later phase and queues the report; returns false if the phase is not later.
    pub(super) fn advance(&mut self, key: Key, phase: Phase) -> bool {
        let Some(proc) = self.all.get_mut(&key) else { return false };
        if phase.order() <= proc.report.phase.order() {
            return false;
        }
        proc.report.phase = phase;
        if !proc.withdrawn {
            self.unreported.push_back(key);
        }
        true
    }

    /// Queues the state of all processes, for a new owner.
    pub(super) fn report_all(&mut self) {
        self.unreported = self.iter().filter(|(_, p)| !p.withdrawn && !p.acknowledged).map(|(key, _)| key).collect();
    }

    /// Returns the oldest report that the owner has not received.
    pub(super) fn next_news(&mut self) -> Option<&ProcReport> {
        while let Some(key) = self.unreported.pop_front() {
            if let Some(proc) = self.all.get(&key).filter(|p| !p.acknowledged) {
                return Some(&proc.report);
            }
        }
        None
    }

    /// Records that the owner has stored this exit. Any other process is ignored.
    pub(super) fn acknowledge(&mut self, id: &ProcId) {
        let Some(proc) = self.find(id).and_then(|key| self.all.get_mut(&key)) else { return };
        if proc.has_exited() && !proc.withdrawn {
            proc.acknowledged = true;
            let last = self.over.entry(id.role.clone()).or_default();
            *last = (*last).max(id.incarnation);
        }
        self.forget_done();
    }

    /// Forgets the processes of which nothing has to be kept.
    pub(super) fn forget_done(&mut self) {
        let by_id = &mut self.by_id;
        self.all.retain(|key, proc| {
            let keep = !proc.is_done();
            if !keep && by_id.get(&proc.report.proc) == Some(key) {
                by_id.remove(&proc.report.proc);
            }
            keep
        });
    }
}

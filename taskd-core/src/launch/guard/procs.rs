//! The guard's book of processes: which there are, how far each is, what its owner has not been told yet.
//!
//! Plain bookkeeping: it sends no signal, reads no clock and talks to nobody.

use super::lifeline::Waiter;
use super::proc_cgroups::ProcCgroup;
use super::streams::Stream;
use super::tree::Member;
use super::wire::ProcReport;
use crate::job::{Incarnation, ProcId, Role};
use crate::launch::Phase;
use crate::secrets::SecretNames;
use crate::worker::page::Page;
use rustix::process::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names a process in events: never used twice.
pub(super) type Key = u64;

/// One process with all that belongs to it.
#[derive(Debug)]
pub(super) struct Proc {
    pub(super) report: ProcReport,
    pub(super) pid: Pid,
    /// Names of secrets: their values are left out of every command line that is logged or reported.
    pub(super) secrets: SecretNames,
    /// Its page, and the memory that begins with it: kept until nobody needs anything of the process any more.
    pub(super) page: Option<(Arc<Page>, OwnedFd)>,
    /// Where kills for lack of memory are counted for it.
    pub(super) oom_place: Option<usize>,
    pub(super) lifeline: Option<Waiter>,
    /// Its control group, with all that it starts.
    pub(super) cgroup: ProcCgroup,
    /// Readable at its end, where the mode has no signal for that.
    pub(super) end: Option<OwnedFd>,
    pub(super) stdout: Option<Stream>,
    pub(super) stderr: Option<Stream>,
    /// When it is killed, if it was told to stop.
    pub(super) kill_at: Option<Instant>,
    pub(super) tree: Tree,
    /// What was found of the tree at the last look.
    pub(super) left: Vec<Member>,
    /// Part of a batch that failed: the owner never hears of it.
    pub(super) withdrawn: bool,
    pub(super) acknowledged: bool,
}

/// How far the removal of everything that a process started has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    /// It is to live.
    Wanted,
    /// It is being removed.
    Sweeping(Sweep),
    /// Nothing is left of it.
    Gone,
}

/// The removal of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sweep {
    /// When to look again.
    pub(super) next_at: Instant,
    /// How long to wait after that.
    pub(super) pause: Duration,
    /// When to say that something cannot be removed.
    pub(super) complain_at: Option<Instant>,
}

impl Proc {
    /// Whether its process has ended and was reaped.
    pub(super) fn has_exited(&self) -> bool {
        self.report.phase.is_exited()
    }

    /// Whether nothing has to be kept of it.
    fn is_done(&self) -> bool {
        self.tree == Tree::Gone && (self.acknowledged || self.withdrawn)
    }
}

/// All processes.
#[derive(Debug, Default)]
pub(super) struct Procs {
    all: BTreeMap<Key, Proc>,
    by_id: BTreeMap<ProcId, Key>,
    /// The latest incarnation of each role whose exit was acknowledged: it and those before it are over.
    over: BTreeMap<Role, Incarnation>,
    /// Whose news the owner has not been told, oldest first.
    untold: VecDeque<Key>,
    next: Key,
}

impl Procs {
    /// The book of a guard that takes over from an earlier one of the same job.
    pub(super) fn inherited(exits: Vec<ProcReport>, over: Vec<(Role, Incarnation)>) -> Procs {
        let mut procs = Procs { over: over.into_iter().collect(), ..Procs::default() };
        for mut report in exits {
            report.page = None; // it was held by the guard that is gone
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
                tree: Tree::Gone,
                left: Vec::new(),
                withdrawn: false,
                acknowledged: false,
            });
        }
        procs
    }

    /// The key that the next process will have.
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

    /// The process that was started under this id, unless it is over and acknowledged.
    pub(super) fn find(&self, id: &ProcId) -> Option<Key> {
        self.by_id.get(id).copied()
    }

    /// Whether this process was acknowledged: it is never started again.
    pub(super) fn is_over(&self, id: &ProcId) -> bool {
        self.over.get(&id.role).is_some_and(|last| id.incarnation <= *last)
    }

    /// The process with this pid that has not been reaped.
    pub(super) fn running_with(&self, pid: Pid) -> Option<Key> {
        self.iter().find(|(_, proc)| proc.pid == pid && !proc.has_exited()).map(|(key, _)| key)
    }

    /// What must be gone before a process can be started: another incarnation, or a withdrawn start of this one.
    pub(super) fn in_the_way_of(&self, id: &ProcId) -> Option<&Proc> {
        let same_role = self.all.values().filter(|p| p.report.proc.role == id.role && p.tree != Tree::Gone);
        same_role.into_iter().find(|p| p.withdrawn || p.report.proc != *id)
    }

    /// Moves a process on, forward only, and queues the news.
    pub(super) fn advance(&mut self, key: Key, phase: Phase) -> bool {
        let Some(proc) = self.all.get_mut(&key) else { return false };
        if phase.order() <= proc.report.phase.order() {
            return false;
        }
        proc.report.phase = phase;
        if !proc.withdrawn {
            self.untold.push_back(key);
        }
        true
    }

    /// Queues everything for an owner that knows nothing.
    pub(super) fn tell_all(&mut self) {
        self.untold = self.iter().filter(|(_, p)| !p.withdrawn && !p.acknowledged).map(|(key, _)| key).collect();
    }

    /// The oldest news that the owner has not been told.
    pub(super) fn next_news(&mut self) -> Option<&ProcReport> {
        while let Some(key) = self.untold.pop_front() {
            if let Some(proc) = self.all.get(&key).filter(|p| !p.acknowledged) {
                return Some(&proc.report);
            }
        }
        None
    }

    /// The owner has an exit in its log. Whatever else it names is passed over.
    pub(super) fn acknowledge(&mut self, id: &ProcId) {
        let Some(proc) = self.find(id).and_then(|key| self.all.get_mut(&key)) else { return };
        if proc.has_exited() && !proc.withdrawn {
            proc.acknowledged = true;
            let last = self.over.entry(id.role.clone()).or_default();
            *last = (*last).max(id.incarnation);
        }
        self.forget_done();
    }

    /// Forgets what nobody needs any more.
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

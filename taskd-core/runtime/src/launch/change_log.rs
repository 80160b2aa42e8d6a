//! A launcher's history in memory: the current state, the changes, and waiting for the next change.
//!
//! This module starts and stops nothing and does no communication. A launcher pushes its observations and serves
//! `list`, `watch` and `acknowledge` from here; the history guarantees that phases only move forward and that exits are
//! reported exactly once.

use super::{
    Change, GuardStatus, LaunchError, LinkStatus, Listing, NodeState, NodeStatus, Phase, ProcStatus, Revision,
    WorkerEvent, WorkerMessage,
};
use crate::job::{Generation, Incarnation, NodeId, ProcId, Role};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The history of one launcher in memory: the states of its processes and hosts, and the latest changes. The
/// launcher's tasks and callers share it by reference.
///
/// ```
/// use taskd_core::job::{Exit, ProcId, Termination};
/// use taskd_core::launch::{Change, ChangeLog, Phase, ProcStatus};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let log = ChangeLog::new(1);
/// let rank = |phase| ProcStatus::new(ProcId::rank(0, 1), "17", phase).with_pid(17);
///
/// assert_eq!(log.admit([rank(Phase::Pending("queued".into()))]).len(), 1); // it is new: start it
/// assert_eq!(log.admit([rank(Phase::Pending("queued".into()))]).len(), 0); // it is not: `start` was repeated
///
/// let from = log.listing().revision;
/// log.push(Change::Proc(rank(Phase::Running)));
/// log.push(Change::Proc(rank(Phase::Exited(Box::new(Exit::new(Termination::Code(0)))))));
/// log.push(Change::Proc(rank(Phase::Running))); // a late report: dropped and counted
///
/// let (changes, next) = log.after(from).await.unwrap();
/// assert_eq!((changes.len(), next.seq), (2, 3));
/// assert_eq!(log.counts().backwards, 1);
///
/// log.acknowledge(&[ProcId::rank(0, 1)]);
/// assert!(log.listing().procs.is_empty());
/// # }
/// ```
#[derive(Debug)]
pub struct ChangeLog {
    history: Mutex<History>,
    grown: Notify,
}

/// Limits of a [`ChangeLog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeLogBounds {
    /// Maximum number of changes that the history keeps for `watch`. A `watch` from a cursor older than these changes
    /// returns [`LaunchError::Stale`]; the caller then has to list again.
    pub changes_max: usize,
    /// Maximum number of unacknowledged process exits that the history keeps. Beyond it, the oldest exit is discarded,
    /// counted, and never reported to any supervisor: choose a value larger than the number of processes that can end
    /// while the launcher has no supervisor.
    pub exits_max: usize,
    /// Maximum number of hosts that the history still lists after they have left the job. Beyond it, the host that left
    /// first is no longer listed; this is counted.
    pub left_nodes_max: usize,
}

impl Default for ChangeLogBounds {
    /// Returns the default limits: 65,536 changes, 65,536 exits, 4,096 hosts that have left.
    fn default() -> ChangeLogBounds {
        ChangeLogBounds { changes_max: 65_536, exits_max: 65_536, left_nodes_max: 4_096 }
    }
}

/// Counters of the entries that a [`ChangeLog`] rejected or no longer keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeLogCounts {
    /// Number of changes dropped because they would have moved a process back to an earlier phase: a second death, a
    /// report after the exit, or a report about a process whose exit is no longer in the history.
    pub backwards: u64,
    /// Number of changes dropped because they repeated the known state of the process or host.
    pub repeated: u64,
    /// Number of changes discarded because the history contained `changes_max` changes. A caller that missed them has
    /// to list again.
    pub changes_forgotten: u64,
    /// Number of process exits discarded before they were acknowledged, because the history contained `exits_max`
    /// exits.
    pub exits_forgotten: u64,
    /// Number of departed hosts removed from the history because it contained `left_nodes_max` departed hosts.
    pub left_nodes_forgotten: u64,
}

impl ChangeLog {
    /// Creates an empty history with the default limits.
    ///
    /// `epoch` identifies this history. Two histories of one launcher MUST have different epochs: the epoch in a cursor
    /// shows whether the cursor belongs to the old history or to the new one. The start time of the process that keeps
    /// the history is a good value.
    #[must_use]
    pub fn new(epoch: u64) -> ChangeLog {
        ChangeLog::with_bounds(epoch, ChangeLogBounds::default())
    }

    /// Creates an empty history whose epoch is the time since this machine was started, in nanoseconds.
    #[must_use]
    pub fn starting_now() -> ChangeLog {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        ChangeLog::new(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// Creates an empty history with the given limits.
    #[must_use]
    pub fn with_bounds(epoch: u64, bounds: ChangeLogBounds) -> ChangeLog {
        ChangeLog { history: Mutex::new(History::new(epoch, bounds)), grown: Notify::new() }
    }

    /// Adds the new processes among `procs` to the history and returns them; the caller has to start them. All other
    /// processes in `procs` already run, or have run.
    ///
    /// A process is new if it was never added to the history, and if no exit of the same or a later incarnation of its
    /// role has been acknowledged. This makes `start` idempotent, also when two tasks start the same process at once.
    pub fn admit(&self, procs: impl IntoIterator<Item = ProcStatus>) -> Vec<ProcId> {
        let mut history = self.lock();
        let mut admitted = Vec::new();
        for status in procs {
            if !history.knows(&status.proc) {
                admitted.push(status.proc.clone());
                history.push(Change::Proc(status));
            }
        }
        drop(history);
        self.grown.notify_waiters();
        admitted
    }

    /// Adds a change to the history and wakes all callers that wait for changes. Returns false if the change was not
    /// new; the change was then dropped and counted.
    pub fn push(&self, change: Change) -> bool {
        let news = self.lock().push(change);
        if news {
            self.grown.notify_waiters();
        }
        news
    }

    /// Waits for changes after the cursor `from`. Returns all changes after this cursor in order, at least one, and the
    /// cursor for the next call.
    ///
    /// # Cancel safety
    /// The history keeps no cursor for the caller: a dropped call has consumed nothing.
    ///
    /// # Errors
    /// Returns [`LaunchError::Stale`] if the cursor has another epoch, is ahead of the history, or is older than the
    /// oldest change in the history.
    pub async fn after(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        loop {
            let grown = self.grown.notified(); // before the check: no change is missed between check and wait
            if let Some(found) = self.lock().after(from)? {
                return Ok(found);
            }
            grown.await;
        }
    }

    /// Returns the current states of all hosts and of all processes, except processes whose exit was acknowledged, with
    /// the revision (cursor) of these states.
    #[must_use]
    pub fn listing(&self) -> Listing {
        self.lock().listing()
    }

    /// Returns the current state of a process; `None` if it is not known or its exit was acknowledged.
    #[must_use]
    pub fn proc(&self, proc: &ProcId) -> Option<ProcStatus> {
        self.lock().procs.get(proc).map(|(_, status)| status.clone())
    }

    /// Returns true if the exit of this process was reported, whether or not it was acknowledged.
    #[must_use]
    pub fn has_ended(&self, proc: &ProcId) -> bool {
        let history = self.lock();
        match history.procs.get(proc) {
            Some((_, status)) => status.phase.is_exited(),
            None => history.knows(proc),
        }
    }

    /// Returns true if a report of a failed step is the one that is listed for its process.
    #[must_use]
    pub fn lists_failed_step(&self, event: &WorkerEvent) -> bool {
        self.lock().failed_steps.get(&event.proc) == Some(event)
    }

    /// Returns the current state of a host; `None` if it is not known.
    #[must_use]
    pub fn node(&self, node: &NodeId) -> Option<NodeStatus> {
        self.lock().nodes.get(node).map(|(_, status)| status.clone())
    }

    /// Returns the processes on a host that have not exited.
    #[must_use]
    pub fn procs_on(&self, node: &NodeId) -> Vec<ProcStatus> {
        let history = self.lock();
        let procs = history.on.get(node).into_iter().flatten().filter_map(|proc| history.procs.get(proc));
        procs.map(|(_, status)| status).filter(|proc| !proc.phase.is_exited()).cloned().collect()
    }

    /// Removes the given processes, whose exits were acknowledged, from the history. Unknown processes, and processes
    /// that have not exited, are ignored.
    pub fn acknowledge(&self, exits: &[ProcId]) {
        let mut history = self.lock();
        for proc in exits {
            history.forget_exit(proc);
        }
    }

    /// Returns the counters of the entries that were rejected or are no longer kept.
    #[must_use]
    pub fn counts(&self) -> ChangeLogCounts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

#[derive(Debug)]
struct History {
    epoch: u64,
    bounds: ChangeLogBounds,
    counts: ChangeLogCounts,
    /// Number of changes so far: the revision's `seq`.
    seq: u64,
    /// The latest changes.
    changes: VecDeque<Change>,
    /// Current state of each process, with the `seq` of the change that set it.
    procs: BTreeMap<ProcId, (u64, ProcStatus)>,
    nodes: BTreeMap<NodeId, (u64, NodeStatus)>,
    /// Processes in `procs` by their hosts: a job of 10,000 hosts asks for those of each host.
    on: BTreeMap<NodeId, BTreeSet<ProcId>>,
    /// Hosts in `nodes` that have left, by the number of the change, first one first.
    left: BTreeMap<u64, NodeId>,
    guards: BTreeMap<NodeId, GuardStatus>,
    /// The links to processes that have not exited.
    links: BTreeMap<ProcId, LinkStatus>,
    /// The last failed step of each process, until the process trains in a newer world or exits.
    failed_steps: BTreeMap<ProcId, WorkerEvent>,
    /// Processes in `procs` that have exited, by the number of the change, oldest first.
    exits: BTreeMap<u64, ProcId>,
    /// Latest incarnation of each role whose exit was forgotten: it and all earlier ones are over, unless `procs`
    /// contains them.
    over: BTreeMap<Role, Incarnation>,
}

impl History {
    fn new(epoch: u64, bounds: ChangeLogBounds) -> History {
        History {
            epoch,
            bounds,
            counts: ChangeLogCounts::default(),
            seq: 0,
            changes: VecDeque::new(),
            procs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            on: BTreeMap::new(),
            left: BTreeMap::new(),
            guards: BTreeMap::new(),
            links: BTreeMap::new(),
            failed_steps: BTreeMap::new(),
            exits: BTreeMap::new(),
            over: BTreeMap::new(),
        }
    }

    fn knows(&self, proc: &ProcId) -> bool {
        self.procs.contains_key(proc) || self.over.get(&proc.role).is_some_and(|last| proc.incarnation <= *last)
    }

    fn push(&mut self, change: Change) -> bool {
        let dropped = match &change {
            Change::Proc(new) => match self.procs.get(&new.proc) {
                Some((_, old)) if old == new => Some(&mut self.counts.repeated),
                Some((_, old)) if !may_follow(&old.phase, &new.phase) => Some(&mut self.counts.backwards),
                None if self.knows(&new.proc) => Some(&mut self.counts.backwards),
                _ => None,
            },
            Change::Node(new) => {
                let known = self.nodes.get(&new.node).is_some_and(|(_, old)| old == new);
                known.then_some(&mut self.counts.repeated)
            }
            Change::Link(new) => match self.procs.get(&new.proc) {
                Some((_, proc)) if !proc.phase.is_exited() => {
                    let known = self.links.get(&new.proc).is_some_and(|old| old == new);
                    known.then_some(&mut self.counts.repeated)
                }
                _ => Some(&mut self.counts.backwards),
            },
            Change::Worker(event) => {
                let lives = self.procs.get(&event.proc).is_some_and(|(_, proc)| !proc.phase.is_exited());
                (!lives).then_some(&mut self.counts.backwards)
            }
            Change::Guard(new) => (self.guards.get(&new.node) == Some(new)).then_some(&mut self.counts.repeated),
        };
        if let Some(counter) = dropped {
            *counter += 1;
            return false;
        }
        self.seq += 1;
        match &change {
            Change::Proc(status) => self.set_proc(status.clone()),
            Change::Node(status) => self.set_node(status.clone()),
            Change::Link(status) => {
                let trains_in = status.link.as_ref().map(|link| link.generation);
                self.failed_steps.retain(|proc, failed| *proc != status.proc || generation_of(failed) >= trains_in);
                self.links.insert(status.proc.clone(), status.clone());
            }
            Change::Guard(status) => _ = self.guards.insert(status.node.clone(), status.clone()),
            Change::Worker(event) if generation_of(event).is_some() => {
                self.failed_steps.insert(event.proc.clone(), event.clone());
            }
            Change::Worker(_) => {}
        }
        self.changes.push_back(change);
        while self.changes.len() > self.bounds.changes_max {
            self.changes.pop_front();
            self.counts.changes_forgotten += 1;
        }
        true
    }

    fn set_proc(&mut self, status: ProcStatus) {
        if status.phase.is_exited() {
            self.exits.insert(self.seq, status.proc.clone());
            self.links.remove(&status.proc);
            self.failed_steps.remove(&status.proc);
        }
        let (proc, node) = (status.proc.clone(), status.node.clone());
        let before = self.procs.insert(proc.clone(), (self.seq, status)).and_then(|(_, old)| old.node);
        if before != node {
            before.iter().for_each(|node| self.not_on(node, &proc));
            node.into_iter().for_each(|node| _ = self.on.entry(node).or_default().insert(proc.clone()));
        }
        while self.exits.len() > self.bounds.exits_max
            && let Some((_, oldest)) = self.exits.pop_first()
        {
            self.forget_exit(&oldest);
            self.counts.exits_forgotten += 1;
        }
    }

    fn set_node(&mut self, status: NodeStatus) {
        let (node, has_left) = (status.node.clone(), status.state == NodeState::Left);
        if let Some((seq, _)) = self.nodes.insert(node.clone(), (self.seq, status)) {
            self.left.remove(&seq); // it is a number of `left` only if the host had left
        }
        if has_left {
            self.left.insert(self.seq, node);
        }
        if self.left.len() > self.bounds.left_nodes_max
            && let Some((_, first)) = self.left.pop_first()
        {
            self.nodes.remove(&first);
            self.counts.left_nodes_forgotten += 1;
        }
    }

    fn not_on(&mut self, node: &NodeId, proc: &ProcId) {
        if let Some(procs) = self.on.get_mut(node) {
            procs.remove(proc);
            if procs.is_empty() {
                self.on.remove(node);
            }
        }
    }

    fn forget_exit(&mut self, proc: &ProcId) {
        let Some((seq, status)) = self.procs.get(proc) else { return };
        if status.phase.is_exited() {
            let node = status.node.clone();
            self.exits.remove(seq);
            self.procs.remove(proc);
            if let Some(node) = node {
                self.not_on(&node, proc);
            }
            let last = self.over.entry(proc.role.clone()).or_default();
            *last = (*last).max(proc.incarnation);
        }
    }

    /// Returns the changes after `from`; `None` if there are none yet.
    fn after(&self, from: Revision) -> Result<Option<(Vec<Change>, Revision)>, LaunchError> {
        let missing = self.seq.checked_sub(from.seq).filter(|_| from.epoch == self.epoch).ok_or(LaunchError::Stale)?;
        let known = usize::try_from(missing).ok().and_then(|missing| self.changes.len().checked_sub(missing));
        let first = known.ok_or(LaunchError::Stale)?;
        let changes: Vec<Change> = self.changes.range(first..).cloned().collect();
        Ok((!changes.is_empty()).then(|| (changes, self.revision())))
    }

    fn listing(&self) -> Listing {
        Listing::new(
            self.revision(),
            self.procs.values().map(|(_, status)| status.clone()).collect(),
            self.nodes.values().map(|(_, status)| status.clone()).collect(),
        )
        .with_links(self.links.values().cloned().collect())
        .with_guards(self.guards.values().cloned().collect())
        .with_failed_steps(self.failed_steps.values().cloned().collect())
    }

    fn revision(&self) -> Revision {
        Revision { epoch: self.epoch, seq: self.seq }
    }
}

/// Returns the generation of the world in which the step of a report has failed; `None` for other reports.
fn generation_of(event: &WorkerEvent) -> Option<Generation> {
    match &event.message {
        WorkerMessage::Failed(failure) => Some(failure.generation),
        _ => None,
    }
}

/// Returns true if a process may change from `old` to `new`: a later phase, or the same phase with new details while it
/// has not ended.
fn may_follow(old: &Phase, new: &Phase) -> bool {
    new.order() > old.order() || (new.order() == old.order() && !old.is_over())
}

#[cfg(test)]
mod tests;

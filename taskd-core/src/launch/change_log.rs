//! A launcher's history in memory: what is now, what changed, and waiting for the next change.
//!
//! It starts and stops nothing and talks to nobody. A launcher pushes what it sees and serves `list`, `watch` and
//! `acknowledge` from here; forward-only phases and exits that are told exactly once come with it.

use super::{
    Change, GuardStatus, LaunchError, LinkStatus, Listing, NodeState, NodeStatus, Phase, ProcStatus, Revision,
};
use crate::job::{Incarnation, NodeId, ProcId, Role};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The history of one launcher, shared by reference among its tasks and callers.
///
/// ```
/// use taskd_core::job::{Exit, Name, ProcId, Termination};
/// use taskd_core::launch::{Change, ChangeLog, Phase, ProcStatus};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let log = ChangeLog::new(1);
/// let rank = |phase| ProcStatus { proc: ProcId::rank(0, 1), node: None, instance: Name::new("17"), pid: Some(17), phase };
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

/// How much a [`ChangeLog`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeLogBounds {
    /// Changes that `watch` can still tell. A cursor behind the oldest one is [`LaunchError::Stale`]: its owner lists.
    pub changes_max: usize,
    /// Exits that nobody has acknowledged. Beyond it the oldest one is given up, counted, and no owner hears of it again:
    /// make it larger than the number of processes that can end while there is no owner.
    pub exits_max: usize,
    /// Hosts that have left. Beyond it the one that left first is no longer listed, and counted.
    pub left_nodes_max: usize,
}

impl Default for ChangeLogBounds {
    /// 65,536 changes, 65,536 exits, 4,096 hosts that have left.
    fn default() -> ChangeLogBounds {
        ChangeLogBounds { changes_max: 65_536, exits_max: 65_536, left_nodes_max: 4_096 }
    }
}

/// What a [`ChangeLog`] did not take, or no longer keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeLogCounts {
    /// Changes that were dropped because they would have moved a process backwards: a second death, anything said after an
    /// exit, anything of a process that is over and forgotten.
    pub backwards: u64,
    /// Changes that were dropped because they said what was known.
    pub repeated: u64,
    /// Changes older than `changes_max`, which only a new listing can tell.
    pub changes_forgotten: u64,
    /// Exits that were given up at `exits_max` although nobody had acknowledged them.
    pub exits_forgotten: u64,
    /// Hosts that were given up at `left_nodes_max`.
    pub left_nodes_forgotten: u64,
}

impl ChangeLog {
    /// An empty history with the usual bounds.
    ///
    /// `epoch` names this history: two histories of one launcher MUST differ in it, so that a cursor into the old one is
    /// told from one into the new. The start time of whoever keeps the history is a good value.
    #[must_use]
    pub fn new(epoch: u64) -> ChangeLog {
        ChangeLog::with_bounds(epoch, ChangeLogBounds::default())
    }

    /// An empty history whose epoch is the time since this machine was started, in nanoseconds.
    #[must_use]
    pub fn starting_now() -> ChangeLog {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
        ChangeLog::new(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// An empty history with other bounds.
    #[must_use]
    pub fn with_bounds(epoch: u64, bounds: ChangeLogBounds) -> ChangeLog {
        ChangeLog { history: Mutex::new(History::new(epoch, bounds)), grown: Notify::new() }
    }

    /// Enters those of `procs` that are new, and returns them: they are to be started. The others run, or have run.
    ///
    /// New is a process that was never entered, unless a later incarnation of its role is over and acknowledged. This is
    /// what makes `start` idempotent, also when two tasks start the same process at once.
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

    /// Adds what has changed and wakes all who wait. False: it was no news, and was dropped and counted.
    pub fn push(&self, change: Change) -> bool {
        let news = self.lock().push(change);
        if news {
            self.grown.notify_waiters();
        }
        news
    }

    /// Waits for changes after `from`; returns all of them, at least one, in order, with the cursor behind the last.
    ///
    /// # Cancel safety
    /// It keeps no place of its own: a call that is dropped has taken nothing.
    ///
    /// # Errors
    /// [`LaunchError::Stale`] for a cursor of another epoch, of the future, or older than what is kept.
    pub async fn after(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        loop {
            let grown = self.grown.notified(); // made before the look, so that no change falls between look and wait
            if let Some(found) = self.lock().after(from)? {
                return Ok(found);
            }
            grown.await;
        }
    }

    /// Everything that is known, at its revision: all processes but acknowledged exits, and all hosts.
    #[must_use]
    pub fn listing(&self) -> Listing {
        self.lock().listing()
    }

    /// Forgets these exits. A process that is unknown, or has not exited, is passed over.
    pub fn acknowledge(&self, exits: &[ProcId]) {
        let mut history = self.lock();
        for proc in exits {
            history.forget_exit(proc);
        }
    }

    /// What was not taken, or is no longer kept.
    #[must_use]
    pub fn counts(&self) -> ChangeLogCounts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner) // no code of others runs under it
    }
}

#[derive(Debug)]
struct History {
    epoch: u64,
    bounds: ChangeLogBounds,
    counts: ChangeLogCounts,
    /// Number of changes so far: the revision's `seq`.
    seq: u64,
    /// The latest of them.
    changes: VecDeque<Change>,
    /// What is, with the `seq` that made it so.
    procs: BTreeMap<ProcId, (u64, ProcStatus)>,
    nodes: BTreeMap<NodeId, (u64, NodeStatus)>,
    guards: BTreeMap<NodeId, GuardStatus>,
    /// The links to processes that have not exited.
    links: BTreeMap<ProcId, LinkStatus>,
    /// Those of `procs` that have exited, oldest first.
    exits: BTreeMap<u64, ProcId>,
    /// The latest incarnation of each role whose exit is forgotten: it and all before it are over, unless `procs` has them.
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
            guards: BTreeMap::new(),
            links: BTreeMap::new(),
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
            Change::Said(said) => {
                let lives = self.procs.get(&said.proc).is_some_and(|(_, proc)| !proc.phase.is_exited());
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
            Change::Link(status) => _ = self.links.insert(status.proc.clone(), status.clone()),
            Change::Guard(status) => _ = self.guards.insert(status.node.clone(), status.clone()),
            Change::Said(_) => {}
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
        }
        self.procs.insert(status.proc.clone(), (self.seq, status));
        while self.exits.len() > self.bounds.exits_max
            && let Some((_, oldest)) = self.exits.pop_first()
        {
            self.forget_exit(&oldest);
            self.counts.exits_forgotten += 1;
        }
    }

    fn set_node(&mut self, status: NodeStatus) {
        self.nodes.insert(status.node.clone(), (self.seq, status));
        let left = || self.nodes.values().filter(|(_, n)| n.state == NodeState::Left);
        if left().count() > self.bounds.left_nodes_max
            && let Some(first) = left().min_by_key(|(seq, _)| *seq).map(|(_, n)| n.node.clone())
        {
            self.nodes.remove(&first);
            self.counts.left_nodes_forgotten += 1;
        }
    }

    fn forget_exit(&mut self, proc: &ProcId) {
        let Some((seq, status)) = self.procs.get(proc) else { return };
        if status.phase.is_exited() {
            self.exits.remove(seq);
            self.procs.remove(proc);
            let last = self.over.entry(proc.role.clone()).or_default();
            *last = (*last).max(proc.incarnation);
        }
    }

    /// `None`: nothing yet.
    fn after(&self, from: Revision) -> Result<Option<(Vec<Change>, Revision)>, LaunchError> {
        let missing = self.seq.checked_sub(from.seq).filter(|_| from.epoch == self.epoch).ok_or(LaunchError::Stale)?;
        let known = usize::try_from(missing).ok().and_then(|missing| self.changes.len().checked_sub(missing));
        let first = known.ok_or(LaunchError::Stale)?;
        let changes: Vec<Change> = self.changes.range(first..).cloned().collect();
        Ok((!changes.is_empty()).then(|| (changes, self.revision())))
    }

    fn listing(&self) -> Listing {
        Listing {
            revision: self.revision(),
            procs: self.procs.values().map(|(_, status)| status.clone()).collect(),
            nodes: self.nodes.values().map(|(_, status)| status.clone()).collect(),
            links: self.links.values().cloned().collect(),
            guards: self.guards.values().cloned().collect(),
        }
    }

    fn revision(&self) -> Revision {
        Revision { epoch: self.epoch, seq: self.seq }
    }
}

/// Whether a process may go on from `old` to `new`: forward, or on with more known while it has not ended.
fn may_follow(old: &Phase, new: &Phase) -> bool {
    new.order() > old.order() || (new.order() == old.order() && !old.is_over())
}

#[cfg(test)]
mod tests;

//! What is known of a job's foreign processes: one incarnation for each process of a rank, and the history for owners.
//!
//! It looks at nothing itself: what is seen is told to it.

use super::ForeignCounts;
use super::ending::Key;
use super::find::Found;
use super::streams::Stream;
use crate::job::{ErrorReport, Exit, Incarnation, Name, NodeId, ProcId, Rank, Role, Termination};
use crate::launch::ooms::Ooms;
use crate::launch::{Change, ChangeLog, NodeState, NodeStatus, Phase, ProcStatus};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// A process of a rank.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) proc: ProcId,
    pub(super) key: Key,
    pub(super) may_read: bool,
    pub(super) page: Option<PathBuf>,
    pub(super) streams: [Option<Stream>; 2],
}

/// How far the watch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watching {
    /// There is something to watch.
    Job,
    /// What was to be watched is gone.
    Nothing,
    /// Nobody watches any more.
    Dropped,
}

/// Everything that the launcher's calls, its task and its sources share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) log: ChangeLog,
    pub(super) watching: watch::Sender<Watching>,
    node: NodeId,
    ranks_max: u32,
    book: Mutex<Book>,
    ooms: Mutex<Ooms>,
}

#[derive(Debug, Default)]
struct Book {
    ranks: BTreeMap<Rank, Entry>,
    /// The first rank that has failed since a process was last noticed.
    failed: Option<Rank>,
    counts: ForeignCounts,
}

/// One rank: its latest process, and one that came before that had ended.
#[derive(Debug)]
struct Entry {
    latest: Arc<Process>,
    runs: bool,
    waiting: Option<Found>,
}

impl Shared {
    pub(super) fn new(node: NodeId, ranks_max: u32) -> Shared {
        let log = ChangeLog::starting_now();
        log.push(Change::Node(NodeStatus { node: node.clone(), state: NodeState::Ready, slots: ranks_max }));
        Shared {
            log,
            watching: watch::Sender::new(Watching::Job),
            node,
            ranks_max,
            book: Mutex::default(),
            ooms: Mutex::default(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner) // no code of others runs under it
    }

    /// Kills for lack of memory, and which end each explains.
    pub(super) fn ooms(&self) -> MutexGuard<'_, Ooms> {
        self.ooms.lock().unwrap_or_else(PoisonError::into_inner) // no code of others runs under it
    }

    pub(super) fn counts(&self) -> ForeignCounts {
        self.book().counts
    }

    pub(super) fn count(&self, what: impl FnOnce(&mut ForeignCounts)) {
        what(&mut self.book().counts);
    }

    /// The processes that run, by rank.
    pub(super) fn running(&self) -> Vec<Arc<Process>> {
        self.book().ranks.values().filter(|entry| entry.runs).map(|entry| Arc::clone(&entry.latest)).collect()
    }

    /// The process of a rank that was seen last.
    pub(super) fn latest(&self, rank: Rank) -> Option<(Arc<Process>, bool)> {
        self.book().ranks.get(&rank).map(|entry| (Arc::clone(&entry.latest), entry.runs))
    }

    /// Takes a process that was found. `None`: its rank is out of bounds, or has a process already, after which it comes.
    pub(super) fn admit(&self, found: Found) -> Option<Arc<Process>> {
        let mut book = self.book();
        if found.rank.0 >= self.ranks_max {
            book.counts.ranks_out_of_bounds += 1;
            return None;
        }
        let mut incarnation = Incarnation(1);
        if let Some(entry) = book.ranks.get_mut(&found.rank) {
            if entry.runs {
                entry.waiting = Some(found);
                book.counts.doubles += 1;
                return None;
            }
            incarnation = entry.latest.proc.incarnation.next();
        }
        let Found { rank, key, may_read, page, streams } = found;
        let proc = ProcId { role: Role::Rank(rank), incarnation };
        let process = Arc::new(Process { proc, key, may_read, page, streams });
        book.ranks.insert(rank, Entry { latest: Arc::clone(&process), runs: true, waiting: None });
        book.failed = None; // a new round: what has failed before it explains nothing in it
        self.tell(&process, Phase::Running); // under the lock: the history has the order of the book
        Some(process)
    }

    /// Takes the end of a process. Returns the one that has waited for it, if that still runs.
    pub(super) fn ended(&self, process: &Process, exit: Exit) -> Option<Arc<Process>> {
        let mut book = self.book();
        book.counts.ends_unknown += u64::from(exit.how == Termination::Unknown);
        let rank = process.proc.role.rank()?;
        let entry = book.ranks.get_mut(&rank)?;
        entry.runs = false;
        let waiting = entry.waiting.take().filter(|found| found.key.stat().is_some_and(|stat| !stat.is_zombie()));
        self.tell(process, Phase::Exited(Box::new(exit)));
        drop(book);
        waiting.and_then(|found| self.admit(found))
    }

    /// Whether a rank that ended like this may have been stopped because another had failed: then that one. Else it is
    /// noted as the first that has failed itself.
    pub(super) fn stopped_after(&self, rank: Rank, how: Termination) -> Option<Rank> {
        // Of two ends that come close together the second may be told first.
        let untold =
            || self.running().into_iter().filter(|other| other.key.is_over()).filter_map(|o| o.proc.role.rank());
        let untold = if is_sigterm(how) { untold().find(|other| *other != rank) } else { None };
        let mut book = self.book();
        if book.failed.is_none() && !how.is_success() {
            book.failed = untold.or(Some(rank));
        }
        book.failed.filter(|first| *first != rank && is_a_stop(how))
    }

    /// Whether no other rank writes into the file that this process's standard error is.
    pub(super) fn has_stderr_alone(&self, process: &Process) -> bool {
        let id = |process: &Process| process.streams[1].as_ref().map(|stream| stream.id);
        let book = self.book();
        let others = book.ranks.values().filter(|entry| entry.latest.proc.role != process.proc.role);
        id(process).is_some_and(|own| others.map(|entry| id(&entry.latest)).all(|other| other != Some(own)))
    }

    fn tell(&self, process: &Process, phase: Phase) {
        let Key { pid, start_time } = process.key;
        self.log.push(Change::Proc(ProcStatus {
            proc: process.proc.clone(),
            node: Some(self.node.clone()),
            instance: Name::from(format!("{pid}:{start_time}")),
            pid: u32::try_from(pid).ok(),
            phase,
        }));
    }
}

/// Whether this is an end that launchers give to ranks: SIGTERM, and SIGKILL for those that do not follow it.
const fn is_a_stop(how: Termination) -> bool {
    is_sigterm(how) || matches!(how, Termination::Signal { number: 9, .. })
}

const fn is_sigterm(how: Termination) -> bool {
    matches!(how, Termination::Signal { number: 15, .. })
}

/// What is said of a rank that was stopped after another had failed.
pub(super) fn stopped_report(first: Rank, how: Termination) -> ErrorReport {
    ErrorReport {
        family: Name::new("launcher"),
        code: Name::new("stopped-with-the-others"),
        text: format!("{how} came after {first} had failed: whoever runs the job stops the others then"),
        follow_up: true,
        retry_free: false,
        step: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Termination = Termination::Signal { number: 15, core_dumped: false };
    const KILL: Termination = Termination::Signal { number: 9, core_dumped: false };

    fn shared() -> Shared {
        Shared::new(NodeId(Name::new("here")), 4)
    }

    /// A process of `rank`; this test's own, so that it runs.
    fn found(rank: u32) -> Found {
        let own = i32::try_from(std::process::id()).unwrap();
        let key = Key::of(own).unwrap();
        Found { rank: Rank(rank), key, may_read: true, page: None, streams: [None, None] }
    }

    fn told(shared: &Shared) -> Vec<(ProcId, bool)> {
        shared.log.listing().procs.into_iter().map(|status| (status.proc, status.phase.is_exited())).collect()
    }

    #[test]
    fn each_process_of_a_rank_is_an_incarnation_of_its_own() {
        let shared = shared();
        let first = shared.admit(found(2)).unwrap();
        assert!(shared.ended(&first, Exit::new(KILL)).is_none());
        let second = shared.admit(found(2)).unwrap();
        assert_eq!(second.proc, ProcId::rank(2, 2));
        assert_eq!(told(&shared), [(ProcId::rank(2, 1), true), (ProcId::rank(2, 2), false)]);
        assert_eq!(shared.running().len(), 1);
    }

    #[test]
    fn a_second_process_of_a_rank_waits_for_the_end_of_the_first_and_is_counted() {
        let shared = shared();
        let first = shared.admit(found(0)).unwrap();
        assert!(shared.admit(found(0)).is_none());
        assert_eq!(told(&shared).len(), 1);
        let second = shared.ended(&first, Exit::new(KILL)).unwrap();
        assert_eq!((second.proc.clone(), shared.counts().doubles), (ProcId::rank(0, 2), 1));
    }

    #[test]
    fn one_that_has_waited_and_ended_meanwhile_was_never_there() {
        let shared = shared();
        let first = shared.admit(found(0)).unwrap();
        let earlier = Key { start_time: 1, ..found(0).key };
        assert!(shared.admit(Found { key: earlier, ..found(0) }).is_none());
        assert!(shared.ended(&first, Exit::new(KILL)).is_none());
    }

    #[test]
    fn ranks_out_of_bounds_are_counted_and_left_alone() {
        let shared = shared();
        assert!(shared.admit(found(4)).is_none());
        assert_eq!((told(&shared).len(), shared.counts().ranks_out_of_bounds), (0, 1));
    }

    #[test]
    fn who_is_stopped_after_another_has_failed_is_not_the_first() {
        let shared = shared();
        let first = shared.admit(found(1)).unwrap();
        assert_eq!(shared.stopped_after(Rank(1), KILL), None, "nobody has failed before");
        assert_eq!(shared.stopped_after(Rank(0), TERM), Some(Rank(1)));
        assert_eq!(shared.stopped_after(Rank(3), KILL), Some(Rank(1)));
        assert_eq!(shared.stopped_after(Rank(2), Termination::Code(1)), None, "nobody stops a rank with an exit code");
        assert!(shared.ended(&first, Exit::new(KILL)).is_none());
        shared.admit(found(1)).unwrap();
        assert_eq!(shared.stopped_after(Rank(0), TERM), None, "in a new round it would be the first");
    }

    #[test]
    fn a_success_explains_nothing() {
        let shared = shared();
        assert_eq!(shared.stopped_after(Rank(1), Termination::Code(0)), None);
        assert_eq!(shared.stopped_after(Rank(0), TERM), None);
        assert_eq!(shared.stopped_after(Rank(2), TERM), Some(Rank(0)));
    }

    #[test]
    fn unknown_ends_are_counted() {
        let shared = shared();
        let process = shared.admit(found(0)).unwrap();
        shared.ended(&process, Exit::new(Termination::Unknown));
        assert_eq!(shared.counts().ends_unknown, 1);
    }
}

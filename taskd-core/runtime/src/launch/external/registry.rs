//! Table of a job's external processes: one incarnation for each process of a rank, and the change history for owners.
//!
//! This module examines no process itself; it records what it is passed.

use super::ExternalCounts;
use super::discovery::Found;
use super::exit::Key;
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

/// State of the observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watching {
    /// The watched processes exist.
    Job,
    /// The watched processes are gone.
    Nothing,
    /// The observer was dropped.
    Dropped,
}

/// State shared by the launcher's calls, its task and its sources.
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
    /// The first rank that has failed since the last new process was added.
    failed: Option<Rank>,
    counts: ExternalCounts,
}

/// One rank: its latest process, and a further one that was found while that one still ran.
#[derive(Debug)]
struct Entry {
    latest: Arc<Process>,
    runs: bool,
    waiting: Option<Found>,
}

impl Shared {
    pub(super) fn new(node: NodeId, ranks_max: u32) -> Shared {
        let log = ChangeLog::starting_now();
        log.push(Change::Node(NodeStatus::new(node.clone(), NodeState::Ready, ranks_max)));
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
        self.book.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs under the lock
    }

    /// Returns the OOM kills, with the ends that each explains.
    pub(super) fn ooms(&self) -> MutexGuard<'_, Ooms> {
        self.ooms.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs under the lock
    }

    pub(super) fn counts(&self) -> ExternalCounts {
        self.book().counts
    }

    pub(super) fn count(&self, what: impl FnOnce(&mut ExternalCounts)) {
        what(&mut self.book().counts);
    }

    /// Returns the running processes, by rank.
    pub(super) fn running(&self) -> Vec<Arc<Process>> {
        self.book().ranks.values().filter(|entry| entry.runs).map(|entry| Arc::clone(&entry.latest)).collect()
    }

    /// Returns the latest process of a rank, and true if it runs.
    pub(super) fn latest(&self, rank: Rank) -> Option<(Arc<Process>, bool)> {
        self.book().ranks.get(&rank).map(|entry| (Arc::clone(&entry.latest), entry.runs))
    }

    /// Records a process that was found. Returns `None` if its rank is out of bounds, or if its rank still has a
    /// running process; in the second case the process is admitted after that one ends.
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
        book.failed = None; // a new round: an earlier failure explains nothing in it
        self.report(&process, Phase::Running); // under the lock, so that the history has the table's order
        Some(process)
    }

    /// Records the end of a process. Returns the process that waited for it, if that one still runs.
    pub(super) fn ended(&self, process: &Process, exit: Exit) -> Option<Arc<Process>> {
        let mut book = self.book();
        book.counts.ends_unknown += u64::from(exit.how == Termination::Unknown);
        let rank = process.proc.role.rank()?;
        let entry = book.ranks.get_mut(&rank)?;
        entry.runs = false;
        let waiting = entry.waiting.take().filter(|found| found.key.stat().is_some_and(|stat| !stat.is_zombie()));
        self.report(process, Phase::Exited(Box::new(exit)));
        drop(book);
        waiting.and_then(|found| self.admit(found))
    }

    /// Returns the rank whose failure may be the reason that this rank was stopped; `None` if this rank failed by
    /// itself, which is then recorded as the first failure if there was none.
    pub(super) fn stopped_after(&self, rank: Rank, how: Termination) -> Option<Rank> {
        // Of two ends in quick succession, the second may be reported first.
        let unreported =
            || self.running().into_iter().filter(|other| other.key.is_over()).filter_map(|o| o.proc.role.rank());
        let unreported = if is_sigterm(how) { unreported().find(|other| *other != rank) } else { None };
        let mut book = self.book();
        if book.failed.is_none() && !how.is_success() {
            book.failed = unreported.or(Some(rank));
        }
        book.failed.filter(|first| *first != rank && is_a_stop(how))
    }

    /// Returns true if no other rank writes to the file that is this process's standard error.
    pub(super) fn has_stderr_alone(&self, process: &Process) -> bool {
        let id = |process: &Process| process.streams[1].as_ref().map(|stream| stream.id);
        let book = self.book();
        let others = book.ranks.values().filter(|entry| entry.latest.proc.role != process.proc.role);
        id(process).is_some_and(|own| others.map(|entry| id(&entry.latest)).all(|other| other != Some(own)))
    }

    fn report(&self, process: &Process, phase: Phase) {
        let Key { pid, start_time } = process.key;
        self.log.push(Change::Proc(
            ProcStatus::new(process.proc.clone(), Name::from(format!("{pid}:{start_time}")), phase)
                .with_node(self.node.clone())
                .with_pid(u32::try_from(pid).ok()),
        ));
    }
}

/// Returns true if launchers stop ranks in this way: by SIGTERM, or by SIGKILL if a rank does not react to SIGTERM.
const fn is_a_stop(how: Termination) -> bool {
    is_sigterm(how) || matches!(how, Termination::Signal { number: 9, .. })
}

const fn is_sigterm(how: Termination) -> bool {
    matches!(how, Termination::Signal { number: 15, .. })
}

/// Makes the error report of a rank that was stopped after another had failed.
pub(super) fn stopped_report(first: Rank, how: Termination) -> ErrorReport {
    ErrorReport::new(
        "launcher",
        "stopped-with-the-others",
        format!("{how} came after {first} had failed: the job's own launcher then stops the other ranks"),
    )
    .with_follow_up(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Termination = Termination::Signal { number: 15, core_dumped: false };
    const KILL: Termination = Termination::Signal { number: 9, core_dumped: false };

    fn shared() -> Shared {
        Shared::new(NodeId(Name::new("here")), 4)
    }

    /// Returns a process of `rank`: this test's own process, so that it exists.
    fn found(rank: u32) -> Found {
        let own = i32::try_from(std::process::id()).unwrap();
        let key = Key::of(own).unwrap();
        Found { rank: Rank(rank), key, may_read: true, page: None, streams: [None, None] }
    }

    fn reported(shared: &Shared) -> Vec<(ProcId, bool)> {
        shared.log.listing().procs.into_iter().map(|status| (status.proc, status.phase.is_exited())).collect()
    }

    #[test]
    fn each_process_of_a_rank_is_an_incarnation_of_its_own() {
        let shared = shared();
        let first = shared.admit(found(2)).unwrap();
        assert!(shared.ended(&first, Exit::new(KILL)).is_none());
        let second = shared.admit(found(2)).unwrap();
        assert_eq!(second.proc, ProcId::rank(2, 2));
        assert_eq!(reported(&shared), [(ProcId::rank(2, 1), true), (ProcId::rank(2, 2), false)]);
        assert_eq!(shared.running().len(), 1);
    }

    #[test]
    fn a_second_process_of_a_rank_waits_for_the_first_and_is_counted() {
        let shared = shared();
        let first = shared.admit(found(0)).unwrap();
        assert!(shared.admit(found(0)).is_none());
        assert_eq!(reported(&shared).len(), 1);
        let second = shared.ended(&first, Exit::new(KILL)).unwrap();
        assert_eq!((second.proc.clone(), shared.counts().doubles), (ProcId::rank(0, 2), 1));
    }

    #[test]
    fn a_waiting_process_that_ended_meanwhile_is_never_admitted() {
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
        assert_eq!((reported(&shared).len(), shared.counts().ranks_out_of_bounds), (0, 1));
    }

    #[test]
    fn a_stopped_rank_is_attributed_to_the_rank_that_failed_first() {
        let shared = shared();
        let first = shared.admit(found(1)).unwrap();
        assert_eq!(shared.stopped_after(Rank(1), KILL), None, "no rank has failed before");
        assert_eq!(shared.stopped_after(Rank(0), TERM), Some(Rank(1)));
        assert_eq!(shared.stopped_after(Rank(3), KILL), Some(Rank(1)));
        assert_eq!(
            shared.stopped_after(Rank(2), Termination::Code(1)),
            None,
            "a rank is not stopped with an exit code"
        );
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

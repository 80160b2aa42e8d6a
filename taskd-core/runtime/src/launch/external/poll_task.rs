//! The task that follows a job: it scans for processes periodically, and waits for the end of each.
//!
//! It reads outside the async runtime's threads, and never acts on a process.

use super::discovery::{Finder, Look, Selection};
use super::exit::EndWatch;
use super::registry::{Process, Shared, Watching, stopped_report};
use crate::job::{Exit, Termination};
use crate::launch::interval::Ticks;
use rustix::process::Pid;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Time limit for the ends of the ranks, after the watched processes are gone.
const LAST_ENDS_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for reading the end of a rank's stderr file.
const TAIL_WITHIN: Duration = Duration::from_secs(1);

/// The task's state. The task runs until it is dropped.
pub(super) struct Follower {
    pub(super) shared: Arc<Shared>,
    pub(super) every: Duration,
    /// Tasks that each wait for the end of one process, and return the process that follows it in the same rank.
    ends: JoinSet<Option<Arc<Process>>>,
    /// Time at which the watched processes were found to be gone.
    gone: Option<Instant>,
    /// True once any watched process was found.
    seen: bool,
}

impl Follower {
    pub(super) fn new(shared: Arc<Shared>, every: Duration) -> Follower {
        Follower { shared, every, ends: JoinSet::new(), gone: None, seen: false }
    }

    /// Records the result of a scan.
    pub(super) fn take(&mut self, look: Look) {
        self.seen |= !look.is_empty;
        if look.is_empty && self.seen {
            self.gone.get_or_insert_with(Instant::now);
        }
        self.shared.count(|counts| {
            counts.looks += 1;
            counts.passed_over += look.passed_over;
            counts.unreadable += look.unreadable;
        });
        for found in look.new {
            if let Some(process) = self.shared.admit(found) {
                self.await_end(process);
            }
        }
    }

    /// Scans periodically.
    pub(super) async fn follow(mut self, finder: Finder) {
        let mut ticks = Ticks::new(self.every);
        let mut finder = Some(finder).filter(|finder| !matches!(finder.selection, Selection::Named(_))); // known already
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.ends.join_next() => {
                    if let Ok(Some(next)) = ended {
                        self.await_end(next);
                    }
                }
                () = ticks.next() => {
                    match finder.take() {
                        Some(again) if self.gone.is_none() => finder = self.look(again).await,
                        _ => {}
                    }
                    for text in self.shared.ooms().unexplained(std::time::Instant::now()) {
                        tracing::warn!("{text}");
                    }
                    self.report_if_gone(finder.is_some());
                }
            }
        }
    }

    async fn look(&mut self, mut finder: Finder) -> Option<Finder> {
        let looked = tokio::task::spawn_blocking(move || (finder.look(), finder)).await;
        let (look, finder) = looked.ok()?; // it panicked, or the runtime ends
        match look {
            Ok(look) => self.take(look),
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(self.gone.insert(Instant::now())),
            Err(error) => tracing::warn!(%error, "the processes to be watched cannot be listed; trying again"),
        }
        Some(finder)
    }

    /// Publishes the end of the observation: the watched processes are gone, and the ends of all ranks are reported.
    fn report_if_gone(&self, looks: bool) {
        let waited = self.gone.is_some_and(|gone| gone.elapsed() >= LAST_ENDS_WITHIN);
        if waited || (!looks && self.shared.running().is_empty()) {
            self.shared.watching.send_if_modified(|now| {
                let news = *now < Watching::Nothing;
                *now = (*now).max(Watching::Nothing);
                news
            });
        }
    }

    fn await_end(&mut self, process: Arc<Process>) {
        let (shared, every) = (Arc::clone(&self.shared), self.every);
        let watch = EndWatch::new(process.key, process.may_read);
        let pid = Pid::from_raw(process.key.pid);
        let oom_place = pid.and_then(|pid| shared.ooms().place_of(pid));
        shared.count(|counts| counts.looked_for += u64::from(!watch.is_reported()));
        self.ends.spawn(async move {
            watch.ended(every).await;
            let how = watch.how().await;
            let mut exit = exit(&shared, &process, how).await;
            if let Some(pid) = pid.filter(|_| exit.error.is_none()) {
                exit.error = shared.ooms().explain(oom_place, pid, how).map(Box::new);
            }
            shared.ended(&process, exit)
        });
    }
}

/// Makes the exit with all available details.
async fn exit(shared: &Shared, process: &Arc<Process>, how: Termination) -> Exit {
    let mut exit = Exit::new(how);
    let Some(rank) = process.proc.role.rank() else { return exit };
    let first = shared.stopped_after(rank, how);
    exit.error = first.map(|first| Box::new(stopped_report(first, how)));
    if !how.is_success() && shared.has_stderr_alone(process) {
        let process = Arc::clone(process);
        let read = move || process.streams[1].as_ref()?.tail(Exit::STDERR_TAIL_BYTES_MAX).ok();
        let tail = tokio::time::timeout(TAIL_WITHIN, tokio::task::spawn_blocking(read)).await;
        exit.stderr_tail = tail.ok().and_then(Result::ok).flatten().unwrap_or_default();
    }
    exit
}

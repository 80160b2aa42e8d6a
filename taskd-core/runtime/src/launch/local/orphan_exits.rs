//! The ends of processes whose guard is gone: they die with it, and their deaths are reported before their memory is
//! freed.
//!
//! This module kills no process, and takes a process for dead only if the kernel reports it so.

use super::history::History;
use crate::job::Termination;
use crate::launch::Phase;
use crate::launch::guard::how_it_ended;
use crate::launch::guard::wire::ProcReport;
use crate::proc_fs::Stat;
use rustix::process::{Pid, Signal};
use std::time::Duration;
use tokio::time::Instant;

/// Interval between two checks while there is no guard, which lasts some seconds at most ([`guards`](super::guards)).
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Time for dying processes to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Time for a process to begin to die after its guard is gone.
const DYING_WITHIN: Duration = Duration::from_millis(100);

/// Termination of the processes that die with their guard.
const KILLED: Termination = Termination::Signal { number: Signal::KILL.as_raw(), core_dumped: false };

/// Reports the deaths of all running processes; returns when all are dying and reported. Closed links are reported
/// first, and ranks last, so that the kernel waits for all of these simultaneous deaths rather than reacting to one as
/// if the other ranks could continue.
pub(super) async fn report(history: &History) {
    loop {
        let running = history.running();
        let dying: Option<Vec<Termination>> = running.iter().map(how_it_dies).collect();
        if let Some(dying) = dying {
            history.unlink_all();
            for (report, how) in running.into_iter().zip(dying).rev() {
                history.learn(ProcReport { phase: Phase::Dead(how), ..report });
            }
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns when all these processes are gone, or after some seconds: until then they hold memory, ports and devices
/// that their replacements need. A dying process has no environment any more, so a search for its mark would not find
/// it; a process that does not begin to die is left to that search.
pub(super) async fn are_over(reports: &[ProcReport]) {
    let began = Instant::now();
    let is_in_the_way = |report: &ProcReport| match state_of(report) {
        Some(stat) if stat.is_exiting() => began.elapsed() < GONE_WITHIN,
        Some(_) => began.elapsed() < DYING_WITHIN,
        None => false,
    };
    while reports.iter().any(is_in_the_way) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the state of the process if it has not ended.
fn state_of(report: &ProcReport) -> Option<Stat> {
    let pid = i32::try_from(report.pid).ok().and_then(Pid::from_raw)?;
    Stat::read(pid).filter(|stat| stat.start_time == report.start_time && !stat.is_zombie())
}

/// Returns how the process ends, if it is certain that none of its threads returns to the program. Only SIGKILL is
/// reported as such: a broken pipe to the guard, or a service that ended first, makes programs end in ways that are not
/// their fault.
fn how_it_dies(report: &ProcReport) -> Option<Termination> {
    let pid = i32::try_from(report.pid).ok().and_then(Pid::from_raw)?;
    let how = how_it_ended(pid, report.start_time)?;
    Some(if how == KILLED { how } else { Termination::Unknown })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Generation, Incarnation, Name, NodeId, ProcId, Rank, Role};
    use crate::launch::guard::wire::JobId;
    use crate::launch::{Change, ControlLink, LinkStatus, LoopPosition};
    use rustix::process::{WaitId, WaitIdOptions};
    use std::process::{Child, Command, Stdio};

    fn start(history: &History, rank: u32) -> Child {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let start_time = Stat::read(Pid::from_child(&child)).unwrap().start_time;
        let proc = ProcId { role: Role::Rank(Rank(rank)), incarnation: Incarnation(1) };
        history.learn(ProcReport { proc, pid: child.id(), start_time, phase: Phase::Running, page: None });
        child
    }

    fn phases(history: &History) -> Vec<Phase> {
        history.reports().into_iter().map(|report| report.phase).collect()
    }

    fn link(history: &History, rank: u32) {
        let linked = ControlLink::new(Generation(1), "test", LoopPosition::InLoop);
        assert!(history.log.push(Change::Link(LinkStatus::new(ProcId::rank(rank, 1), Some(linked)))));
    }

    #[tokio::test]
    async fn deaths_of_orphans_are_reported_together_once_all_are_dying() {
        let history = History::new(JobId("job".into()), NodeId(Name::new("here")), 8);
        let mut ranks = [start(&history, 0), start(&history, 1), start(&history, 2)];
        [0, 1].into_iter().for_each(|rank| link(&history, rank));
        let before = history.log.listing().revision;
        ranks[0].kill().unwrap();
        let reporting = report(&history);
        tokio::pin!(reporting);
        ranks[0].wait().unwrap();
        rustix::process::kill_process(Pid::from_child(&ranks[2]), Signal::PIPE).unwrap(); // its output went to the guard
        let waited = tokio::time::timeout(LOOK_EVERY * 20, &mut reporting).await;
        assert!(waited.is_err() && phases(&history).iter().all(|phase| *phase == Phase::Running), "one of them runs");
        ranks[1].kill().unwrap();
        reporting.await;
        let changes = history.log.after(before).await.unwrap().0;
        let is_cut = |change: &Change| matches!(change, Change::Link(LinkStatus { link: None, .. }));
        assert!(
            changes.len() == 5 && changes[..2].iter().all(is_cut),
            "no process is reached any more, and then: {changes:?}"
        );
        // The termination of a reaped process is unknown; a process that the guard's end has ended in another way is
        // not blamed for it.
        let dead = [Termination::Unknown, KILLED, Termination::Unknown].map(Phase::Dead);
        assert_eq!(phases(&history), dead);
        history.lose_all();
        let how: Vec<_> = phases(&history).iter().map(|phase| (phase.is_exited(), phase.termination())).collect();
        assert_eq!(how, dead.map(|phase| (true, phase.termination())), "what is known of the end is not forgotten");
        ranks[1..].iter_mut().for_each(|rank| _ = rank.wait().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_waited_for_until_it_is_gone_or_does_not_begin_to_die() {
        let history = History::new(JobId("job".into()), NodeId(Name::new("here")), 8);
        let mut rank = start(&history, 0);
        let reports = history.running();
        let began = Instant::now();
        are_over(&reports).await;
        assert!(began.elapsed() >= DYING_WITHIN, "it lives");
        rank.kill().unwrap();
        let dead = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(Pid::from_child(&rank)), dead).unwrap();
        let began = Instant::now();
        are_over(&reports).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "it is not reaped, and it holds nothing");
        rank.wait().unwrap();
        are_over(&reports).await;
    }

    #[tokio::test]
    async fn a_history_without_processes_reports_no_orphan_deaths() {
        report(&History::new(JobId("job".into()), NodeId(Name::new("here")), 8)).await;
    }
}

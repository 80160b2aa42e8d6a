//! What becomes of processes whose guard is gone: they die with it, and that is told before their memory is given back.
//!
//! It kills nobody, and never takes one for dead of whom the kernel does not say so.

use super::history::History;
use crate::job::Termination;
use crate::launch::Phase;
use crate::launch::guard::how_it_ended;
use crate::launch::guard::proc_fs::Stat;
use crate::launch::guard::wire::ProcReport;
use rustix::process::{Pid, Signal};
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks, while there is no guard: some seconds at most ([`guards`](super::guards)).
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long processes that are dying may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// How long a process may take to begin to die when its guard is gone.
const DYING_WITHIN: Duration = Duration::from_millis(100);

/// What a guard's end is for who dies with it.
const KILLED: Termination = Termination::Signal { number: Signal::KILL.as_raw(), core_dumped: false };

/// Returns when all that runs is dying, and has told of it then. First that nobody can be told anything there any more, and ranks
/// last: so the kernel waits for all of these deaths, which come at once, in place of answering one as if others could go on.
pub(super) async fn tell(history: &History) {
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

/// Returns when none of these processes is there any more, or after some seconds: until then they hold memory, ports and devices that
/// those in their place need. A process that is dying has no environment any more, so that no search by its mark would find it; one
/// that does not begin to die is left to that search.
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

/// Of a process that has not ended.
fn state_of(report: &ProcReport) -> Option<Stat> {
    let pid = i32::try_from(report.pid).ok().and_then(Pid::from_raw)?;
    Stat::read(pid).filter(|stat| stat.start_time == report.start_time && !stat.is_zombie())
}

/// How it ends, if it is certain that none of its threads comes back to the program. Only of who is killed is that told: a pipe to the
/// guard that has broken, or a service that has gone first, lets programs end in ways for which they are not to be blamed.
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
    use crate::launch::{Change, LinkStatus, Linked, Point};
    use rustix::process::{WaitId, WaitIdOptions};
    use std::collections::BTreeSet;
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
        let linked = Linked {
            generation: Generation(1),
            framework: Name::new("test"),
            can: BTreeSet::new(),
            at: Point::Loop,
            state_bytes: None,
            cannot: None,
            sharded: Vec::new(),
            digest: None,
        };
        assert!(history.log.push(Change::Link(LinkStatus { proc: ProcId::rank(rank, 1), linked: Some(linked) })));
    }

    #[tokio::test]
    async fn deaths_are_told_together_and_nobody_is_dead_who_runs() {
        let history = History::new(JobId("job".into()), NodeId(Name::new("here")), 8);
        let mut ranks = [start(&history, 0), start(&history, 1), start(&history, 2)];
        [0, 1].into_iter().for_each(|rank| link(&history, rank));
        let before = history.log.listing().revision;
        ranks[0].kill().unwrap();
        let telling = tell(&history);
        tokio::pin!(telling);
        ranks[0].wait().unwrap();
        rustix::process::kill_process(Pid::from_child(&ranks[2]), Signal::PIPE).unwrap(); // its output went to the guard
        let waited = tokio::time::timeout(LOOK_EVERY * 20, &mut telling).await;
        assert!(waited.is_err() && phases(&history).iter().all(|phase| *phase == Phase::Running), "one of them runs");
        ranks[1].kill().unwrap();
        telling.await;
        let told = history.log.after(before).await.unwrap().0;
        let is_cut = |change: &Change| matches!(change, Change::Link(LinkStatus { linked: None, .. }));
        assert!(told.len() == 5 && told[..2].iter().all(is_cut), "nobody is reached any more, and then: {told:?}");
        // How one ended that was reaped nobody can say, and one that the guard's end has hit in another way is not blamed for it.
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
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody has reaped it, and it holds nothing");
        rank.wait().unwrap();
        are_over(&reports).await;
    }

    #[tokio::test]
    async fn where_nothing_runs_there_is_nothing_to_tell() {
        tell(&History::new(JobId("job".into()), NodeId(Name::new("here")), 8)).await;
    }
}

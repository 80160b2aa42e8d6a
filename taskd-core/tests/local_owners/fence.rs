//! The fence: the guard kills all processes at a deadline, whatever has become of their owner, and of itself.

use crate::harness::tests;
use crate::supervisor::{FENCED, Supervisor, ranks};
use crate::support::*;
use rustix::process::Signal;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

/// Time from the deadline to the last death, on a machine that is busy with other tests.
const BOUND: Duration = Duration::from_secs(3);
/// Long enough to be extended in time on such a machine.
const LONG: Duration = Duration::from_secs(2);

tests![
    ranks_of_a_stopped_owner_are_killed_at_the_deadline,
    ranks_of_a_killed_owner_are_killed_at_the_deadline,
    a_deadline_that_is_extended_or_lifted_kills_nothing,
    a_guard_that_was_stopped_over_the_deadline_kills_first,
    a_new_guard_gets_the_deadline_of_the_old_one,
];

impl Supervisor {
    /// Has the supervisor set a deadline; returns it when the guard has taken it.
    async fn set_deadline(&self, within: Duration) -> Duration {
        std::fs::write(self.path("fence.new"), within.as_millis().to_string()).unwrap();
        std::fs::rename(self.path("fence.new"), self.path("fence")).unwrap();
        let set = || std::fs::read_to_string(self.path("deadline")).ok()?.parse().ok();
        Duration::from_nanos(eventually("the deadline is set", set).await)
    }

    /// Waits until all processes are dead, and asserts that this happens at the deadline.
    async fn all_die_at(&self, deadline: Duration) {
        let pids = self.pids();
        let died = eventually("all processes are dead", || {
            let before = since_boot();
            let alive = pids.iter().filter(|pid| is_alive(**pid)).count();
            // A check that has begun before the deadline may end after it.
            assert!(alive == pids.len() || since_boot() >= deadline, "{:?} too early", deadline - before);
            (alive == 0).then(since_boot)
        })
        .await;
        println!("the last of {} processes died {:?} after the deadline", pids.len(), died - deadline);
        assert!(died < deadline + BOUND);
    }
}

fn is_fenced(exit: &Exit) -> bool {
    let error = exit.error.as_ref().is_some_and(|error| error.family == "guard" && error.code == "Fenced");
    error && matches!(exit.how, Termination::Signal { number: 9, .. })
}

async fn ranks_of_a_stopped_owner_are_killed_at_the_deadline() {
    let mut supervisor = Supervisor::start(FENCED).await;
    let owner = supervisor.process.id();
    let deadline = supervisor.set_deadline(LONG).await;
    send(owner, Signal::STOP);
    supervisor.all_die_at(deadline).await;
    assert_eq!(state_of(owner), Some('T'));
    assert!(is_alive(supervisor.guard));
    send(owner, Signal::CONT);
    let exits = || std::fs::read_to_string(supervisor.path("exits")).ok();
    let exits = eventually("the owner sees the exits", exits).await;
    assert_eq!(exits.matches("guard Fenced").count(), 3, "{exits}");
    let log = supervisor.path("procs/rank-1.1/stderr.log");
    let is_logged = || std::fs::read_to_string(&log).ok()?.contains("taskd: killed by this host's guard").then_some(());
    eventually("the reason is in the log", is_logged).await;
    supervisor.kill();
    send(supervisor.guard, Signal::TERM);
    supervisor.all_is_gone(BOUND).await;
}

async fn ranks_of_a_killed_owner_are_killed_at_the_deadline() {
    let mut supervisor = Supervisor::start(FENCED).await;
    let deadline = supervisor.set_deadline(LONG).await;
    supervisor.kill();
    supervisor.all_die_at(deadline).await;
    let launcher = builder(supervisor.dir.path()).build().await.unwrap();
    assert_eq!(guard_pid(supervisor.dir.path()), supervisor.guard, "the guard keeps the exits");
    for rank in 0..3 {
        let exit = exit_of(&launcher, &ProcId::rank(rank, 1)).await;
        assert!(is_fenced(&exit), "{exit:?}");
    }
    assert_eq!(launcher.counters().await.unwrap().guard.fenced, 3);
    let next = batch(2, [sleeper()]);
    launcher.start(&next).await.unwrap();
    assert!(is_alive(pid_of(&launcher, &next.starts[0].proc).await));
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_deadline_that_is_extended_or_lifted_kills_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let orders = batch(1, [sleeper(), sleeper()]);
    launcher.start(&orders).await.unwrap();
    let until = since_boot() + LONG + LONG / 2;
    while since_boot() < until {
        launcher.set_deadline(Some(since_boot() + LONG));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    launcher.set_deadline(None);
    tokio::time::sleep(LONG + LONG / 4).await;
    for order in &orders.starts {
        assert!(is_alive(pid_of(&launcher, &order.proc).await));
    }
    let counters = launcher.counters().await.unwrap();
    assert_eq!(counters.guard.fenced, 0);
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_guard_that_was_stopped_over_the_deadline_kills_first() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let orders = batch(1, ranks(dir.path()));
    launcher.start(&orders).await.unwrap();
    let deadline = since_boot() + LONG;
    launcher.set_deadline(Some(deadline));
    for _ in 0..2 {
        launcher.counters().await.unwrap(); // the first may have been sent before the deadline
    }
    let guard = guard_pid(dir.path());
    send(guard, Signal::STOP);
    let pids = [0, 1, 2].map(|rank| ProcId::rank(rank, 1));
    let late = batch(2, [sleeper(), sleeper(), sleeper(), sleeper()]);
    let late = StartBatch::new(late.world.clone(), late.starts[3..].to_vec());
    let continued = async {
        while since_boot() < deadline + Duration::from_millis(200) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for proc in &pids {
            assert!(is_alive(pid_of(&launcher, proc).await), "nothing else ends them");
        }
        launcher.set_deadline(Some(since_boot() + PATIENCE)); // too late for them
        let begun = since_boot();
        send(guard, Signal::CONT);
        begun
    };
    // It was ordered before the deadline, and reaches the guard after it.
    let (refused, begun) = tokio::join!(launcher.start(&late), continued);
    assert!(matches!(&refused, Err(LaunchError::Unreachable(why)) if why.contains("lease")), "{refused:?}");
    for proc in &pids {
        let exit = exit_of(&launcher, proc).await;
        assert!(is_fenced(&exit), "{exit:?}");
    }
    println!("all exits {:?} after the guard has continued", since_boot() - begun);
    for _ in 0..2 {
        launcher.counters().await.unwrap();
    }
    launcher.start(&late).await.unwrap(); // there is a new deadline
    assert_eq!(launcher.counters().await.unwrap().guard.fenced, 3, "executed once");
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_new_guard_gets_the_deadline_of_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let first = batch(1, [sleeper()]);
    launcher.start(&first).await.unwrap();
    let deadline = since_boot() + LONG * 2;
    launcher.set_deadline(Some(deadline));
    send(guard_pid(dir.path()), Signal::KILL);
    let exit = exit_of(&launcher, &first.starts[0].proc).await;
    assert!(!is_fenced(&exit), "{exit:?}");
    let second = batch(2, [sleeper()]);
    launcher.start(&second).await.unwrap();
    let exit = exit_of(&launcher, &second.starts[0].proc).await;
    assert!(is_fenced(&exit) && since_boot() >= deadline, "{exit:?}");
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

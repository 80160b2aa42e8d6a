//! What an operator sees of a job: in its log, by status, in the report, and in a listing of the journal.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod messages;

use messages::Messages;
use std::path::Path;
use std::time::{Duration, SystemTime};
use taskd_core::detect::ExitDetector;
use taskd_core::job::*;
use taskd_core::journal::{dump, dump_decisions};
use taskd_core::kernel::{INCIDENTS_SHOWN_MAX, JobReport, JobStatus, ORDERS_KEPT_MAX, Order};
use taskd_core::launch::*;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Problem, Runtime, RuntimeBuilder, RuntimeHandle};
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::Level;

const PATIENCE: Duration = Duration::from_secs(600);
const DIR: &str = "/run/acme/procs";

fn builder(launcher: &FakeLauncher, ranks: u32) -> RuntimeBuilder {
    let mut spec = JobSpec::new("test", ranks, FakeProgram::Runs.spec());
    spec.policy.budget.recoveries_max = 1000;
    Runtime::builder()
        .job(spec)
        .detector(ExitDetector::new())
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(launcher.clone())
}

async fn all_run(launcher: &FakeLauncher, handle: &RuntimeHandle, ranks: u32, incarnation: u32) {
    let all = async {
        while !(0..ranks).all(|rank| launcher.runs(&ProcId::rank(rank, incarnation)))
            || !handle.status().await.unwrap().incidents.is_empty()
        {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, all).await.expect("all ranks run in the end");
}

async fn completed(launcher: &FakeLauncher, job: JoinHandle<JobReport>, ranks: u32, incarnation: u32) -> JobReport {
    for rank in 0..ranks {
        assert!(launcher.finish(&ProcId::rank(rank, incarnation), 0));
    }
    let report = timeout(PATIENCE, job).await.expect("the job ends").expect("nothing panics");
    assert!(report.ok, "{}", report.reason);
    report
}

/// A job of two ranks that loses rank 1, with an order that is refused before.
async fn a_loss(launcher: &FakeLauncher, builder: RuntimeBuilder) -> (JobStatus, JobReport) {
    let runtime = builder.build().unwrap();
    let handle = runtime.handle().with_actor("maria");
    let job = tokio::spawn(runtime.run());
    all_run(launcher, &handle, 2, 1).await;
    handle.drain(NodeId(Name::new("n7")), "fan").await.unwrap_err();
    assert!(launcher.kill(&ProcId::rank(1, 1)));
    all_run(launcher, &handle, 2, 2).await;
    let status = handle.status().await.unwrap();
    (status, completed(launcher, job, 2, 2).await)
}

#[tokio::test(start_paused = true)]
async fn an_incident_is_one_sentence_each_when_it_is_opened_decided_and_closed() {
    Messages::listen();
    let launcher = FakeLauncher::with_nodes(["n0"], 4).with_output_in(DIR);
    a_loss(&launcher, builder(&launcher, 2)).await;
    let logged = Messages::here(Level::INFO);
    let of = |begin: &str| -> Vec<&String> { logged.iter().filter(|line| line.starts_with(begin)).collect() };
    let place = "(rank 1#1, process 2 on node n0, output in /run/acme/procs/rank-1.1)";
    let opened = of("incident 1 opened: exit in rank 1, because ");
    assert!(opened.len() == 1 && opened[0].contains("signal 9 (SIGKILL)") && opened[0].ends_with(place), "{logged:#?}");
    let decided = of("incident 1 decided: restart, which costs ");
    assert!(decided.len() == 1 && decided[0].ends_with("999 recoveries are left"), "{logged:#?}");
    let closed = of("incident 1 closed ");
    assert!(closed.len() == 1 && closed[0].ends_with(place), "{logged:#?}");
    assert_eq!(of("incident").len(), 3, "{logged:#?}");
    assert_eq!(
        of("maria orders: drain node n7 (fan): refused, node n7 is not a host of this job").len(),
        1,
        "{logged:#?}"
    );
    let warned = Messages::here(Level::WARN);
    assert!(warned.contains(opened[0]) && !warned.contains(decided[0]) && !warned.contains(closed[0]), "{warned:#?}");
    assert!(logged.last().unwrap().starts_with("the job is over; output of the processes: /run/acme/procs on node n0"));
}

#[tokio::test(start_paused = true)]
async fn control_characters_of_an_order_do_not_reach_the_log() {
    Messages::listen();
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, 1).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    all_run(&launcher, &handle, 1, 1).await;
    handle.pause("one\u{1b}[2J\ntwo").await.unwrap();
    completed(&launcher, job, 1, 1).await;
    let logged = Messages::here(Level::TRACE);
    let line = logged.iter().find(|line| line.starts_with("host orders: pause (one two)"));
    assert!(line.is_some_and(|line| !line.contains(char::is_control)), "{logged:?}");
}

#[allow(clippy::disallowed_methods)] // what the runtime logs of the calendar is compared with it
fn now_unix_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Whether these follow one another, none of them missing.
fn in_order(times: &[Option<WallTime>]) -> bool {
    times.iter().all(Option::is_some) && times.is_sorted()
}

#[tokio::test]
async fn a_closed_incident_has_times_process_and_output_in_the_status() {
    let launcher = FakeLauncher::with_nodes(["n0"], 4).with_output_in(DIR);
    let begun = now_unix_ms();
    let (status, report) = a_loss(&launcher, builder(&launcher, 2)).await;
    assert!(status.incidents.is_empty());
    for incident in [&status.recent[0], &report.incidents[0]] {
        let wall = incident.wall;
        let times = [Some(WallTime::from_unix_ms(begun - 1)), wall.onset, wall.detected, wall.decided, wall.closed];
        assert!(in_order(&times) && wall.resumed == wall.closed, "{times:?}");
        let [proc] = &incident.procs[..] else { panic!("{incident:?}") };
        assert_eq!((&proc.proc, proc.pid, proc.is_cause), (&ProcId::rank(1, 1), Some(2), true));
        assert_eq!(proc.node, Some(NodeId(Name::new("n0"))));
        assert_eq!(proc.output.as_deref(), Some("/run/acme/procs/rank-1.1"));
    }
    assert!(status.wall >= status.recent[0].wall.closed && report.wall >= status.wall, "{status:?}");
    assert_eq!(report.output_dirs[&NodeId(Name::new("n0"))], DIR);
    let order = &status.orders[0];
    assert_eq!((order.by.as_str(), order.taken, order.wall.is_some()), ("maria", false, true));
    assert!(order.answer.starts_with("node n7 is not a host of this job"), "{order:?}");
    let text = report.to_string();
    assert!(text.starts_with("completed after 1 restart: all 2 ranks finished\n  incident 1 at 20"), "{text}");
    assert!(
        text.lines().last().unwrap().starts_with("  output of the processes: /run/acme/procs on node n0"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_not_done_stands_in_the_status_with_its_reason() {
    let launcher = FakeLauncher::new();
    let mut spec = JobSpec::new("test", 1, FakeProgram::Runs.spec());
    spec.policy.strategies.insert(Name::new("restart"), Permission::Never);
    let runtime = builder(&launcher, 1).job(spec).build().unwrap();
    let handle = runtime.handle().with_actor("maria");
    let job = tokio::spawn(runtime.run());
    all_run(&launcher, &handle, 1, 1).await;
    let taken = handle.restart([], "new code").await.unwrap();
    let done = async {
        loop {
            let status = handle.status().await.unwrap();
            if status.incidents.is_empty() && !status.recent.is_empty() {
                return status;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    let status = timeout(PATIENCE, done).await.unwrap();
    let order = &status.orders[0];
    assert_eq!((order.incident, &order.order), (taken.incident, &Order::Restart { ranks: [].into() }));
    assert!(order.taken && order.outcome.as_ref().unwrap().starts_with("not done: "), "{order:?}");
    let report = completed(&launcher, job, 1, 1).await;
    assert!(report.orders == status.orders && report.to_string().contains("maria ordered: restart all ranks: "));
}

#[tokio::test(start_paused = true)]
async fn recent_incidents_and_orders_are_bounded_with_excess_counted() {
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, 1).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    all_run(&launcher, &handle, 1, 1).await;
    let losses = u32::try_from(INCIDENTS_SHOWN_MAX).unwrap() + 3;
    for incarnation in 1..=losses {
        assert!(launcher.kill(&ProcId::rank(0, incarnation)));
        all_run(&launcher, &handle, 1, incarnation + 1).await;
    }
    for _ in 0..ORDERS_KEPT_MAX + 2 {
        handle.pause("").await.unwrap();
    }
    let status = handle.status().await.unwrap();
    assert_eq!((status.recent.len(), status.recent_left_out), (INCIDENTS_SHOWN_MAX, 3));
    assert_eq!(status.recent.last().unwrap().id, IncidentId(losses.into()), "the newest is the last");
    assert_eq!((status.orders.len(), status.orders_left_out), (ORDERS_KEPT_MAX, 2));
    let report = completed(&launcher, job, 1, losses + 1).await;
    assert_eq!((report.incidents.len(), report.orders_left_out), (losses as usize, 2));
    assert!(report.to_string().lines().count() < 60, "{report}");
}

fn listing(
    dir: &Path,
    of: fn(&Path, &mut dyn std::io::Write) -> Result<(), taskd_core::journal::JournalError>,
) -> String {
    let mut text = Vec::new();
    of(dir, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_listing_of_decisions_has_what_an_operator_asks_for_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::with_nodes(["n0"], 4);
    let (_, report) = a_loss(&launcher, builder(&launcher, 2).journal(dir.path())).await;
    let (all, decisions) = (listing(dir.path(), |d, o| dump(d, o)), listing(dir.path(), |d, o| dump_decisions(d, o)));
    let lines: Vec<(&str, &str)> = decisions.lines().map(|line| line.split_once("  ").unwrap()).collect();
    let begins = [
        "start 1 of the supervisor of job test, 2 ranks",
        "announce generation 1 in force",
        "order 1 of maria (fan): drain node n7",
        "reply to order 1: refused, node n7 is not a host",
        "incident 1 opened by exit of rank 1",
        "incident 1 decided: restart",
        "generation 2 in force",
        "incident 1 closed",
        "finish: all 2 ranks finished",
    ];
    for begin in begins.map(|begin| begin.trim_start_matches("announce ")) {
        assert_eq!(lines.iter().filter(|(_, line)| line.starts_with(begin)).count(), 1, "{begin}:\n{decisions}");
    }
    assert_eq!(lines.len(), begins.len(), "{decisions}");
    assert!(all.lines().count() > 2 * lines.len(), "{all}");
    let (at, opened) = lines.iter().find(|(_, line)| line.starts_with("incident 1 opened")).unwrap();
    let apart =
        at.parse::<WallTime>().unwrap().as_unix_ms().abs_diff(report.incidents[0].wall.detected.unwrap().as_unix_ms());
    assert!(apart <= 1, "{apart} ms");
    assert!(opened.ends_with("(rank 1#1, process 2 on node n0)"), "{opened}");
}

#[tokio::test]
async fn a_later_supervisor_knows_when_it_was_under_the_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, 1).journal(dir.path()).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    all_run(&launcher, &handle, 1, 1).await;
    launcher.kill(&ProcId::rank(0, 1));
    all_run(&launcher, &handle, 1, 2).await;
    let before = handle.status().await.unwrap().recent;
    handle.detach(Duration::from_secs(60)).await.unwrap();
    timeout(PATIENCE, job).await.unwrap().unwrap();

    let next = launcher.attach();
    let runtime = builder(&next, 1).journal(dir.path()).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    all_run(&next, &handle, 1, 2).await;
    assert_eq!(handle.status().await.unwrap().recent, before);
    completed(&next, job, 1, 2).await;
}

/// A launcher whose service this program could be, and is not.
struct Uninitialised;

#[async_trait::async_trait]
impl Launcher for Uninitialised {
    fn info(&self) -> LauncherInfo {
        let mut info = LauncherInfo::new("acme");
        info.uninitialised.insert("acme-store/1".into(), "acme::store::init()".into());
        info
    }
    async fn start(&self, _: &StartBatch) -> Result<(), LaunchError> {
        Ok(())
    }
    async fn stop(&self, _: &[ProcId], _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        Ok(Listing::default())
    }
    async fn watch(&self, _: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        std::future::pending().await
    }
    async fn acknowledge(&self, _: &[ProcId]) -> Result<(), LaunchError> {
        Ok(())
    }
}

#[test]
fn a_service_that_would_be_the_host_program_once_more_is_refused() {
    let this = std::env::current_exe().unwrap().display().to_string();
    let problems = |program: &str, word: &str| {
        let mut spec = JobSpec::new("test", 1, WorkerSpec::new(["train"]));
        spec.services.insert(Name::new("store"), std::sync::Arc::new(WorkerSpec::new([program, word])));
        let builder = Runtime::builder().job(spec).launcher(Uninitialised);
        let built = builder.detector(ExitDetector::new()).strategy(Restart::new()).build();
        built.map_or_else(|error| error.problems, |_| Vec::new())
    };
    let refused = problems(&this, "acme-store/1");
    let expected = Problem::Uninitialised { service: Name::new("store"), call: "acme::store::init()".into() };
    assert_eq!(refused, [expected]);
    assert!(refused[0].to_string().contains("call that first in main"), "{}", refused[0]);
    assert_eq!(problems("/bin/sh", "acme-store/1"), [], "another program");
    assert_eq!(problems(&this, "another-word"), [], "another use of this one");
}

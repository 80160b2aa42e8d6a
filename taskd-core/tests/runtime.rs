//! Whole runtimes over in-memory launchers, on paused time: builder, shell, logs, handle.

mod messages;

use messages::Messages;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use taskd_core::detect::{ExitDetector, FaultClass, SilenceDetector, detector_fn};
use taskd_core::job::*;
use taskd_core::kernel::{Branch, Event, JobReport, Outcome};
use taskd_core::launch::*;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{ControlError, Problem, Runtime, RuntimeBuilder, RuntimeHandle, ShutdownMode};
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
use taskd_core::trace::{Fact, Signal, SourceError, SourceInfo, TraceBatch, TraceSource};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

fn builder(launcher: &FakeLauncher, ranks: u32) -> RuntimeBuilder {
    Runtime::builder()
        .job(JobSpec::new("test", ranks, FakeProgram::Runs.spec()))
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(Duration::from_secs(5)))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(launcher.clone())
}

fn finish_all(launcher: &FakeLauncher, ranks: u32, incarnation: u32) {
    for rank in 0..ranks {
        assert!(launcher.finish(&ProcId::rank(rank, incarnation), 0));
    }
}

async fn end(job: tokio::task::JoinHandle<JobReport>) -> JobReport {
    timeout(Duration::from_secs(600), job).await.expect("the job ends").expect("nothing panics")
}

#[tokio::test(start_paused = true)]
async fn killed_rank_is_blamed_all_restart_and_the_job_completes() {
    let launcher = FakeLauncher::new();
    let job = tokio::spawn(builder(&launcher, 4).build().unwrap().run());
    launcher.all_run(4, 1).await;
    launcher.kill(&ProcId::rank(2, 1));
    launcher.all_run(4, 2).await;
    sleep(Duration::from_secs(1)).await;
    finish_all(&launcher, 4, 2);
    let report = end(job).await;
    assert!(report.ok && report.outcome == Outcome::Completed, "{}", report.reason);
    assert_eq!(report.restarts, 1);
    assert_eq!(report.incidents.len(), 1);
    assert_eq!((&report.incidents[0].class, &report.incidents[0].blamed[..]), (&FaultClass::Exit, &[Rank(2)][..]));
    assert!(launcher.list().await.unwrap().procs.is_empty(), "every exit was acknowledged");
}

#[tokio::test(start_paused = true)]
async fn start_line_lists_allowed_and_forbidden_strategies() {
    Messages::listen();
    let launcher = FakeLauncher::new();
    let mut spec = JobSpec::new("test", 1, FakeProgram::Runs.spec());
    spec.policy.strategies.insert(Name::new("restart"), Permission::Never);
    spec.policy.reasons.insert(Name::new("restart"), "its data is on loan".into());
    let job = tokio::spawn(builder(&launcher, 1).job(spec).build().unwrap().run());
    launcher.all_run(1, 1).await;
    finish_all(&launcher, 1, 1);
    assert!(end(job).await.ok);
    let first = Messages::here(tracing::Level::TRACE).swap_remove(0);
    assert_eq!(first, "the runtime starts; allowed: exit; not allowed: restart (its data is on loan)");
}

#[tokio::test(start_paused = true)]
async fn impossible_strategies_and_coverage_are_logged_at_the_start() {
    Messages::listen();
    let launcher = FakeLauncher::new();
    let mut spec = JobSpec::new("test", 2, FakeProgram::Runs.spec());
    spec.policy.in_memory_checkpoints = std::num::NonZeroU64::new(7).map(InMemoryCheckpoints::every);
    (spec.policy.min_ranks, spec.rendezvous_service) = (2, None);
    let runtime = Runtime::builder().job(spec).launcher(launcher.clone()).detectors(taskd_core::detect::defaults());
    let runtime = runtime.strategies(taskd_core::recover::defaults()).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(2, 1).await;
    let status = handle.status().await.unwrap();
    let cannot = ["dump", "dump-exit", "grow", "recover", "shrink"];
    assert_eq!(status.cannot.keys().map(Name::as_str).collect::<Vec<_>>(), cannot);
    finish_all(&launcher, 2, 1);
    assert!(end(job).await.ok);
    let logged = Messages::here(tracing::Level::TRACE);
    assert_eq!(
        logged[0],
        "the runtime starts; allowed: retry, recover-in-place, recover, restart, exit; cannot work for this job: \
         shrink, grow (the job needs all of its 2 ranks; set policy.min_ranks to allow fewer); cannot work for this \
         job: dump, dump-exit (the job names no directory for checkpoints (policy.checkpoint_dir))"
    );
    for (strategy, why) in &status.cannot {
        let is_line = |line: &&String| line.contains(strategy.as_str()) && line.contains(why.as_str());
        assert!(logged.iter().any(|line| is_line(&line)), "{strategy}: status and start lines agree: {logged:?}");
    }
    let covered: Vec<&String> = logged.iter().filter(|line| line.starts_with("when these are lost")).collect();
    assert_eq!(covered.len(), 1, "once: {logged:?}");
    assert!(
        covered[0].contains("one rank: a replica's state, else the copies in memory of every 7 steps"),
        "{covered:?}"
    );
}

#[test]
fn the_builder_reports_everything_at_once() {
    let mut spec = JobSpec::new("a job", 0, WorkerSpec::new([""]));
    spec.policy.strategies.insert(Name::new("restrat"), Permission::Never);
    let error = Runtime::builder()
        .job(spec)
        .detector(detector_fn("twin", |_, _, _| ()))
        .detector(detector_fn("twin", |_, _, _| ()))
        .strategy(Restart::new())
        .build()
        .unwrap_err();
    let text = error.to_string();
    for part in ["job name", "ranks", "worker.argv", "no launcher", "two plugins of kind detector are named twin"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    assert!(text.contains("strategy restrat, which was not added (added: restart)"), "{text}");
    assert_eq!(error.problems.len(), 6);
}

#[test]
fn logs_that_cannot_be_kept_are_a_problem_of_the_build() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = builder(&FakeLauncher::new(), 1).journal(file.path().join("logs")).build().unwrap_err();
    let [Problem::Journal(text)] = &error.problems[..] else { panic!("{error}") };
    assert!(text.contains(&*file.path().to_string_lossy()), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_graceful_stop_waits_for_the_grace_time_and_a_second_one_hurries() {
    let launcher = FakeLauncher::new();
    let mut spec = JobSpec::new("test", 1, FakeProgram::Stubborn.spec());
    spec.policy.termination_grace_period = Duration::from_secs(30);
    let runtime = builder(&launcher, 1).job(spec).build().unwrap();
    let handle: RuntimeHandle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(1, 1).await;
    handle.stop("maintenance").await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(launcher.runs(&ProcId::rank(0, 1)), "it has its grace time");
    handle.stop_now("now").await.unwrap();
    let ended = timeout(Duration::from_secs(5), job).await.expect("at once").expect("nothing panics");
    assert_eq!((ended.outcome, ended.ok, ended.reason.as_str()), (Outcome::Stopped, false, "stopped: maintenance"));
    assert!(!launcher.runs(&ProcId::rank(0, 1)));
}

#[tokio::test(start_paused = true)]
async fn run_until_ends_the_job_in_order() {
    let launcher = FakeLauncher::new();
    let stop = async {
        sleep(Duration::from_secs(3)).await;
        "the host program is ordered to stop"
    };
    let report = builder(&launcher, 2).build().unwrap().run_until(stop).await;
    assert_eq!(report.reason, "stopped: the host program is ordered to stop");
    assert!(launcher.list().await.unwrap().procs.iter().all(|p| p.phase.is_over()));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_token_ends_the_job_in_order() {
    let (launcher, token) = (FakeLauncher::new(), CancellationToken::new());
    let run = builder(&launcher, 2).build().unwrap().run_until_cancelled(token.child_token());
    let job = tokio::spawn(run);
    launcher.all_run(2, 1).await;
    token.cancel();
    let report = end(job).await;
    assert_eq!(report.outcome, Outcome::Stopped);
    assert!(!launcher.runs(&ProcId::rank(0, 1)) && !launcher.runs(&ProcId::rank(1, 1)));
}

#[tokio::test(start_paused = true)]
async fn shutdown_with_terminate_gives_ranks_the_requested_grace() {
    let launcher = FakeLauncher::new();
    let spec = JobSpec::new("test", 1, FakeProgram::Stubborn.spec());
    let runtime = builder(&launcher, 1).job(spec).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(1, 1).await;
    handle.shutdown(ShutdownMode::Terminate { grace: Duration::from_secs(40) }).await.unwrap();
    sleep(Duration::from_secs(39)).await;
    assert!(launcher.runs(&ProcId::rank(0, 1)), "it may save");
    let report = end(job).await;
    assert_eq!((report.outcome, report.restarts), (Outcome::Stopped, 0));
    assert_eq!(handle.shutdown(ShutdownMode::Terminate { grace: Duration::ZERO }).await, Err(ControlError::Over));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_refused_ends_the_job_with_the_launchers_reason() {
    let launcher = FakeLauncher::new();
    let spec = JobSpec::new("test", 2, FakeProgram::Refused.spec());
    let report = end(tokio::spawn(builder(&launcher, 2).job(spec).build().unwrap().run())).await;
    assert!(report.reason.starts_with("the job cannot be started"), "{}", report.reason);
    assert_eq!((report.outcome, report.ok), (Outcome::Failed, false));
}

#[tokio::test(start_paused = true)]
async fn supervisor_after_a_suspension_reports_no_incident() {
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, 2).source(Beats { last: 0 }).build().unwrap();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(2, 1).await;
    sleep(Duration::from_secs(3)).await;
    tokio::time::advance(Duration::from_secs(30)).await; // all processes stood still, this one too
    sleep(Duration::from_secs(3)).await;
    finish_all(&launcher, 2, 1);
    let report = end(job).await;
    assert!(report.ok && report.incidents.is_empty(), "{:?}", report.incidents);
    assert_eq!(report.counts.branches.get(&Branch::Slept), Some(&1));
}

/// Heartbeats of two ranks, once a second.
struct Beats {
    last: u64,
}

#[async_trait::async_trait]
impl TraceSource for Beats {
    fn info(&self) -> SourceInfo {
        SourceInfo::new("beats")
    }
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        sleep(Duration::from_secs(1)).await;
        self.last += 1;
        let beat =
            |r| Fact::new(Domain::Process(Role::Rank(Rank(r))), Signal::Heartbeat).with_incarnation(Incarnation(1));
        Some(Ok(TraceBatch::of(vec![beat(0), beat(1)])))
    }
}

/// A source that delivers nothing but panics or errors.
struct Broken {
    panics: bool,
}

#[async_trait::async_trait]
impl TraceSource for Broken {
    fn info(&self) -> SourceInfo {
        SourceInfo::new(if self.panics { "panics" } else { "fails" })
    }
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        sleep(Duration::from_millis(10)).await;
        assert!(!self.panics, "a bug in a plugin");
        Some(Err(SourceError::Failed("the device is gone".into())))
    }
}

#[tokio::test(start_paused = true)]
async fn broken_sources_are_noted_and_the_job_completes() {
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, 1).source(Broken { panics: true }).source(Broken { panics: false });
    let job = tokio::spawn(runtime.build().unwrap().run());
    launcher.all_run(1, 1).await;
    sleep(Duration::from_secs(2)).await;
    finish_all(&launcher, 1, 1);
    let report = end(job).await;
    assert!(report.ok);
    let mut noted: Vec<String> = report.incidents.iter().map(|i| i.domain.to_string()).collect();
    noted.sort();
    assert!(noted.iter().all(|d| d.starts_with("plugin ")), "{noted:?}");
    let evidence: Vec<String> = report.incidents.iter().flat_map(|i| i.evidence.clone()).collect();
    assert_eq!(report.restarts, 0, "{evidence:?}");
}

#[tokio::test(start_paused = true)]
async fn events_report_the_run_in_order() {
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, 2).build().unwrap();
    let mut events = runtime.handle().events();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(2, 1).await;
    launcher.kill(&ProcId::rank(1, 1));
    launcher.all_run(2, 2).await;
    sleep(Duration::from_secs(1)).await;
    finish_all(&launcher, 2, 2);
    end(job).await;
    let mut story = Vec::new();
    while let Ok(announcement) = events.try_recv() {
        story.push(match &announcement.event {
            Event::Entered { generation, .. } => format!("{generation}"),
            Event::Found { fault, .. } => format!("found {}", fault.primary_suspect().domain),
            Event::Decided(d) => format!("decided {}", d.chosen.as_ref().map_or("nothing", |c| c.strategy.as_str())),
            Event::StageDone { stage, .. } => format!("done {stage}"),
            Event::Closed { .. } => "closed".into(),
            other => format!("{other:?}"),
        });
    }
    assert_eq!(
        story,
        [
            "generation 1",
            "done start",
            "found rank 1",
            "decided restart",
            "done stop",
            "generation 2",
            "done start",
            "closed",
            "done stop"
        ]
    );
}

#[tokio::test]
async fn a_new_supervisor_goes_on_where_the_old_one_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::new();
    let job = tokio::spawn(builder(&launcher, 3).journal(dir.path()).build().unwrap().run());
    launcher.all_run(3, 1).await;
    launcher.kill(&ProcId::rank(0, 1));
    launcher.all_run(3, 2).await;
    sleep(Duration::from_millis(200)).await; // its last records reach the file
    job.abort();
    assert!(job.await.unwrap_err().is_cancelled());

    launcher.kill(&ProcId::rank(1, 2)); // no supervisor is there to see it
    let next = launcher.attach();
    let job = tokio::spawn(builder(&next, 3).journal(dir.path()).build().unwrap().run());
    next.all_run(3, 3).await;
    let untouched = |p: &taskd_core::launch::ProcStatus| p.phase == Phase::Running;
    assert_eq!(next.list().await.unwrap().procs.iter().filter(|p| untouched(p)).count(), 3);
    sleep(Duration::from_millis(200)).await;
    finish_all(&next, 3, 3);
    let report = end(job).await;
    assert!(report.ok, "{}", report.reason);
    assert_eq!(report.restarts, 2, "the first restart is remembered");
    let blamed: Vec<_> = report.incidents.iter().map(|i| i.blamed.clone()).collect();
    assert_eq!(blamed, [vec![Rank(0)], vec![Rank(1)]]);
}

#[tokio::test]
async fn a_new_supervisor_goes_on_with_what_was_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, 3).journal(dir.path()).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(3, 1).await;
    launcher.kill(&ProcId::rank(0, 1));
    launcher.all_run(3, 2).await;
    handle.detach(Duration::from_secs(60)).await.unwrap();
    let report = end(job).await;
    assert_eq!((report.outcome, report.ok, report.restarts), (Outcome::Detached, false, 1));
    assert!(report.reason.contains("handed over"), "{}", report.reason);
    assert_eq!(handle.logs().unwrap().counts().lost, 0);
    assert_eq!(handle.detach(Duration::ZERO).await, Err(ControlError::Over));
    assert!((0..3).all(|rank| launcher.runs(&ProcId::rank(rank, 2))));

    launcher.kill(&ProcId::rank(1, 2)); // no supervisor is there to see it
    let next = launcher.attach();
    let job = tokio::spawn(builder(&next, 3).journal(dir.path()).build().unwrap().run());
    next.all_run(3, 3).await;
    finish_all(&next, 3, 3);
    let report = end(job).await;
    assert_eq!((report.outcome, report.restarts), (Outcome::Completed, 2), "{}", report.reason);
    let blamed: Vec<_> = report.incidents.iter().map(|i| i.blamed.clone()).collect();
    assert_eq!(blamed, [vec![Rank(0)], vec![Rank(1)]], "each exit is seen once");
}

#[tokio::test(start_paused = true)]
async fn detach_refused_by_the_launcher_leaves_the_job_running() {
    let fake = FakeLauncher::new();
    let runtime = Runtime::builder()
        .job(JobSpec::new("test", 2, FakeProgram::Runs.spec()))
        .detector(ExitDetector::new())
        .strategy(Restart::new())
        .launcher(Keeps(fake.clone(), Arc::default()))
        .build()
        .unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    fake.all_run(2, 1).await;
    let refused = handle.detach(Duration::from_secs(60)).await;
    assert!(matches!(&refused, Err(ControlError::Refused(why)) if why.contains("keeps cannot leave")), "{refused:?}");
    fake.kill(&ProcId::rank(1, 1));
    fake.all_run(2, 2).await; // it is watched as before
    finish_all(&fake, 2, 2);
    assert_eq!(end(job).await.outcome, Outcome::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_winds_its_job_down_and_no_other_end_does() {
    let grace = Duration::from_secs(33);
    for mode in [Mode::Enforce, Mode::DryRun] {
        let fake = FakeLauncher::new();
        let mut spec = JobSpec::new("test", 1, FakeProgram::Runs.spec());
        (spec.policy.termination_grace_period, spec.policy.mode) = (grace, mode);
        let run = || {
            let wound_down = Arc::<Mutex<Vec<Duration>>>::default();
            let launcher = Keeps(fake.attach(), Arc::clone(&wound_down));
            let builder = Runtime::builder().job(spec.clone()).launcher(launcher);
            (wound_down, builder.detector(ExitDetector::new()).strategy(Restart::new()).build().unwrap())
        };
        let (wound_down, runtime) = run();
        drop(runtime); // it has not begun
        assert_eq!(*wound_down.lock().unwrap(), [Duration::ZERO; 0]);
        let (wound_down, runtime) = run();
        assert!(timeout(Duration::from_secs(1), runtime.run()).await.is_err());
        // What is only observed belongs to another launcher.
        assert_eq!(*wound_down.lock().unwrap(), if mode == Mode::Enforce { vec![grace] } else { vec![] });
    }
    let fake = FakeLauncher::new();
    let wound_down = Arc::<Mutex<Vec<Duration>>>::default();
    let launcher = Keeps(fake.clone(), Arc::clone(&wound_down));
    let spec = JobSpec::new("test", 1, FakeProgram::Runs.spec());
    let runtime = Runtime::builder().job(spec).launcher(launcher);
    let job = tokio::spawn(runtime.detector(ExitDetector::new()).strategy(Restart::new()).build().unwrap().run());
    fake.all_run(1, 1).await;
    finish_all(&fake, 1, 1);
    assert_eq!((end(job).await.outcome, wound_down.lock().unwrap().len()), (Outcome::Completed, 0));
}

/// A launcher that leaves `detach` as it is, and notes when it is wound down.
struct Keeps(FakeLauncher, Arc<Mutex<Vec<Duration>>>);

#[async_trait::async_trait]
impl Launcher for Keeps {
    taskd_core::delegate!(Launcher to |this| this.0, except info, detach, begin_shutdown);

    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("keeps")
    }
    fn begin_shutdown(&self, grace: Duration) {
        self.1.lock().expect("no test panics under it").push(grace);
    }
}

/// Runs two ranks for a second, and leaves them as a killed supervisor does.
#[allow(clippy::unwrap_used)] // a helper of tests is a test
async fn left_behind(dir: &std::path::Path) -> FakeLauncher {
    let launcher = FakeLauncher::new();
    let job = tokio::spawn(builder(&launcher, 2).journal(dir).build().unwrap().run());
    launcher.all_run(2, 1).await;
    sleep(Duration::from_secs(1)).await;
    job.abort();
    assert!(job.await.unwrap_err().is_cancelled());
    launcher.attach()
}

#[tokio::test(start_paused = true)]
async fn journal_of_other_plugins_is_not_resumed_and_the_job_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    let other = builder(&launcher, 2).detector(detector_fn("new", |_, _, _| ())).journal(dir.path()).build().unwrap();
    let job = tokio::spawn(other.run());
    launcher.all_run(2, 2).await; // what ran is stopped first: its incarnation never runs twice
    assert!(!launcher.runs(&ProcId::rank(0, 1)));
    finish_all(&launcher, 2, 2);
    assert!(end(job).await.ok);
}

#[tokio::test(start_paused = true)]
async fn a_log_of_another_number_of_ranks_is_not_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    let job = tokio::spawn(builder(&launcher, 3).journal(dir.path()).build().unwrap().run());
    launcher.all_run(3, 2).await;
    finish_all(&launcher, 3, 2);
    assert!(end(job).await.ok);
}

#[tokio::test(start_paused = true)]
async fn new_supervisor_with_other_sources_resumes_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    let runtime = builder(&launcher, 2).source(Beats { last: 0 }).journal(dir.path()).build().unwrap();
    let job = tokio::spawn(runtime.run());
    sleep(Duration::from_secs(2)).await;
    assert!((0..2).all(|rank| launcher.runs(&ProcId::rank(rank, 1))), "no rank is started again");
    finish_all(&launcher, 2, 1);
    let report = end(job).await;
    assert!(report.ok && report.restarts == 0, "{}", report.reason);
}

/// A disk that took nothing any more before the supervisor was killed: what the log reports is long past.
#[tokio::test]
async fn journal_cut_before_the_last_restart_leads_to_a_new_incarnation() {
    let [dir, early] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let launcher = FakeLauncher::new();
    let job = tokio::spawn(builder(&launcher, 2).journal(dir.path()).build().unwrap().run());
    launcher.all_run(2, 1).await;
    sleep(Duration::from_millis(200)).await;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, early.path().join(path.file_name().unwrap())).unwrap();
    }
    launcher.kill(&ProcId::rank(0, 1));
    launcher.all_run(2, 2).await;
    job.abort();
    assert!(job.await.unwrap_err().is_cancelled());

    let next = launcher.attach();
    let job = tokio::spawn(builder(&next, 2).journal(early.path()).build().unwrap().run());
    next.all_run(2, 3).await;
    assert!((0..2).all(|rank| !next.runs(&ProcId::rank(rank, 2))), "nothing is left of what the log does not know");
    finish_all(&next, 2, 3);
    let report = end(job).await;
    assert!(report.ok, "{}", report.reason);
}

/// A launcher whose job another supervisor takes over.
#[derive(Debug)]
struct TakenOver(FakeLauncher, Arc<tokio::sync::Notify>);

#[async_trait::async_trait]
impl Launcher for TakenOver {
    taskd_core::delegate!(Launcher to |this| this.0, except watch);

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        tokio::select! {
            biased;
            () = self.1.notified() => Err(LaunchError::Superseded("process 7 has taken this job over".into())),
            changes = self.0.watch(from) => changes,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn superseded_supervisor_ends_and_leaves_the_ranks_running() {
    Messages::listen();
    let (launcher, taken) = (FakeLauncher::new(), Arc::new(tokio::sync::Notify::new()));
    let runtime = Runtime::builder()
        .job(JobSpec::new("test", 3, FakeProgram::Runs.spec()))
        .detector(ExitDetector::new())
        .strategy(Restart::new())
        .launcher(TakenOver(launcher.clone(), Arc::clone(&taken)))
        .build()
        .unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(3, 1).await;
    taken.notify_one();
    let report = end(job).await;
    assert_eq!((report.outcome, report.ok, report.outcome.exit_code()), (Outcome::Superseded, false, 77));
    assert_eq!(report.reason, "process 7 has taken this job over");
    assert!((0..3).all(|rank| launcher.runs(&ProcId::rank(rank, 1))), "they are the other one's");
    assert_eq!(handle.detach(Duration::ZERO).await, Err(ControlError::Over));
    let logged: Vec<_> =
        Messages::here(tracing::Level::WARN).into_iter().filter(|line| line.contains("taken")).collect();
    assert_eq!(logged.len(), 1, "{logged:?}");
}

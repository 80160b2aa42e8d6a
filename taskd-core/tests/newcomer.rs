//! The plugins of the guide, exactly as it shows them, keep the contracts; and a breach is reported in one
//! sentence.

#![allow(clippy::unwrap_used)] // helpers of tests are tests
#![allow(unreachable_pub)] // the guide's plugins are those of crates of their own

#[path = "../src/guide/plugins/children.rs"]
mod children;
#[path = "../src/guide/plugins/detector.rs"]
mod detector;
#[path = "../src/guide/plugins/launcher.rs"]
mod launcher;
#[path = "../src/guide/plugins/source.rs"]
mod source;
#[path = "../src/guide/plugins/strategy.rs"]
mod strategy;

use children::Children;
use detector::LossDetector;
use launcher::OneDeviceEach;
use source::LossFile;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use strategy::StartLost;
use taskd_core::detect::{FaultDetector, Finding, Findings};
use taskd_core::job::{Domain, Name, ProcId};
use taskd_core::launch::*;
use taskd_core::recover::{Incident, Proposal, RecoveryStrategy, RefusalError};
use taskd_core::state::View;
use taskd_core::testing::conformance::{self, Clause, Violation, launcher::Programs};
use taskd_core::testing::doubles::FakeLauncher;
use taskd_core::testing::{Timeline, mocks::MockLauncher};
use taskd_core::trace::*;

const QUIET_MAX: Duration = Duration::from_secs(600);
const EVERY: Duration = Duration::from_millis(10);

/// Lines of a plugin that hold something.
const LINES_MAX: usize = 39;

fn loss(value: f64) -> Signal {
    Signal::Metric { name: Name::new("loss"), value }
}

/// The step behind a loss that counts down from a thousand.
fn number(fact: &Fact) -> Option<u64> {
    match fact.signal {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // the test wrote it
        Signal::Metric { value, .. } => Some(1000 - value as u64),
        _ => None,
    }
}

/// Appends the losses of `steps`.
fn train(path: &Path, steps: impl IntoIterator<Item = u64>) {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    steps.into_iter().for_each(|step| writeln!(file, "{}.0", 1000 - step).unwrap());
}

/// What the suite reports of a plugin that breaks one clause.
fn sentence(broken: Result<conformance::Report, Vec<Violation>>, clause: Clause) -> String {
    let broken = broken.expect_err("a wrong plugin was not reported");
    let found = broken.iter().find(|violation| violation.clause == clause);
    found.unwrap_or_else(|| panic!("{clause} is not among {broken:?}")).to_string()
}

#[test]
fn the_plugins_of_the_guide_are_short() {
    for kind in ["source", "detector", "strategy", "launcher"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/guide/plugins/{kind}.rs"));
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", path.display());
    }
}

// ---- the guide's ----

#[tokio::test(start_paused = true)]
async fn the_guide_source_satisfies_the_source_contract() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loss");
    let make = async || {
        File::create(&path).unwrap();
        LossFile::follow(File::open(&path).unwrap(), EVERY)
    };
    let script = path.clone();
    let suite = conformance::trace_source(make).with_stimulus(move |n| train(&script, 3 * n..3 * n + 3));
    let report = suite.with_numbers(number).assert().await;
    use conformance::trace_source::{ANSWERS_FOR_ITS_DOMAIN, ANSWERS_WHAT_IT_NAMES};
    let skipped: Vec<Clause> = report.skipped().iter().map(|(clause, _)| *clause).collect();
    assert_eq!(skipped, [ANSWERS_WHAT_IT_NAMES, ANSWERS_FOR_ITS_DOMAIN], "it answers no questions");
}

#[tokio::test(start_paused = true)]
async fn the_source_waits_for_the_rest_of_a_line_and_counts_what_is_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loss");
    std::fs::write(&path, "0.5\nwarming up\nnan\n0.").unwrap();
    let mut source = LossFile::follow(File::open(&path).unwrap(), EVERY);
    let found = async |source: &mut LossFile| format!("{:?}", source.next().await.unwrap().unwrap().facts);
    let facts = [loss(0.5), Signal::Lost { count: 1 }, loss(f64::NAN)].map(|signal| Fact::new(Domain::Job, signal));
    assert_eq!(found(&mut source).await, format!("{facts:?}"));
    assert_eq!(found(&mut source).await, "[]");
    File::options().append(true).open(&path).unwrap().write_all(b"25\n").unwrap();
    assert_eq!(found(&mut source).await, format!("{:?}", [Fact::new(Domain::Job, loss(0.25))]));
}

/// Losses that come, stop coming, and are not numbers any more.
fn troubled() -> Timeline {
    let trained = (0..20).fold(Timeline::of_ranks(4), |t, _| t.steady(EVERY * 100).tell(Domain::Job, loss(0.5)));
    trained.wait(QUIET_MAX * 2).tell(Domain::Job, loss(0.4)).wait(EVERY).tell(Domain::Job, loss(f64::NAN))
}

#[test]
fn the_guide_detector_satisfies_the_detector_contract() {
    let make = || LossDetector { quiet_max: QUIET_MAX, due: None };
    let report = conformance::fault_detector(make).with_timeline(troubled()).assert();
    use conformance::fault_detector::{REFUSED_RESTORE_IS_COLD, SNAPSHOT_GOES_ON};
    let skipped: Vec<Clause> = report.skipped().iter().map(|(clause, _)| *clause).collect();
    assert_eq!(skipped, [SNAPSHOT_GOES_ON], "it starts cold");
    assert!(report.checked().contains(&REFUSED_RESTORE_IS_COLD));
}

#[test]
fn the_guide_detector_reports_missing_and_invalid_losses() {
    let mut detector = LossDetector { quiet_max: QUIET_MAX, due: None };
    let mut found = Findings::default();
    for moment in troubled().moments() {
        let mut view = moment.view.clone();
        if let Some(due) = detector.deadline().filter(|due| *due < view.now) {
            view.now = due;
            detector.expire(&view, &mut found);
        }
        detector.observe(&moment.observation, &moment.view, &mut found);
    }
    let findings = found.drain().map(|finding| match finding {
        Finding::Blame(fault) => (fault.primary_suspect().is_cause(), fault.evidence[0].text.clone()),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        findings.collect::<Vec<_>>(),
        [(false, "no more losses arrive".into()), (true, "the loss is not a number".into())]
    );
}

#[test]
fn the_guide_strategy_satisfies_the_strategy_contract() {
    let report = conformance::recovery_strategy(|| StartLost).assert();
    assert!(report.skipped().is_empty(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn the_guide_launcher_satisfies_the_launcher_contract() {
    let fake = FakeLauncher::new();
    let report = conformance::launcher(async |_| OneDeviceEach(fake.attach(), 8), fake.programs()).assert().await;
    assert!(report.skipped().is_empty(), "{report}");
}

/// A launcher as a guide of ours once had it: it forgets what has a default.
struct Forgetful<L>(L);

#[async_trait::async_trait]
impl<L: Launcher> Launcher for Forgetful<L> {
    taskd_core::delegate!(Launcher to |this| this.0, except send_directives, prepare);
}

#[tokio::test(start_paused = true)]
async fn a_wrapping_launcher_that_drops_a_call_violates_its_clause() {
    let fake = FakeLauncher::new();
    let broken = conformance::launcher(async |_| Forgetful(fake.attach()), fake.programs()).check().await;
    assert_eq!(
        sentence(broken, conformance::launcher::CALLS_REACH_INNER),
        "launcher::CALLS_REACH_INNER: `send_directives` was called and never reached the launcher inside (the launcher \
         fake has no link to its processes: they can only be restarted) (and 1 more times); expected: a launcher \
         around another one passes every call on"
    );
}

#[tokio::test]
async fn the_launcher_gives_each_rank_its_device() {
    let spec = std::sync::Arc::new(taskd_core::job::WorkerSpec::new(["train"]));
    let order = |rank| StartOrder::new(ProcId::rank(rank, 1), Place::anywhere(), spec.clone());
    let world = std::sync::Arc::new(taskd_core::job::World::first(Default::default()));
    let batch = StartBatch::new(world, [0, 9].map(order).to_vec());
    let mut inner = MockLauncher::new();
    let devices =
        |batch: &StartBatch| batch.starts.iter().map(|o| o.spec.env["ACME_DEVICE"].clone()).collect::<Vec<_>>();
    inner.expect_start().withf(move |batch| devices(batch) == ["0", "1"]).once().return_const(Ok(()));
    OneDeviceEach(inner, 8).start(&batch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_process_launcher_satisfies_the_launcher_contract() {
    let children = Children::new();
    let report = conformance::launcher(async |_| children.clone(), Programs::shell().unwrap()).assert().await;
    use conformance::launcher::{
        CALLS_REACH_INNER, DETACH_KEEPS, OUT_OF_SIGHT_IS_NOT_ENDED, REFUSED_IS_FINAL, START_ALL_OR_NOTHING,
    };
    let skipped: Vec<Clause> = report.skipped().iter().map(|(clause, _)| *clause).collect();
    let of_others =
        [START_ALL_OR_NOTHING, DETACH_KEEPS, OUT_OF_SIGHT_IS_NOT_ENDED, REFUSED_IS_FINAL, CALLS_REACH_INNER];
    assert_eq!(skipped, of_others);
}

// ---- wrong ones ----

/// Takes the lines first, and then awaits: a caller that drops that call drops them.
struct TakesThenWaits(BufReader<File>);

#[async_trait::async_trait]
impl TraceSource for TakesThenWaits {
    fn info(&self) -> SourceInfo {
        SourceInfo::new("acme.takes-then-waits")
    }
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        let lines = self.0.by_ref().lines().map_while(Result::ok);
        let facts = lines.filter_map(|line| Some(Fact::new(Domain::Job, loss(line.parse().ok()?)))).collect();
        tokio::time::sleep(EVERY).await;
        Some(Ok(TraceBatch::of(facts)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_not_cancel_safe_violates_its_clause() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loss");
    let make = async || {
        File::create(&path).unwrap();
        TakesThenWaits(BufReader::new(File::open(&path).unwrap()))
    };
    let script = path.clone();
    let suite = conformance::trace_source(make).with_stimulus(move |n| train(&script, [n]));
    let broken = suite.with_numbers(number).check().await;
    assert_eq!(
        sentence(broken, conformance::trace_source::CANCEL_SAFE),
        "trace_source::CANCEL_SAFE: 20 facts were returned, and 0 with dropped calls; expected: no fact is lost when a \
         call of `next` is dropped"
    );
}

/// Asks a service about each heartbeat, and waits for an answer that never comes.
struct AsksAService;

impl FaultDetector for AsksAService {
    fn name(&self) -> Name {
        Name::new("acme.asks-a-service")
    }
    fn observe(&mut self, seen: &Observation, _view: &View, _out: &mut Findings) {
        if seen.signal == Signal::Heartbeat {
            let (_service, answer) = mpsc::channel::<()>();
            let _ = answer.recv();
        }
    }
}

#[test]
fn a_blocking_detector_violates_the_quick_clause() {
    let broken = conformance::fault_detector(|| AsksAService).with_patience(Duration::from_secs(1)).check();
    assert_eq!(
        sentence(broken, conformance::fault_detector::QUICK),
        "fault_detector::QUICK: the healthy timeline, observation 4 (rank 0 at 0.100 s): has not returned for 1s; \
         expected: no call blocks"
    );
}

/// Proposes as the guide's one does, and then spoils it.
struct Spoils<F>(F);

impl<F: Fn(Proposal) -> Result<Proposal, RefusalError> + Send + Sync> RecoveryStrategy for Spoils<F> {
    fn name(&self) -> Name {
        StartLost.name()
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        StartLost.propose(incident, view).and_then(&self.0)
    }
}

#[test]
fn a_stateful_strategy_violates_the_pure_clause() {
    let make = || {
        let tries = AtomicU32::new(0);
        Spoils(move |proposal| match tries.fetch_add(1, Ordering::Relaxed) {
            0..3 => Ok(proposal),
            _ => Err("three tries were enough".into()),
        })
    };
    let suite = conformance::recovery_strategy(make).with_seeds(0); // only the incidents that the suite knows by name
    assert_eq!(
        sentence(suite.check(), conformance::recovery_strategy::PURE),
        "recovery_strategy::PURE: it was tried and has failed: `propose` returned the refusal \"three tries were \
         enough\", and then the proposal \"of 8 ranks only 1 must start again\" for 0.0 s of work, 10.0 s down (and 8 \
         more times); expected: the same incident and view give the same answer, independent of earlier calls"
    );
}

#[test]
fn a_strategy_without_a_stage_violates_its_clause() {
    let make = || Spoils(|proposal: Proposal| Ok(proposal.with_stages(Vec::new())));
    let suite = conformance::recovery_strategy(make).with_seeds(0);
    assert_eq!(
        sentence(suite.check(), conformance::recovery_strategy::STAGES_CAN_SUCCEED),
        "recovery_strategy::STAGES_CAN_SUCCEED: a rank has exited: a proposal without a stage (and 14 more times); \
         expected: there is a stage, and each can get the answers it needs in the time it has"
    );
}

/// Asks the platform what has ended whenever something changes, and reports all of it again.
struct TellsAgain<L>(L);

#[async_trait::async_trait]
impl<L: Launcher> Launcher for TellsAgain<L> {
    taskd_core::delegate!(Launcher to |this| this.0, except watch);

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let (mut changes, next) = self.0.watch(from).await?;
        let ended = self.0.list().await?.procs.into_iter().filter(|p| p.phase.is_exited());
        changes.extend(ended.map(Change::Proc));
        Ok((changes, next))
    }
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_reports_an_exit_twice_violates_its_clause() {
    let fake = FakeLauncher::new();
    let suite = conformance::launcher(async |_| TellsAgain(fake.attach()), fake.programs());
    assert_eq!(
        sentence(suite.check().await, conformance::launcher::EXIT_ONCE),
        "launcher::EXIT_ONCE: rank 1#1 was reported as exited: exit code 0 after exited: exit code 0 (and 35 more \
         times); expected: every accepted process ends in exactly one `Exited`"
    );
}

//! The correct launcher passes; for every clause, a launcher that breaks it fails that clause.

mod broken;
mod commands;

use super::*;
use crate::job::CommandId;
use crate::launch::{DirectiveBatch, LaunchError, PrepareOptions, StartBatch};
use crate::testing::doubles::{FakeLauncher, FakeProgram, Faulty};
use broken::Broken;
use commands::Commands;

/// On paused time: long enough for the grace period of the suite.
const PATIENCE: Duration = Duration::from_secs(5);

async fn convictions(clause: Clause) -> Vec<Violation> {
    let fake = FakeLauncher::new();
    let suite = launcher(async |owner| Broken::new(fake.attach(), clause, owner).await, fake.programs());
    suite.with_patience(PATIENCE).check().await.expect_err("a broken launcher was not convicted")
}

#[tokio::test(start_paused = true)]
async fn a_correct_launcher_passes_every_clause() {
    for fake in [FakeLauncher::new(), FakeLauncher::new().with_lifeline(), FakeLauncher::with_nodes(["a", "b"], 4)] {
        let report = launcher(async |_| fake.attach(), fake.programs()).assert().await;
        assert_eq!(report.skipped(), []);
        assert_eq!(report.checked(), ALL);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_correct_launcher_passes_in_real_time_and_on_several_threads() {
    let fake = FakeLauncher::new();
    let suite = launcher(async |_| fake.attach(), fake.programs());
    suite.with_grace(Duration::from_millis(200)).with_settle(Duration::from_millis(20)).assert().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launcher_of_real_processes_passes_every_applicable_clause() {
    let commands = Commands::default();
    let report = launcher(async |_| commands.clone(), Programs::shell().unwrap()).assert().await;
    let skipped: Vec<Clause> = report.skipped().iter().map(|(clause, _)| *clause).collect();
    assert_eq!(skipped, [EXIT_OF_FAILED_START, DETACH_KEEPS, OUT_OF_SIGHT_IS_NOT_ENDED, CALLS_REACH_INNER]);
}

/// Returns the number of processes that have this variable in their environment.
fn processes_with(variable: &str) -> usize {
    let environments = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path().join("environ");
        std::fs::read(path).ok() // an ended process has none
    });
    environments.filter(|text| text.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_a_launcher_that_stops_nothing_are_killed() {
    let value = format!("{:?}", std::thread::current().id());
    let commands = Commands::deaf("ACME_DEAF", &value);
    let suite = launcher(async |_| commands.clone(), Programs::shell().unwrap());
    let broken = suite.with_patience(Duration::from_millis(100)).check().await.unwrap_err();
    assert!(broken.iter().any(|violation| violation.clause == STOP_ENDS), "{broken:?}");
    let variable = format!("ACME_DEAF={value}");
    let begun = std::time::Instant::now();
    while processes_with(&variable) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} processes are left", processes_with(&variable));
        tokio::task::yield_now().await; // killed, but not gone yet
    }
}

#[tokio::test(start_paused = true)]
async fn every_clause_convicts_the_launcher_that_breaks_it() {
    let mut missed = Vec::new();
    for clause in ALL {
        let broken = convictions(*clause).await;
        if !broken.iter().any(|v| v.clause == *clause) {
            missed.push(clause.to_string());
        }
    }
    assert_eq!(missed, [] as [String; 0], "broken by a launcher that was not convicted of it");
}

#[tokio::test(start_paused = true)]
async fn a_slow_launcher_passes_and_one_that_repeats_itself_does_not() {
    let fake = FakeLauncher::new();
    launcher(async |_| Faulty::slow(fake.attach(), Duration::from_millis(100)), fake.programs()).assert().await;
    let fake = FakeLauncher::new();
    let repeats = launcher(async |_| Faulty::repeating(fake.attach()), fake.programs()).check().await.unwrap_err();
    assert_eq!(repeats[0].clause, EXIT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn clauses_that_an_author_leaves_out_are_listed_in_the_report() {
    let fake = FakeLauncher::new();
    let forgetful = async |owner| Broken::new(fake.attach(), STOP_GRACE, owner).await;
    let only = Programs::new(|| FakeProgram::Runs.spec(), |after, code| FakeProgram::Exits { after, code }.spec());
    let stubborn = fake.programs();
    let programs = Programs { stubborn: stubborn.stubborn, ..only };
    let report = launcher(forgetful, programs).without(STOP_GRACE, "pods are deleted at once").assert().await;
    let skipped: Vec<(Clause, &str)> = report.skipped().iter().map(|(clause, why)| (*clause, why.as_str())).collect();
    let expected = [
        (START_ALL_OR_NOTHING, "no program was given that `start` refuses"),
        (EXIT_OF_FAILED_START, "no program was given that is accepted and then cannot be started"),
        (STOP_GRACE, "pods are deleted at once"),
        (STOP_WHOLE_TREE, "no program with descendants was given"),
        (OUT_OF_SIGHT_IS_NOT_ENDED, "no way was given to take a host out of sight"),
        (REFUSED_IS_FINAL, "no program was given that `start` refuses"),
        (CALLS_REACH_INNER, "no calls of a launcher inside were given to count"),
    ];
    assert_eq!(skipped, expected);
    assert_eq!(report.checked().len() + expected.len(), ALL.len());
}

#[tokio::test(start_paused = true)]
#[should_panic(
    expected = "the launcher breaks 1 of its contract's clauses:\n  launcher::STOP_GRACE: rank 14#1 had 2s of \
                           grace and was ended after 0ns; expected: no process is ended by force before its grace is over"
)]
async fn an_assertion_lists_what_was_broken() {
    let fake = FakeLauncher::new();
    launcher(async |n| Broken::new(fake.attach(), STOP_GRACE, n).await, fake.programs()).assert().await;
}

/// Passes on the required methods, and omits one of those with a default.
struct Forgetful(FakeLauncher, &'static str);

#[async_trait::async_trait]
impl Launcher for Forgetful {
    crate::delegate!(Launcher to |this| this.0, except send_directives, prepare, detach, begin_shutdown);

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        if self.1 == "send_directives" { Ok(()) } else { self.0.send_directives(id, batch).await }
    }
    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        if self.1 == "prepare" { Ok(()) } else { self.0.prepare(batch, options).await }
    }
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        if self.1 == "detach" { Err(LaunchError::Refused("no".into())) } else { self.0.detach(keep).await }
    }
    fn begin_shutdown(&self, grace: Duration) {
        if self.1 != "begin_shutdown" {
            self.0.begin_shutdown(grace);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_method_that_a_launcher_around_another_one_may_forget_is_missed() {
    for method in ["send_directives", "prepare", "detach", "begin_shutdown"] {
        let fake = FakeLauncher::new();
        let broken = launcher(async |_| Forgetful(fake.attach(), method), fake.programs()).check().await.unwrap_err();
        let seen: Vec<(Clause, &str)> = broken.iter().map(|v| (v.clause, v.seen.as_str())).collect();
        let expected = format!("`{method}` was called and never reached the launcher inside");
        assert_eq!(seen, [(CALLS_REACH_INNER, expected.as_str())]);
    }
    let fake = FakeLauncher::new();
    launcher(async |_| Forgetful(fake.attach(), "nothing"), fake.programs()).assert().await;
}

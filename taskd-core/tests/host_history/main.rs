//! The history of hosts in whole runtimes: what a job records, how often, and where the next job is placed.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

#[path = "../journal_logs/elsewhere.rs"]
mod elsewhere;
mod file;
#[path = "../messages/mod.rs"]
mod messages;

use messages::Messages;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::host_history::HostHistoryFile;
use taskd_core::job::*;
use taskd_core::journal::{ReplayFrom, replay};
use taskd_core::kernel::{Outcome, Plugins};
use taskd_core::launch::*;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Problem, Runtime, RuntimeBuilder};
use taskd_core::sim::{self, SimConfig};
use taskd_core::state::{HostHistory, HostIncident};
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::time::timeout;

fn node(name: &str) -> NodeId {
    NodeId(Name::from(name.to_owned()))
}

fn plugins() -> Plugins {
    Plugins {
        detectors: vec![Box::new(ExitDetector::new())],
        strategies: vec![Box::new(Restart::new()), Box::new(ExitStrategy::new())],
    }
}

fn builder(launcher: &FakeLauncher, ranks: u32) -> RuntimeBuilder {
    let plugins = plugins();
    Runtime::builder()
        .job(JobSpec::new("test", ranks, FakeProgram::Runs.spec()))
        .detectors(plugins.detectors)
        .strategies(plugins.strategies)
        .launcher(launcher.clone())
}

/// The hosts of the ranks, by rank.
async fn hosts(launcher: &FakeLauncher) -> BTreeMap<Rank, String> {
    let procs = launcher.list().await.unwrap().procs.into_iter();
    procs.filter_map(|status| Some((status.proc.role.rank()?, status.node?.0.to_string()))).collect()
}

/// The recorded incidents: host, class, number.
fn recorded(file: &HostHistoryFile) -> Vec<(String, String, u64)> {
    let history = file.read().unwrap().history;
    let short = |(host, incident): (&NodeId, &HostIncident)| {
        (host.0.to_string(), incident.class.to_string(), incident.incident.0)
    };
    history.iter().map(short).collect()
}

/// Runs a job of two ranks on three hosts, kills rank 0 once, and lets the job complete.
async fn killed_once(file: &HostHistoryFile, journal: &Path) -> BTreeMap<Rank, String> {
    let launcher = FakeLauncher::with_nodes(["a", "b", "c"], 1);
    let runtime = builder(&launcher, 2).journal(journal).host_history(file.path()).build().unwrap();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(2, 1).await;
    let placed = hosts(&launcher).await;
    launcher.kill(&ProcId::rank(0, 1));
    launcher.all_run(2, 2).await;
    (0..2).for_each(|rank| assert!(launcher.finish(&ProcId::rank(rank, 2), 0)));
    let report = timeout(Duration::from_secs(600), job).await.unwrap().unwrap();
    assert_eq!(report.outcome, Outcome::Completed, "{}", report.reason);
    placed
}

#[tokio::test(start_paused = true)]
async fn the_next_job_avoids_the_host_of_an_incident_and_replays_so() {
    Messages::listen();
    let dir = tempfile::tempdir().unwrap();
    let file = HostHistoryFile::new(dir.path().join("hosts.jsonl"));
    let first = killed_once(&file, &dir.path().join("first")).await;
    assert_eq!(first.into_values().collect::<Vec<_>>(), ["a", "a"], "nothing is known: the launcher chooses");
    assert_eq!(recorded(&file), [("a".into(), "exit".into(), 1)]);
    let second = killed_once(&file, &dir.path().join("second")).await;
    assert_eq!(second.into_values().collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(recorded(&file), [("a".into(), "exit".into(), 1), ("b".into(), "exit".into(), 1)]);
    let lines = Messages::here(tracing::Level::INFO);
    let says = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(says("passed over: a: 1 incident in 14 days, last: exit, just now"), "{lines:#?}");
    fs::remove_file(file.path()).unwrap(); // a replay needs the log only
    for job in ["first", "second"] {
        let report = replay(&dir.path().join(job), ReplayFrom::Start, plugins).unwrap();
        assert!(report.first_difference.is_none() && report.compared > 10, "{job}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_supervisor_records_what_the_file_lacks_and_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let file = HostHistoryFile::new(dir.path().join("hosts.jsonl"));
    let launcher = FakeLauncher::with_nodes(["a", "b"], 2);
    let build = || builder(&launcher, 2).journal(dir.path().join("logs")).host_history(file.path()).build().unwrap();
    let runtime = build();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(2, 1).await;
    launcher.kill(&ProcId::rank(1, 1));
    launcher.all_run(2, 2).await;
    handle.detach(Duration::from_secs(60)).await.unwrap();
    assert_eq!(job.await.unwrap().outcome, Outcome::Detached);
    let once = recorded(&file);
    assert_eq!(once, [("a".into(), "exit".into(), 1)]);
    // The second supervisor finds the file as it is, the third finds it without the incident: a supervisor that was
    // killed between its decision and the write leaves it so.
    for lacks in [false, true] {
        if lacks {
            fs::remove_file(file.path()).unwrap();
        }
        let runtime = build();
        let handle = runtime.handle();
        let job = tokio::spawn(runtime.run());
        handle.status().await.unwrap();
        handle.detach(Duration::from_secs(60)).await.unwrap();
        job.await.unwrap();
        assert_eq!(recorded(&file), once, "lacks: {lacks}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_history_nothing_is_recorded_or_noted() {
    let launcher = FakeLauncher::with_nodes(["a", "b", "c"], 1);
    let job = tokio::spawn(builder(&launcher, 2).build().unwrap().run());
    launcher.all_run(2, 1).await;
    launcher.kill(&ProcId::rank(0, 1));
    launcher.all_run(2, 2).await;
    (0..2).for_each(|rank| assert!(launcher.finish(&ProcId::rank(rank, 2), 0)));
    let report = timeout(Duration::from_secs(600), job).await.unwrap().unwrap();
    let evidence = report.incidents[0].evidence.join("; ");
    assert!(report.ok && !evidence.contains("incidents of all hosts"), "{evidence}");
}

#[test]
fn a_history_that_cannot_be_read_is_a_problem_of_the_build() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hosts.jsonl");
    fs::write(&path, "{\"host_history\":9}\n").unwrap();
    let error = builder(&FakeLauncher::new(), 1).host_history(&path).build().unwrap_err();
    let [Problem::HostHistory(text)] = &error.problems[..] else { panic!("{error}") };
    assert!(text.contains("has format version 9, this program reads up to 1"), "{text}");
}

#[test]
fn a_full_disk_keeps_the_old_file_until_there_is_room() {
    let mount = "mount -t tmpfs -o size=64k,mode=0700 none \"$0\" && exec \"$@\"";
    let test = "a_full_disk_keeps_the_old_file_until_there_is_room";
    let Some(disk) = elsewhere::elsewhere(test, &["--mount", "--map-root-user"], mount) else { return };
    let file = HostHistoryFile::new(disk.join("hosts.jsonl"));
    let record = |number: u64| {
        let at = WallTime::from_unix_ms(1_782_875_564_123 + number);
        let (class, job) = (Name::new("device"), Name::new("llm"));
        (node(&format!("node-{}", number % 9)), HostIncident { at, class, job, incident: IncidentId(number) })
    };
    file.add(&[record(0)]).unwrap();
    let filler = disk.join("somebody-elses");
    fs::write(&filler, vec![0; 1 << 20]).unwrap_err(); // as much as there is room for
    let before = fs::read(file.path()).unwrap();
    let many: Vec<_> = (1..200).map(record).collect();
    let reason = file.add(&many).unwrap_err().to_string();
    assert!(reason.contains("No space left on device"), "{reason}");
    assert_eq!(fs::read(file.path()).unwrap(), before);
    assert!(!disk.join("hosts.jsonl.new").exists(), "a part of a file would occupy the full disk");
    fs::remove_file(filler).unwrap();
    assert_eq!(file.add(&many).unwrap(), 199);
}

/// A history changes neither the invariants nor the fact that a run can be repeated and replayed.
#[test]
fn simulated_jobs_with_a_history_break_no_invariant_and_replay() {
    let mut history = HostHistory::new();
    for number in [0, 0, 0, 2, 2, 3, 5] {
        let at = WallTime::from_unix_ms(1_782_800_000_000 + history.len() as u64);
        let (class, job) = (Name::new("device"), Name::new("earlier"));
        history.record(&node(&format!("host-{number}")), HostIncident { at, class, job, incident: IncidentId(1) });
    }
    let config = SimConfig::default().with_ranks(8..=32).with_host_history(history);
    let mut is_mentioned = false;
    for seed in 1..=8 {
        let outcome = sim::run(seed, &config, &|| sim::drawn(seed));
        assert_eq!(outcome.violation, None, "seed {seed}");
        let incidents = outcome.report.incidents.iter();
        is_mentioned |=
            incidents.flat_map(|incident| &incident.evidence).any(|text| text.contains("incidents of all hosts"));
    }
    assert!(is_mentioned, "no fault carries the history of its host");
    for seed in [1, 5] {
        sim::repeat(seed, &config, &|| sim::drawn(seed)).unwrap_or_else(|error| panic!("{error}"));
    }
}

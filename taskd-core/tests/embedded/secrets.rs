//! Secrets of a job in its environment and its arguments: its ranks get them, from the first supervisor and from the next, and
//! nothing that taskd writes holds them.

use crate::harness::tests;
use crate::host::*;
use crate::support::*;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use taskd_core::detect::ExitDetector;
use taskd_core::job::*;
use taskd_core::journal::{ReplayFrom, dump, dump_decisions, replay};
use taskd_core::kernel::{JobReport, Outcome, Plugins};
use taskd_core::launch::OnOwnerLoss;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;

tests![secrets_stay_off_disk_and_a_new_supervisor_restarts_with_them];

const RANKS: u32 = 2;
const TOKEN: &str = "hf_Zq81TrueToken";
const PASSWORD: &str = "Wk27TruePassword";
const KEY: &str = "Pn93TrueKey";
const USER_INFO: &str = "trainer:Dd55TrueUserInfo";

/// Writes what it was given, prints some of it, leaves a child with a password on its command line, and trains.
const RANK: &str = r#"
    mkdir -p own; echo "$HF_TOKEN $DATA_URL $*" > own/new-$TASKD_RANK
    echo "started with $HF_TOKEN" >&2
    sh -c 'sleep 1000; :' child --password "$2" &
    mv own/new-$TASKD_RANK own/got-$TASKD_RANK.$TASKD_INCARNATION
    echo $TASKD_INCARNATION $$ > pid-$TASKD_RANK.new; mv pid-$TASKD_RANK.new pid-$TASKD_RANK
    i=0; while [ ! -e finish ]; do [ -e fail-$TASKD_RANK.$TASKD_INCARNATION ] && exit 3; i=$((i+1)); echo $i > step-$TASKD_RANK; sleep 0.01; done"#;

fn spec(dir: &Path) -> JobSpec {
    let key = format!("--api-key={KEY}");
    let worker = WorkerSpec::new(["sh", "-c", RANK, "train", "--password", PASSWORD, &key, "--lr=0.1"])
        .with_env("HF_TOKEN", TOKEN)
        .with_env("DATA_URL", format!("postgres://{USER_INFO}@db.example/train"))
        .with_cwd(dir);
    JobSpec::new("secrets", RANKS, worker)
}

/// Is the host program.
pub(crate) fn run(life: &str, dir: &Path) -> ExitCode {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = tokio.block_on(async {
        let launcher = launcher(dir, OnOwnerLoss::Keep { at_most: PATIENCE }).await;
        let builder = Runtime::builder().job(spec(dir)).journal(dir.join("journal")).launcher(launcher);
        let builder = builder.detector(ExitDetector::new()).strategy(Restart::new()).strategy(ExitStrategy::new());
        std::fs::write(dir.join(format!("builder-{life}")), format!("{builder:?}")).unwrap();
        builder.build().unwrap().run().await
    });
    std::fs::write(dir.join("report"), serde_json::to_string(&report).unwrap()).unwrap();
    report.outcome.into()
}

/// Waits until all ranks are in this incarnation, and shows what each was given.
async fn all_were_given_the_true_values(dir: &Path, incarnation: u32) {
    for rank in 0..RANKS {
        let is_up = || rank_of(dir, rank).is_some_and(|(i, pid)| i == incarnation && is_alive(pid)).then_some(());
        eventually("the rank is up", is_up).await;
        let got = std::fs::read_to_string(dir.join(format!("own/got-{rank}.{incarnation}"))).unwrap();
        let true_ones =
            format!("{TOKEN} postgres://{USER_INFO}@db.example/train --password {PASSWORD} --api-key={KEY} --lr=0.1\n");
        assert_eq!(got, true_ones, "rank {rank}");
    }
}

/// Every file below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

fn holds_a_secret(bytes: &[u8]) -> bool {
    [TOKEN, PASSWORD, KEY, USER_INFO].iter().any(|secret| bytes.windows(secret.len()).any(|w| w == secret.as_bytes()))
}

/// What a rank writes and prints is its own; nothing else holds a secret.
fn no_file_holds_a_secret(dir: &Path) {
    let is_a_ranks = |path: &Path| {
        let name = path.file_name().unwrap();
        path.starts_with(dir.join("own")) || name == "stdout.log" || name == "stderr.log"
    };
    let files = files_below(dir);
    let holding: Vec<&PathBuf> =
        files.iter().filter(|path| holds_a_secret(&std::fs::read(path).unwrap_or_default())).collect();
    let of_ranks = holding.iter().filter(|path| is_a_ranks(path)).count();
    assert!(of_ranks > 0, "the search finds what is there: {files:#?}");
    let leaks: Vec<_> = holding.iter().filter(|path| !is_a_ranks(path)).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

fn nothing_that_is_read_of_the_journal_holds_a_secret(journal: &Path) {
    let plugins = || Plugins {
        detectors: vec![Box::new(ExitDetector::new())],
        strategies: vec![Box::new(Restart::new()), Box::new(ExitStrategy::new())],
    };
    let report = replay(journal, ReplayFrom::Start, plugins).unwrap();
    assert!(report.first_difference.is_none() && report.missing.is_empty() && report.compared > 10, "{report}");
    let mut text = Vec::new();
    dump(journal, &mut text).unwrap();
    dump_decisions(journal, &mut text).unwrap();
    assert!(!holds_a_secret(&text), "{}", String::from_utf8_lossy(&text));
}

async fn secrets_stay_off_disk_and_a_new_supervisor_restarts_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let start = |life: &str| Host::start(&["secrets", life, dir.to_str().unwrap()]);
    let first = start("first");
    all_were_given_the_true_values(dir, 1).await;
    send(rank_of(dir, 1).unwrap().1, Signal::KILL);
    all_were_given_the_true_values(dir, 2).await;
    no_file_holds_a_secret(dir);
    first.kill();

    send(rank_of(dir, 0).unwrap().1, Signal::KILL);
    let next = start("next");
    all_were_given_the_true_values(dir, 3).await;
    std::fs::write(dir.join("fail-1.3"), "").unwrap(); // it ends by itself, and its child lives on
    all_were_given_the_true_values(dir, 4).await;
    no_file_holds_a_secret(dir);
    std::fs::write(dir.join("finish"), "").unwrap();
    assert_eq!(next.code(PATIENCE).await, Some(0));

    let report: JobReport = serde_json::from_str(&std::fs::read_to_string(dir.join("report")).unwrap()).unwrap();
    assert_eq!((report.outcome, report.restarts), (Outcome::Completed, 3));
    no_file_holds_a_secret(dir);
    nothing_that_is_read_of_the_journal_holds_a_secret(&dir.join("journal"));
    let guard = std::fs::read_to_string(dir.join("run/guard.log")).unwrap_or_default();
    assert!(guard.contains("child --password <redacted>"), "what lived on is named: {guard}");
}

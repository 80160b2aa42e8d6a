//! Two supervisors and one directory: the second is locked out while the first lives, and not a moment longer.

use crate::support::*;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use taskd_core::journal::*;

/// Where the process that is another supervisor keeps its logs.
const DIR: &str = "TASKD_TEST_LOCK_DIR";

/// This test program again, with the directory's journal open. It stays until it is killed.
fn another_supervisor(dir: &Path) -> Child {
    let mut process = Process::new(std::env::current_exe().unwrap());
    process.args(["--exact", "lock::a_killed_supervisor_releases_the_lock", "--nocapture"]).env(DIR, dir);
    let mut child = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.into_iter().any(|line| line.ends_with("it is open")), "it opens the journal");
    child
}

fn refusal(dir: &Path) -> String {
    Journal::open(dir, header(&plugins()), small()).expect_err("the directory is in use").to_string()
}

#[test]
fn a_killed_supervisor_releases_the_lock() {
    if let Some(dir) = std::env::var_os(DIR) {
        let _journal = open(Path::new(&dir), small());
        println!("it is open");
        let _ = std::io::stdin().read_line(&mut String::new()); // the end of the test ends it, at the latest
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut other = another_supervisor(dir.path());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let expected = format!(
        "the log directory {} is in use by the supervisor with process id {} on {}: stop that one first, or give this \
         job a directory of its own",
        dir.path().display(),
        other.id(),
        host.trim(),
    );
    assert_eq!(refusal(dir.path()), expected);

    other.kill().unwrap();
    other.wait().unwrap();
    let (journal, recovered) = open(dir.path(), small());
    assert!(recovered.problems.is_empty());
    assert!(journal.close(PATIENCE));
}

#[test]
fn in_one_process_too_a_journal_is_alone_until_it_is_closed_or_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = open(dir.path(), small());
    assert!(refusal(dir.path()).contains(&format!("process id {} on ", std::process::id())));
    assert!(first.close(PATIENCE));
    for _ in 0..20 {
        drop(open(dir.path(), small())); // its thread ends in its own time, which the next one waits for
    }
}

#[test]
fn dump_and_replay_need_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = Job::logged(plugins(), open(dir.path(), small()).0);
    job.train(3);
    job.close();
    let (held, _) = open(dir.path(), small());
    dump(dir.path(), &mut Vec::new()).unwrap();
    replay(dir.path(), ReplayFrom::Start, plugins).unwrap();
    assert!(held.close(PATIENCE));
}

#[test]
fn a_lock_file_with_unreadable_contents_still_locks() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = open(dir.path(), small());
    fs::write(dir.path().join("lock"), [0xff; 5000]).unwrap();
    assert!(refusal(dir.path()).contains("is in use by another supervisor: stop that one first"));
    assert!(first.close(PATIENCE));
    assert!(open(dir.path(), small()).0.close(PATIENCE), "the content of the file is no process's lock");
}

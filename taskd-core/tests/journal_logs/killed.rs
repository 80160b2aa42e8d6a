//! A supervisor that is killed in the middle of its work: what was reported to it as written, is there.

use crate::support::*;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use taskd_core::journal::*;

/// Where the process that is to be killed keeps its logs.
const DIR: &str = "TASKD_TEST_KILLED_DIR";

/// Trains without end and prints each step when it is reported as written.
fn train_until_killed(dir: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut job = Job::logged(plugins(), open(dir, small()).0);
    loop {
        job.live();
        let seq = job.kernel.seq();
        if runtime.block_on(job.written()) == Written::Yes {
            println!("written {}", seq.0);
        }
    }
}

#[test]
fn records_reported_as_written_survive_a_kill() {
    if let Some(dir) = std::env::var_os(DIR) {
        return train_until_killed(Path::new(&dir));
    }
    for records in [1, 3, 10, 30] {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Process::new(std::env::current_exe().unwrap());
        process.args(["--exact", "killed::records_reported_as_written_survive_a_kill", "--nocapture"]);
        let mut child = process.env(DIR, dir.path()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut written = lines.filter_map(|line| line.strip_prefix("written ")?.parse::<u64>().ok());
        let last = written.by_ref().take(records).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let last = written.last().unwrap_or(last); // it may have got further before the signal
        let (_, recovered) = open(dir.path(), small());
        assert!(recovered.upto.0 >= last, "{recovered}, reported up to {last}: {:?}", recovered.problems);
        let rebuilt = recovered.resume(plugins()).unwrap();
        assert_eq!((rebuilt.kernel.seq(), rebuilt.divergence), (recovered.upto, None));
    }
}

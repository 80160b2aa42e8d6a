//! The benchmark `bench_recovery`, without the systems of other vendors, whose environments are large.

use super::{TORCH, example, skips_torch};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::PoisonError;

/// Returns the processes of a benchmark's jobs, by the mark in their environment.
fn processes_of(bench: u32) -> Vec<String> {
    let mark = format!("CHAOS_RUN=bench-{bench}-");
    let listed = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        let environ = fs::read(path.join("environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|variable| variable.starts_with(mark.as_bytes()))
    };
    listed.filter(is_one).map(|path| path.display().to_string()).collect()
}

#[test]
fn taskd_and_floor_recover_with_equal_state_and_leave_no_process() {
    let name = "taskd_and_floor_recover_with_equal_state_and_leave_no_process";
    if skips_torch(name) {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let only = "taskd-retry,taskd-recover-in-place,taskd-restart,floor";
    let arguments = ["--json", "--n", "1", "--settle-s", "1", "--only", only];
    let bench = example("bench_recovery")
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let pid = bench.id();
    let output = bench.wait_with_output().expect("it ends");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let rows: Vec<Value> = serde_json::from_str(out.lines().last().unwrap_or_default()).expect("an array");
    let names: Vec<String> = rows.iter().map(|row| format!("{}/{}", row["system"], row["variant"])).collect();
    let expected = ["taskd/retry", "taskd/recover-in-place", "taskd/restart", "floor/shell-loop"];
    assert_eq!(names, expected.map(|name| format!("\"{}\"", name.replace('/', "\"/\""))), "{out}");
    for row in &rows {
        assert_eq!((&row["n"], &row["stalls"], &row["ranks"]), (&1.into(), &0.into(), &2.into()), "{out}");
        assert_eq!((&row["state_equal"], &row["world_kept"]), (&true.into(), &true.into()), "{out}");
        assert!(row["steps_lost_max"].as_u64() <= Some(11), "a checkpoint every ten steps: {out}");
        let [least, median, most] = ["min_s", "median_s", "max_s"].map(|name| row[name].as_f64());
        assert!(least > Some(0.0) && least == median && median == most, "{out}");
    }
    assert!(out.contains("recovered by retry"), "{out}");
    assert!(!out.contains("WERE LEFT"), "{out}");
    assert_eq!(processes_of(pid), [""; 0]);
}

#[test]
fn bench_recovery_ended_by_sigterm_leaves_no_process() {
    if skips_torch("bench_recovery_ended_by_sigterm_leaves_no_process") {
        return;
    }
    let _alone = TORCH.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bench = example("bench_recovery")
        .args(["--only", "floor"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let out = BufReader::new(bench.stdout.take().expect("a pipe"));
    let starts = out.lines().map_while(Result::ok).find(|line| line.starts_with("undisturbed"));
    assert!(starts.is_some(), "it goes on to its first job");
    while processes_of(bench.id()).len() < 3 {
        std::thread::yield_now(); // a shell and two ranks start quickly
    }
    let pid = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let status = bench.wait().expect("it ends");
    assert_eq!((status.code(), processes_of(bench.id())), (Some(1), vec![]));
}

//! The guide's host program for recovery in place, unchanged: compiled as an example, and run with its script.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use taskd_pytorch::venv;

const PATIENCE: Duration = Duration::from_secs(300);

fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let target = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("examples");
    let program = target.join("guide_recovering");
    assert!(program.exists(), "{} is not built; `cargo test --workspace` builds it", program.display());
    program
}

/// The host program, killed when this is dropped: then its guard ends its ranks.
struct Host(Option<Child>);

impl Host {
    fn output(mut self) -> Output {
        self.0.take().expect("it runs").wait_with_output().expect("it ends")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Calls `look` until it returns a value.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what} did not come about");
        std::thread::yield_now();
    }
}

/// Returns the job's status from the control socket.
fn status(socket: &Path) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    writeln!(stream, r#"{{"v":2,"do":"status"}}"#).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    Some(serde_json::from_str::<Value>(&line).ok()?["ok"]["job"].take())
}

#[test]
fn the_guide_program_recovers_in_place_and_reports_the_incident() {
    if std::env::var("TASKD_SKIP").is_ok_and(|skip| skip.split(',').any(|part| part == "torch")) {
        // stderr directly, since the test harness shows output only of a test that fails.
        let _ = writeln!(std::io::stderr(), "skipped: the guide's host program (TASKD_SKIP names torch)");
        return;
    }
    let python = venv::locate(&mut |line| println!("{line}")).expect("a Python with torch");
    let dir = tempfile::tempdir().expect("a directory");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../taskd-core/src/guide/programs/train.py");
    let mut command = Command::new(program());
    command.arg(dir.path()).arg(&python).arg(script).arg("400").env("OMP_NUM_THREADS", "1");
    let host = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let host = Host(Some(host));

    let socket = dir.path().join("control.sock");
    wait_for("a step of both ranks", || status(&socket)?["steps"][0].as_u64().filter(|step| *step > 5));
    let procs = dir.path().join("run/procs");
    let printed = std::fs::read_to_string(procs.join("rank-1.1/stdout.log")).expect("it has printed its process id");
    let pid: i32 = printed.trim().trim_start_matches("process ").parse().expect("a number");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
    let recent = wait_for("the end of the incident", || status(&socket)?["recent"].get(0).cloned());
    assert_eq!(recent["strategy"], "recover-in-place", "{recent}");
    assert_eq!(recent["procs"][0]["pid"], pid.as_raw_nonzero().get(), "{recent}");

    let output = host.output();
    let (out, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{log}");
    assert!(out.starts_with("completed after "), "{out}");
    let place = format!("output of the processes: {} on ", procs.display());
    assert!(out.lines().last().is_some_and(|line| line.contains(&place)), "{out}");
    for sentence in
        ["incident 1 opened: exit in rank 1, because ", "incident 1 decided: recover-in-place", "incident 1 closed "]
    {
        assert_eq!(log.lines().filter(|line| line.contains(sentence)).count(), 1, "{sentence}: {log}");
    }
    assert!(!procs.join("rank-0.2").exists(), "rank 0 was kept");
}

#[test]
fn a_command_line_that_cannot_be_meant_is_refused_with_its_exit_code() {
    let output = Command::new(program()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(64));
    let output = Command::new(program()).args(["/proc/nowhere", "python3"]).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(69), 1), "{stderr}");
    assert!(
        stderr.starts_with("cannot use the run directory /proc/nowhere/run: "),
        "in words, and not as Debug: {stderr}"
    );
}

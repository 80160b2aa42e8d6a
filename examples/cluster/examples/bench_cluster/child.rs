//! A process of the benchmark: a line on its stdin is a command, and a line of JSON on its stdout an answer.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Variable that is set in the processes of the benchmark.
pub(crate) const ROLE: &str = "TASKD_BENCH_ROLE";
/// Clock ticks per second of `/proc/PID/stat` on Linux.
const TICKS: f64 = 100.0;

/// A running process of the benchmark. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    /// Starts this program in a role.
    pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Result<Process, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let mut command = Command::new(program);
        if std::env::var_os("RUST_LOG").is_none() {
            // 10,000 agents that dial again would print as many warnings, and voters on a loaded machine a line for each
            // late answer.
            command.env("RUST_LOG", "error,openraft=off");
        }
        command.args(words).env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("a process cannot be started: {error}"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a process has no pipes".into());
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Process { child, stdin, lines })
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, command: &str) -> Result<(), String> {
        let sent = writeln!(self.stdin, "{command}").and_then(|()| self.stdin.flush());
        sent.map_err(|error| format!("a process takes no commands: {error}"))
    }

    /// Waits for a line of JSON that has the field `field`. Other lines are printed to stderr.
    pub(crate) fn wait(&mut self, field: &str, within: Duration) -> Result<Value, String> {
        let value = self.poll(field, within)?;
        value.ok_or_else(|| format!("a process has not reported {field} within {within:?}"))
    }

    /// As [`wait`](Self::wait), but returns `None` after `within`.
    pub(crate) fn poll(&mut self, field: &str, within: Duration) -> Result<Option<Value>, String> {
        loop {
            let line = match self.lines.recv_timeout(within) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(format!("a process has ended without {field}")),
            };
            match serde_json::from_str::<Value>(&line) {
                Ok(value) if value.get("error").is_some() => return Err(value["error"].to_string()),
                Ok(value) if value.get(field).is_some() => return Ok(Some(value)),
                _ => eprintln!("{line}"),
            }
        }
    }

    /// Sends a command, and waits for its answer.
    pub(crate) fn ask(&mut self, command: &str, field: &str, within: Duration) -> Result<Value, String> {
        self.send(command)?;
        self.wait(field, within)
    }

    /// Returns the processor time of the process so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // After the name, which may contain spaces: state, and 10 more fields before the times in user and system mode.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / TICKS
    }

    /// Returns the resident memory of the process, in MiB, and the most that it has had.
    pub(crate) fn rss_mib(&self) -> (f64, f64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        (kib("VmRSS:") / 1024.0, kib("VmHWM:") / 1024.0)
    }

    /// Stops the process as SIGSTOP does: its connections stay open, and it is silent.
    pub(crate) fn freeze(&self) -> Result<(), String> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or("the process has no id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).map_err(|error| error.to_string())
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

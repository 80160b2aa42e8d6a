//! Answers the probe `stacks`: the functions in which the threads of a process are, without stopping the process.
//!
//! py-spy reads the Python stacks if it is installed. Otherwise, if it may not read the process, or if it takes too long,
//! `/proc` shows the Linux functions in which the threads wait. No values of variables are read.
//!
//! A verdict waits for the answer, so the answer is bounded: py-spy has a time limit, which includes its start, and both
//! readers run on threads of their own, which are left behind when the limit has passed.

use crate::job::{Domain, Name, Role};
use crate::trace::{Probe, ProbeResult};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout_at;

/// Path of py-spy, if it is not in a directory of `PATH`.
const PY_SPY: &str = "TASKD_PY_SPY";
/// Time limit for py-spy, from the question on: three quarters of the 400 ms for which the `hang` detector waits, so that the
/// answer of `/proc` arrives in time on a busy host as well. A question with a shorter timeout leaves it three quarters of
/// that.
const PY_SPY_WITHIN: Duration = Duration::from_millis(300);
/// Further time for `/proc`, which is read meanwhile.
const PROC_WITHIN: Duration = Duration::from_millis(25);
/// Maximum size of an error message of py-spy in bytes. The rest is not read.
const ERROR_BYTES_MAX: usize = 512;
/// Maximum size of the output of py-spy in bytes. A larger one is not used.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of Python threads in the answer. It states how many are left out.
const THREADS_MAX: usize = 16;
/// Maximum number of functions of a thread in the answer, innermost first.
const FRAMES_MAX: usize = 24;
/// Maximum number of threads that are read from `/proc`.
const TASKS_MAX: usize = 256;

/// The stacks that one probe requests, read at the same time.
#[derive(Debug, Default)]
pub(super) struct StackReaders {
    probe: Option<(Name, u64)>,
    running: BTreeMap<Role, StackReader>,
    /// Path of py-spy, if it is not looked up.
    program: Option<PathBuf>,
}

impl StackReaders {
    /// Answers the probe about one role. The first question of a probe begins to read all stacks that it requests:
    /// `pid_of` returns the process of a role. The answer takes at most [`PY_SPY_WITHIN`] and [`PROC_WITHIN`] from then on.
    pub(super) async fn answer(
        &mut self,
        ask: &Probe,
        about: &Role,
        pid_of: impl Fn(&Role) -> Option<i32>,
    ) -> ProbeResult {
        let probe = Some((ask.by.clone(), ask.tag));
        if self.probe != probe {
            (self.probe, self.running) = (probe, BTreeMap::new());
            let within = PY_SPY_WITHIN.min(ask.timeout * 3 / 4);
            for domain in &ask.about {
                let Domain::Process(role) = domain else { continue };
                if let Some(pid) = pid_of(role) {
                    let reader = StackReader::begin(pid, self.program.clone(), within);
                    self.running.insert(role.clone(), reader);
                }
            }
        }
        match self.running.remove(about) {
            Some(reader) => ProbeResult::Text(reader.text().await),
            None => ProbeResult::Unavailable(format!("{about} has ended")),
        }
    }
}

/// The readers of one process's stack, each on a thread of its own.
#[derive(Debug)]
struct StackReader {
    by_python: JoinHandle<Option<Result<String, Missing>>>,
    by_kernel: JoinHandle<String>,
    within: Duration,
    until: Instant,
}

impl StackReader {
    fn begin(pid: i32, given: Option<PathBuf>, within: Duration) -> StackReader {
        let until = Instant::now() + within;
        let by_kernel = spawn_blocking(move || threads(pid));
        let by_python = spawn_blocking(move || Some(py_spy(&given.or_else(program)?, pid, until)));
        StackReader { by_python, by_kernel, within, until }
    }

    /// Returns the stack by Python, or that by Linux and the reason why there is no other.
    async fn text(self) -> String {
        let reason = match timeout_at(self.until.into(), self.by_python).await {
            Ok(Ok(Some(Ok(text)))) => return text,
            Ok(Ok(Some(Err(Missing::Because(why))))) => format!("py-spy cannot read it ({why})"),
            Ok(Ok(None)) => "py-spy is not installed".to_owned(),
            Ok(Err(_)) => "the reader of the Python stack failed".to_owned(),
            Ok(Ok(Some(Err(Missing::TooLate)))) | Err(_) => {
                format!("py-spy cannot read it (it took longer than {} ms)", self.within.as_millis())
            }
        };
        let threads = match timeout_at((self.until + PROC_WITHIN).into(), self.by_kernel).await {
            Ok(Ok(threads)) => threads,
            Ok(Err(_)) => "the reader of its threads failed".to_owned(),
            Err(_) => "its threads could not be read in time".to_owned(),
        };
        format!("{threads}; {reason}")
    }
}

/// Why py-spy gave no stack.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    /// The time limit passed.
    TooLate,
    /// Another reason, in one line.
    Because(String),
}

impl<E: Error> From<E> for Missing {
    fn from(error: E) -> Missing {
        Missing::Because(error.to_string())
    }
}

/// Returns the path of py-spy, if there is one.
fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(PY_SPY) {
        return Some(PathBuf::from(named));
    }
    program_in(&std::env::var_os("PATH")?)
}

/// Finds py-spy in the directories of a search path. A relative one is left out: it may be another user's.
fn program_in(path: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let dirs = std::env::split_paths(path).filter(|dir| dir.is_absolute());
    dirs.map(|dir| dir.join("py-spy")).find(is_program)
}

/// Reads the Python stacks with py-spy.
fn py_spy(program: &Path, pid: i32, until: Instant) -> Result<String, Missing> {
    let mut command = Command::new(program);
    // Without `--nonblocking`, py-spy would stop the process while it reads.
    command.args(["dump", "--nonblocking", "--json", "--pid", &pid.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let stacks = stacks(&mut child, until);
    // It has ended, or takes too long. A script's own processes end with it: they hold its output open.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
    stacks
}

/// Returns the stacks from the output of py-spy, or the first line of its error.
fn stacks(child: &mut Child, until: Instant) -> Result<String, Missing> {
    let output = read_all(child.stdout.take(), until, OUTPUT_BYTES_MAX)?;
    if output.len() > OUTPUT_BYTES_MAX {
        return Err(Missing::Because(format!("its output exceeds {OUTPUT_BYTES_MAX} bytes")));
    }
    match serde_json::from_slice::<Vec<Thread>>(&output) {
        Ok(threads) => Ok(described(&threads)),
        Err(_) => {
            let error = read_all(child.stderr.take(), until, ERROR_BYTES_MAX)?;
            let text = String::from_utf8_lossy(&error);
            let reason = text.lines().find(|line| !line.trim().is_empty());
            Err(Missing::Because(reason.unwrap_or("it gave no stack").trim().to_owned()))
        }
    }
}

/// Reads a pipe to its end, or until more than `most` bytes have been read.
fn read_all(pipe: Option<impl Read + AsFd>, until: Instant, most: usize) -> Result<Vec<u8>, Missing> {
    let mut pipe = pipe.ok_or_else(|| Missing::Because("it has no output".to_owned()))?;
    let (mut output, mut chunk) = (Vec::new(), [0; 8192]);
    while output.len() <= most {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left)?;
        let ready = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&timeout));
        if left.is_zero() || ready.is_ok_and(|ready| ready == 0) {
            return Err(Missing::TooLate);
        }
        match pipe.read(&mut chunk)? {
            0 => break,
            read => output.extend_from_slice(&chunk[..read]),
        }
    }
    Ok(output)
}

/// A thread in the output of `py-spy dump --json`, version 0.4.
#[derive(Debug, Deserialize)]
struct Thread {
    thread_name: Option<String>,
    active: bool,
    frames: Vec<Frame>,
}

#[derive(Debug, Deserialize)]
struct Frame {
    name: String,
    filename: String,
    short_filename: Option<String>,
    line: i64,
}

/// Formats threads: `thread MainThread (idle): load (data.py:41) < <module> (train.py:3)`.
fn described(threads: &[Thread]) -> String {
    let mut text = String::new();
    for thread in threads.iter().take(THREADS_MAX) {
        let name = thread.thread_name.as_deref().unwrap_or("without a name");
        let state = if thread.active { "active" } else { "idle" };
        let frames = thread.frames.iter().take(FRAMES_MAX).map(|frame| {
            let file = frame.short_filename.as_ref().unwrap_or(&frame.filename);
            format!("{} ({file}:{})", frame.name, frame.line)
        });
        let frames: Vec<String> = frames.collect();
        let begin = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{begin}thread {name} ({state}): {}", frames.join(" < "));
    }
    if let Some(more @ 1..) = threads.len().checked_sub(THREADS_MAX) {
        let _ = write!(text, "; {more} further threads");
    }
    if text.is_empty() { "it has no Python thread".to_owned() } else { text }
}

/// Describes the threads of a process from `/proc`: the main thread, and in what function how many others are.
fn threads(pid: i32) -> String {
    let file = |task: &Path, name: &str| {
        let text = fs::read_to_string(task.join(name)).unwrap_or_default();
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    let status = |task: &Path| {
        let text = fs::read_to_string(task.join("status")).unwrap_or_default();
        let state = text.lines().find_map(|line| line.strip_prefix("State:"));
        state.and_then(|state| state.trim().chars().next()).unwrap_or('?')
    };
    let place = |task: &Path| match file(task, "wchan").as_str() {
        "" | "0" => String::new(),
        wchan => format!(" in {wchan}"),
    };
    let main = PathBuf::from(format!("/proc/{pid}/task/{pid}"));
    let mut text = format!("main thread in state {}{}", status(&main), place(&main));
    if let Some(number) = file(&main, "syscall").split(' ').next().filter(|call| call.parse::<u32>().is_ok()) {
        let _ = write!(text, ", system call {number}");
    }
    let stack = fs::read_to_string(main.join("stack")).unwrap_or_default();
    let functions: Vec<&str> =
        stack.lines().filter_map(|line| line.split_whitespace().nth(1)?.split('+').next()).take(FRAMES_MAX).collect();
    if !functions.is_empty() {
        let _ = write!(text, ", kernel stack {}", functions.join(" < "));
    }
    let mut others: BTreeMap<String, u32> = BTreeMap::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(TASKS_MAX);
    for task in tasks.map(|task| task.path()).filter(|task| *task != main) {
        *others.entry(format!("state {}{}", status(&task), place(&task))).or_default() += 1;
    }
    for (at, count) in others {
        let _ = write!(text, "; {count} other {} in {at}", if count == 1 { "thread" } else { "threads" });
    }
    text
}

#[cfg(test)]
mod tests;

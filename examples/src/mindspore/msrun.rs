//! The comparison: the same script under plain `msrun --join=True`, in a loop that restarts it when it has ended.

use super::job::{Job, Line};
use super::phases::Phases;
use super::soak::unix_now;
use crate::program::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

const READ_EVERY: Duration = Duration::from_millis(20);
/// Time limit of each wait: msrun needs 35 s to detect the loss, and MindSpore another 12 to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Trains until rank 0 has completed some steps, kills a worker, restarts msrun when it has ended, and waits for the
/// first new step. Returns the time from the kill, by phase.
///
/// # Errors
/// msrun cannot be started, or something took longer than three minutes.
pub async fn after_kill(job: &Job, port: u16, after_steps: u64) -> Result<Phases, Failure> {
    fs::create_dir_all(&job.dir)?;
    let mut msrun = start(job, port)?;
    until("its first steps", || job.last().filter(|line| line.step >= after_steps)).await?;
    let victim = worker_of(&job.dir).ok_or("msrun has no worker to kill")?;
    let (at, before) = (unix_now(), job.lines().len());
    kill_process(victim, Signal::KILL)?;
    tokio::time::timeout(PATIENCE, msrun.wait()).await.map_err(|_| "msrun did not end after the kill")??;
    let mut again = start(job, port)?;
    let first = |line: &Line| line.step.at_ms / 1e3 > at && line.start.is_some();
    let line = until("a new step", || job.lines().into_iter().skip(before).find(first)).await?;
    for pid in workers_of(&job.dir) {
        let _ = kill_process(pid, Signal::KILL); // it may have ended
    }
    let _ = again.kill().await;
    let start = line.start.ok_or("the first step has no start times")?;
    Ok(Phases::between(at, &start, line.step.at_ms / 1e3))
}

fn start(job: &Job, port: u16) -> Result<Child, Failure> {
    let bin = job.python.parent().ok_or("the interpreter is in no directory")?;
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(bin.join("msrun"));
    let workers = job.ranks.to_string();
    command.arg(format!("--worker_num={workers}")).arg(format!("--local_worker_num={workers}"));
    command.arg(format!("--master_port={port}")).arg("--join=True").arg("--cluster_time_out=60");
    command.arg(format!("--log_dir={}", job.dir.join("msrun_log").display()));
    command.args(job.words()).env("PATH", path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.kill_on_drop(true).spawn()?)
}

/// Returns a worker: the process with the role and the job's directory.
fn worker_of(dir: &Path) -> Option<Pid> {
    processes(dir, true).into_iter().next_back()
}

/// Returns the workers and the scheduler.
fn workers_of(dir: &Path) -> Vec<Pid> {
    processes(dir, false)
}

fn processes(dir: &Path, only_workers: bool) -> Vec<Pid> {
    let dir = dir.to_string_lossy().into_owned();
    let is_one = |pid: &i32| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let has = |bytes: Vec<u8>, entry: &str| bytes.split(|byte| *byte == 0).any(|word| word == entry.as_bytes());
        let is_scheduler = || has(read("environ"), "MS_ROLE=MS_SCHED");
        has(read("cmdline"), &dir) && (has(read("environ"), "MS_ROLE=MS_WORKER") || (!only_workers && is_scheduler()))
    };
    let listed = fs::read_dir("/proc").into_iter().flatten();
    let pids = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(is_one).filter_map(Pid::from_raw).collect()
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("msrun did not reach {what} within {PATIENCE:?}").into());
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}

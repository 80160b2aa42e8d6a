//! A job that plain torchrun runs: one agent, its ranks, their logs. It does not use taskd.

use crate::program::Failure;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_steps.py");
/// The line that a rank prints for each step.
pub const STEP: &str = "step ";
/// Time limit of a start or an end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running torchrun job; killed with its ranks when dropped.
#[derive(Debug)]
pub struct TorchrunJob {
    agent: Child,
    dir: PathBuf,
    ranks: u32,
}

impl TorchrunJob {
    /// Starts torchrun, with all its files in `dir`.
    ///
    /// # Errors
    /// torchrun cannot be started.
    pub fn start(python: &Path, dir: &Path, ranks: u32, pace_ms: u32) -> Result<TorchrunJob, Failure> {
        fs::create_dir_all(dir)?;
        let mut command = Command::new(python);
        command.args(["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", "--redirects", "3"]);
        command.arg("--nproc-per-node").arg(ranks.to_string()).arg("--log-dir").arg(dir.join("log"));
        command.arg(SCRIPT).arg("--stop").arg(dir.join("stop")).arg("--samples").arg(dir);
        command.args(["--pace-ms", &pace_ms.to_string()]).env("OMP_NUM_THREADS", "1");
        // Otherwise ranks that torchrun restarts find their predecessors' addresses in the store, and fail.
        command.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        let output = File::create(dir.join("agent.txt"))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        Ok(TorchrunJob { agent: command.spawn()?, dir: dir.to_owned(), ranks })
    }

    /// Returns the agent's process id: all that a supervisor needs.
    #[must_use]
    pub fn agent(&self) -> u32 {
        self.agent.id()
    }

    /// Returns the present process ids of the ranks.
    #[must_use]
    pub fn pids(&self) -> BTreeMap<u32, i32> {
        let children = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.agent.id())) else { return BTreeMap::new() };
        let pids = tasks.flatten().map(children).collect::<Vec<_>>().join(" ");
        let rank = |pid: i32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let variable = environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"RANK="))?;
            Some((std::str::from_utf8(variable).ok()?.parse().ok()?, pid))
        };
        pids.split_whitespace().filter_map(|pid| rank(pid.parse().ok()?)).collect()
    }

    /// Returns torchrun's latest attempt, and the newest step that rank 0 has printed in it.
    #[must_use]
    pub fn progress(&self) -> (u32, u64) {
        let logs = fs::read_dir(self.dir.join("log")).into_iter().flatten().flatten();
        let attempts = logs.filter_map(|run| fs::read_dir(run.path()).ok()).flatten().flatten();
        let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix("attempt_")?.parse::<u32>().ok();
        let newest = attempts.filter_map(|entry| Some((number(&entry.path())?, entry.path()))).max();
        let Some((attempt, path)) = newest else { return (0, 0) };
        let text = fs::read(path.join("0/stdout.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
        let steps = text.lines().rev().filter_map(|line| line.strip_prefix(STEP)?.split(' ').next()?.parse().ok());
        (attempt, steps.max().unwrap_or(0))
    }

    /// Waits until all ranks are running.
    ///
    /// # Errors
    /// They do not start.
    pub async fn have_ranks(&mut self) -> Result<(), Failure> {
        self.come("the ranks did not start", |job| job.pids().len() == job.ranks as usize).await
    }

    /// Waits until `attempt` has completed `steps` steps.
    ///
    /// # Errors
    /// It does not, or the job ends before.
    pub async fn reach(&mut self, attempt: u32, steps: u64) -> Result<(), Failure> {
        self.come(&format!("step {steps} was not reached"), |job| job.progress() >= (attempt, steps)).await
    }

    async fn come(&mut self, else_what: &str, has_come: impl Fn(&TorchrunJob) -> bool) -> Result<(), Failure> {
        let begun = Instant::now();
        while !has_come(self) {
            if let Some(status) = self.agent.try_wait()? {
                return Err(format!("{else_what}, and torchrun has ended ({status}): {}", self.output()).into());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{else_what} within {PATIENCE:?}: {}", self.output()).into());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Writes a bad sample for a rank, on which its program fails.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn spoil_sample(&self, rank: u32) -> Result<(), Failure> {
        Ok(File::create(self.dir.join(format!("bad-{rank}"))).map(drop)?)
    }

    /// Orders the job to end through its program, and waits for that.
    ///
    /// # Errors
    /// It does not end.
    pub async fn finish(&mut self) -> Result<ExitStatus, Failure> {
        File::create(self.dir.join("stop"))?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.agent.try_wait()? {
                return Ok(status);
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("torchrun did not end within {PATIENCE:?}: {}", self.output()).into());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    fn output(&self) -> String {
        let text = fs::read_to_string(self.dir.join("agent.txt")).unwrap_or_default();
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("torchrun printed nothing").to_owned()
    }
}

impl Drop for TorchrunJob {
    fn drop(&mut self) {
        use rustix::process::{Pid, Signal, kill_process_group};
        for pid in self.pids().values().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = rustix::process::kill_process(pid, Signal::KILL); // torchrun gives each rank a session of its own
        }
        let _ = kill_process_group(Pid::from_child(&self.agent), Signal::KILL); // it has ended already, or does now
        let _ = self.agent.wait();
    }
}

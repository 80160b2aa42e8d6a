//! The processes of one job: started with a mark, and reliably ended, whatever programs they run by then.
//!
//! It ends only processes that have the mark.

use super::Failure;
use crate::outside::census::{Census, MARK, Process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::fmt::Display;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long killed processes may take to end.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long to wait for one killed process before listing all of them again: another one may have been started
/// meanwhile.
const GONE_SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Variables that launchers set for their ranks. Those of a launcher around this program must not be inherited.
const NOT_INHERITED: [&str; 7] =
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TASKD_STANDBYS", "TORCHELASTIC_RUN_ID"];

/// One process to be started.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    words: Vec<String>,
    env: Vec<(String, String)>,
}

impl Start {
    pub(crate) fn new(words: impl IntoIterator<Item = String>) -> Start {
        Start { words: words.into_iter().collect(), env: Vec::new() }
    }

    pub(crate) fn env(mut self, name: &str, value: impl Display) -> Start {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    #[cfg(test)]
    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }

    #[cfg(test)]
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The running processes. Dropping this ends all of them.
#[derive(Debug)]
pub(crate) struct Running {
    children: Vec<Child>,
    census: Census,
}

impl Running {
    /// Starts all of `starts`, each in a process group of its own, with its output in `DIR/log.N`.
    pub(crate) fn start(starts: &[Start], dir: &Path, mark: &str) -> Result<Running, Failure> {
        let mut running = Running { children: Vec::new(), census: Census::new(mark.to_owned()) };
        for (number, start) in starts.iter().enumerate() {
            let Some((program, arguments)) = start.words.split_first() else { continue };
            let log = File::create(dir.join(format!("log.{number}")))?;
            let mut command = Command::new(program);
            for name in NOT_INHERITED {
                command.env_remove(name);
            }
            command.args(arguments).env("TMPDIR", dir).env("PYTHONUNBUFFERED", "1");
            command.envs(start.env.iter().map(|(name, value)| (name, value))).env(MARK, mark);
            command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
            command.process_group(0); // Ctrl-C reaches only this program, which then ends all processes in order
            let child = command.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?;
            running.children.push(child);
        }
        Ok(running)
    }

    /// Returns true if a process that was started here has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.children.iter_mut().any(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Orders all to exit by closing their standard input, on which supervisors exit; returns how many processes are
    /// left after `within`.
    pub(crate) async fn leave(&mut self, within: Duration) -> usize {
        self.children.iter_mut().for_each(|child| drop(child.stdin.take()));
        let until = Instant::now() + within;
        loop {
            let left = self.living().len();
            if left == 0 || Instant::now() > until {
                return left;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends all processes, and all that they have started.
    ///
    /// # Errors
    /// Some do not end.
    pub(crate) fn end(mut self) -> Result<(), Failure> {
        self.kill_all()
    }

    fn living(&mut self) -> Vec<Process> {
        let mut found = self.census.take();
        found.retain(|process| !matches!(process.state, 'Z' | 'X'));
        found
    }

    fn kill_all(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            let living = self.living();
            if living.is_empty() {
                break;
            }
            if Instant::now() > until {
                let pids: Vec<String> = living.iter().map(|process| process.pid.to_string()).collect();
                return Err(format!("processes did not end after SIGKILL: {}", pids.join(", ")).into());
            }
            for process in &living {
                let _ = process.signal(Signal::KILL); // an error means that it has ended
            }
            living.iter().for_each(wait_for_end);
        }
        for mut child in self.children.drain(..) {
            child.wait()?;
        }
        Ok(())
    }
}

/// Waits a short time for the end of a process that was killed.
fn wait_for_end(process: &Process) {
    if let Some(handle) = Pid::from_raw(process.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
        let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&GONE_SOON)); // survivors are found again
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill_all(); // a regular end has been attempted before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Start {
        Start::new(["sh", "-c", script].map(str::to_owned))
    }

    /// Waits until exactly `count` processes run, and returns their ids.
    fn until(running: &mut Running, count: usize) -> Vec<i32> {
        loop {
            let pids: Vec<i32> = running.living().iter().map(|process| process.pid).collect();
            if pids.len() == count {
                return pids;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn processes_in_other_sessions_and_restart_loops_are_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("bench-test-{}", std::process::id());
        let starts = [shell("while :; do sleep 60; done"), shell("setsid sleep 61 & wait")];
        let mut running = Running::start(&starts, dir.path(), &mark).unwrap();
        until(&mut running, 4);
        assert!(!running.has_ended());
        running.end().unwrap();
        assert_eq!(Census::new(mark).take().len(), 0);
    }

    #[tokio::test]
    async fn processes_leave_at_end_of_input_and_remaining_ones_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mark = format!("bench-leave-{}", std::process::id());
        let starts = [shell("cat; echo in order"), shell("setsid sleep 62 < /dev/null & cat")];
        let mut running = Running::start(&starts, dir.path(), &mark).unwrap();
        until(&mut running, 5);
        assert_eq!(running.leave(Duration::from_millis(200)).await, 1, "the one in a session of its own");
        running.end().unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("log.0")).unwrap(), "in order\n");
    }
}

//! A program that runs on a host, with its output in files.

use super::Host;
use super::leftovers::kill;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Token of the jobs on these hosts, which no other machine reaches.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What the programs log, unless `RUST_LOG` states it.
const LOG: &str = "warn,openraft=off";

/// Time between two looks at whether a program has ended.
const POLL: Duration = Duration::from_millis(20);

/// A started program. It is killed on drop; its children are not.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    logs: PathBuf,
}

impl Program {
    /// Starts this program again on a host, with the arguments of a role. Writes the output to `LOGS/NAME.out` and
    /// `LOGS/NAME.err`, after what is there.
    ///
    /// # Errors
    /// The files cannot be created, or the program cannot be started.
    pub fn start(host: &Host, name: &str, arguments: &[String], logs: &Path) -> io::Result<Program> {
        let mut command = host.command(std::env::current_exe()?);
        let file = |end: &str| File::options().append(true).create(true).open(logs.join(format!("{name}.{end}")));
        command.args(arguments).stdin(Stdio::null()).stdout(file("out")?).stderr(file("err")?);
        command.env("GLOO_SOCKET_IFNAME", super::host::DEVICE).env("OMP_NUM_THREADS", "1");
        // Processes of one machine can read each other's memory, but those of different hosts cannot.
        command.env("TASKD_STATE_TRANSFER", "tcp");
        // No other machine is on the network of these hosts.
        command.env("TASKD_JOB_TOKEN", TOKEN).env("TASKD_INSECURE", "1");
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", LOG); // the engine logs each message that an unreachable voter does not answer
        }
        // A group of its own: Ctrl-C is for the program that drops the hosts.
        let child = command.process_group(0).spawn()?;
        Ok(Program { name: name.into(), child, logs: logs.to_owned() })
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(-1)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits until the program has ended, at most for this time. Returns `None` if it runs.
    ///
    /// # Errors
    /// The system does not report its end.
    pub async fn wait(&mut self, at_most: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + at_most;
        loop {
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() >= until {
                return Ok(ended);
            }
            sleep(POLL).await;
        }
    }

    /// Returns the standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.read("out")
    }

    /// Returns the standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.read("err")
    }

    fn read(&self, end: &str) -> String {
        let bytes = fs::read(self.logs.join(format!("{}.{end}", self.name))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! The hosts of one job on loopback: a program each, with all that it has started.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Bound of every wait, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// Time between two looks.
const POLL: Duration = Duration::from_millis(50);
/// Variable of all processes of a host.
const HOST_VARIABLE: &str = "TASKD_TEST_HOST";
/// A rank: appends its process id to a file until the job is to end.
const RANK: &str = r#"while [ ! -e "$0/end" ]; do echo $$ >> "$0/rank-$RANK"; sleep 0.05; done"#;

/// A job of several hosts, which are killed on drop.
pub(crate) struct Job {
    dir: tempfile::TempDir,
    network: String,
    pub(crate) hosts: BTreeMap<String, Child>,
}

/// What the hosts of a job have in common.
pub(crate) struct Plan<'a> {
    /// Options of the engine.
    pub(crate) engine: Vec<String>,
    pub(crate) ranks: u32,
    pub(crate) slots: u32,
    pub(crate) hosts: usize,
    pub(crate) lease: Duration,
    /// Names of the hosts, each with the digit of its address.
    pub(crate) names: &'a [&'a str],
}

impl Job {
    /// Creates a job without hosts.
    pub(crate) fn new() -> Job {
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let (pid, job) = (std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
        // An address that no other test uses: the process id, then a digit for the job and one for the host.
        let network = format!("127.{}.{}.{}", 1 + pid / 250 % 250, pid % 250, job + 1);
        Job { dir: tempfile::tempdir().unwrap(), network, hosts: BTreeMap::new() }
    }

    /// Returns the place of a host, `HOST=ADDRESS:PORT`.
    pub(crate) fn place(&self, host: &str) -> String {
        format!("{host}={}:9601", self.address(host))
    }

    pub(crate) fn address(&self, host: &str) -> String {
        let number: u32 = host.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
        format!("{}{number}", self.network)
    }

    /// Starts the hosts of a plan.
    pub(crate) fn start(&mut self, plan: &Plan<'_>) {
        fs::create_dir_all(self.shared()).unwrap();
        for host in plan.names {
            let child = self.train(host, host, plan);
            self.hosts.insert((*host).to_owned(), child);
        }
    }

    /// Starts a host at the address of `at`.
    pub(crate) fn train(&self, host: &str, at: &str, plan: &Plan<'_>) -> Child {
        let address = self.address(at);
        let dir = self.dir.path().join(host);
        fs::create_dir_all(&dir).unwrap();
        let mut words = vec!["train".to_owned()];
        words.extend(plan.engine.iter().cloned());
        let (dir, shared) = (dir.display().to_string(), self.shared().display().to_string());
        for (name, value) in [
            ("--host", host),
            ("--address", &address),
            ("--listen", &format!("{address}:9601")),
            ("--dir", &dir),
            ("--slots", &plan.slots.to_string()),
            ("--ranks", &plan.ranks.to_string()),
            ("--hosts", &plan.hosts.to_string()),
            ("--wait-s", &PATIENCE.as_secs().to_string()),
            ("--lease-ms", &plan.lease.as_millis().to_string()),
            ("--silent-ms", &(plan.lease / 4).as_millis().to_string()),
            ("--start-is", "running"),
        ] {
            words.extend([name.to_owned(), value.to_owned()]);
        }
        words.extend(["--", "sh", "-c", RANK, &shared].map(str::to_owned));
        self.program(host, &words)
    }

    /// Starts this program in a role, as a part of a host.
    pub(crate) fn program(&self, host: &str, words: &[String]) -> Child {
        let log = |end: &str| {
            File::options().append(true).create(true).open(self.dir.path().join(format!("{host}.{end}"))).unwrap()
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(words).stdin(Stdio::null()).stdout(log("out")).stderr(log("err"));
        command.env(HOST_VARIABLE, self.dir.path().join(host));
        command.env("TASKD_JOB_TOKEN", "0123456789abcdef0123456789abcdef");
        command.process_group(0).spawn().unwrap()
    }

    /// Ends a host as a loss of power does: no process of it runs any more.
    pub(crate) fn lose(&mut self, host: &str) {
        if let Some(mut child) = self.hosts.remove(host) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let mark = format!("{HOST_VARIABLE}={}", self.dir.path().join(host).display());
        while kill_all(&mark) > 0 {}
    }

    /// Waits for a condition, which returns its result.
    pub(crate) async fn until<T>(&self, what: &str, condition: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = condition() {
                return value;
            }
            assert!(Instant::now() < deadline, "it is not true that {what}:\n{}", self.excerpt());
            sleep(POLL).await;
        }
    }

    /// Waits until each of the ranks has made `number` more steps. Returns their process ids.
    pub(crate) async fn trains(&self, ranks: u32, number: usize) -> Vec<String> {
        let mut pids = Vec::new();
        for rank in 0..ranks {
            let before = self.steps(rank).len();
            let what = format!("rank {rank} trains");
            let last = self.until(&what, || {
                let steps = self.steps(rank);
                (steps.len() >= before + number).then(|| steps.last().cloned()).flatten()
            });
            pids.push(last.await);
        }
        pids
    }

    /// Returns the host that was elected last, and the number of elections so far.
    pub(crate) fn manager(&self) -> Option<(String, usize)> {
        let epoch = |line: &str| line.strip_prefix("manager ")?.rsplit_once("in epoch ")?.1.parse::<u64>().ok();
        let mut elected: Vec<(u64, String)> = Vec::new();
        for host in self.logs("out") {
            let text = self.read(&host, "out");
            elected.extend(text.lines().filter_map(epoch).map(|epoch| (epoch, host.clone())));
        }
        elected.sort();
        elected.last().map(|(_, host)| (host.clone(), elected.len()))
    }

    /// Waits until a host is elected that runs, after `elections` others.
    pub(crate) async fn elected(&self, elections: usize) -> (String, usize) {
        self.until("a manager is elected", || {
            self.manager().filter(|(host, number)| *number > elections && self.hosts.contains_key(host))
        })
        .await
    }

    /// Orders the job to end, and waits until all its hosts have ended.
    pub(crate) async fn end(&mut self) -> BTreeMap<String, ExitStatus> {
        fs::write(self.shared().join("end"), "").unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut ended = BTreeMap::new();
        for (host, mut child) in std::mem::take(&mut self.hosts) {
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                if Instant::now() >= deadline {
                    let excerpt = self.excerpt();
                    child.kill().unwrap();
                    panic!("{host} does not end with the job:\n{excerpt}");
                }
                sleep(POLL).await;
            };
            ended.insert(host, status);
        }
        ended
    }

    pub(crate) fn read(&self, host: &str, end: &str) -> String {
        let bytes = fs::read(self.dir.path().join(format!("{host}.{end}"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the ends of all outputs.
    pub(crate) fn excerpt(&self) -> String {
        let mut text = String::new();
        for end in ["out", "err"] {
            for host in self.logs(end) {
                let output = self.read(&host, end);
                let lines: Vec<&str> = output.lines().collect();
                for line in &lines[lines.len().saturating_sub(15)..] {
                    text += &format!("  {host}: {}\n", line.chars().take(400).collect::<String>());
                }
            }
        }
        text
    }

    fn logs(&self, end: &str) -> Vec<String> {
        let names =
            fs::read_dir(self.dir.path()).unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter_map(|name| name.strip_suffix(&format!(".{end}")).map(str::to_owned)).collect();
        names.sort();
        names
    }

    /// Returns the process ids of a rank, the newest last.
    pub(crate) fn pids(&self, rank: u32) -> Vec<String> {
        let mut pids = self.steps(rank);
        pids.dedup();
        pids
    }

    /// Returns the directory of a host.
    pub(crate) fn dir(&self, host: &str) -> PathBuf {
        self.dir.path().join(host)
    }

    fn steps(&self, rank: u32) -> Vec<String> {
        let text = fs::read_to_string(self.shared().join(format!("rank-{rank}"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn shared(&self) -> PathBuf {
        self.dir.path().join("shared")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let hosts: Vec<String> = self.hosts.keys().cloned().collect();
        hosts.iter().for_each(|host| self.lose(host));
        let all = format!("{HOST_VARIABLE}={}", self.dir.path().display());
        while kill_all(&all) > 0 {}
    }
}

/// Kills the processes with an environment that contains this text. Returns their number.
fn kill_all(mark: &str) -> usize {
    let mut killed = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let environment = fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).unwrap_or_default();
        let is_marked = environment.split(|byte| *byte == 0).any(|line| line.starts_with(mark.as_bytes()));
        if is_marked && let Some(pid) = Pid::from_raw(pid) {
            killed += usize::from(kill_process(pid, Signal::KILL).is_ok());
        }
    }
    killed
}

//! Describes a launcher's environment for the suite: programs for processes that run, exit, and resist a stop.

use crate::job::{NodeId, WorkerSpec};
use crate::testing::doubles::Calls;
use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A program for the launcher conformance suite: its specification, and a function that counts what the program's
/// processes have done. The function counts without help of the launcher.
pub struct Witnessed {
    pub(super) spec: WorkerSpec,
    count: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Witnessed {
    /// Creates the value from the specification of a program and a function that counts what the program's processes
    /// have done. The `Programs` method to which the value is passed, such as [`with_counted`](Programs::with_counted),
    /// defines what `count` has to count.
    pub fn new(spec: WorkerSpec, count: impl Fn() -> usize + Send + Sync + 'static) -> Witnessed {
        Witnessed { spec, count: Box::new(count) }
    }

    pub(super) fn count(&self) -> usize {
        (self.count)()
    }
}

/// Control over the hosts of the launcher under test: the suite cuts hosts off, reconnects and removes them.
#[async_trait]
pub trait Hosts: Send + Sync {
    /// Cuts off the connection between the launcher and this host. The host's processes continue.
    async fn hide(&self, node: &NodeId);
    /// Restores the connection between the launcher and this host.
    async fn show(&self, node: &NodeId);
    /// Ends the host with its processes, and reports to the launcher that it will not come back.
    async fn remove(&self, node: &NodeId);
}

type Witness = Box<dyn Fn() -> Witnessed + Send + Sync>;

/// The programs that the launcher conformance suite starts, so that processes behave as a clause requires.
///
/// Two programs are required. Without one of the further programs, the suite skips the clauses that need it, and
/// reports this. [`Programs::shell`] has all but the hosts and the counts of calls, for launchers that run commands
/// on this machine.
pub struct Programs {
    pub(super) runs: Box<dyn Fn() -> WorkerSpec + Send + Sync>,
    pub(super) exits: Box<dyn Fn(Duration, i32) -> WorkerSpec + Send + Sync>,
    pub(super) unstartable: Vec<WorkerSpec>,
    pub(super) counted: Option<Witness>,
    pub(super) stubborn: Option<Witness>,
    pub(super) tree: Option<Witness>,
    pub(super) hosts: Option<Box<dyn Hosts>>,
    pub(super) calls: Option<Calls>,
}

impl Programs {
    /// Creates the two required programs. `runs` returns a program that runs until it receives a stop; `exits` returns
    /// a program that exits by itself after the given time with the given exit code.
    pub fn new(
        runs: impl Fn() -> WorkerSpec + Send + Sync + 'static,
        exits: impl Fn(Duration, i32) -> WorkerSpec + Send + Sync + 'static,
    ) -> Programs {
        Programs {
            runs: Box::new(runs),
            exits: Box::new(exits),
            unstartable: Vec::new(),
            counted: None,
            stubborn: None,
            tree: None,
            hosts: None,
            calls: None,
        }
    }

    /// Adds a program that cannot be started, such as a command that does not exist. May be called several times.
    #[must_use]
    pub fn with_unstartable(mut self, spec: WorkerSpec) -> Programs {
        self.unstartable.push(spec);
        self
    }

    /// Adds a program that runs until it is stopped. The function in its `Witnessed` counts the processes that were
    /// started from the program.
    #[must_use]
    pub fn with_counted(mut self, counted: impl Fn() -> Witnessed + Send + Sync + 'static) -> Programs {
        self.counted = Some(Box::new(counted));
        self
    }

    /// Adds a program that only a forced stop ends. The function in its `Witnessed` counts the processes that have
    /// begun to ignore other stops.
    #[must_use]
    pub fn with_stubborn(mut self, stubborn: impl Fn() -> Witnessed + Send + Sync + 'static) -> Programs {
        self.stubborn = Some(Box::new(stubborn));
        self
    }

    /// Adds a program that runs until it is stopped and has descendants. The function in its `Witnessed` counts the
    /// living processes: the program's own and its descendants.
    #[must_use]
    pub fn with_tree(mut self, tree: impl Fn() -> Witnessed + Send + Sync + 'static) -> Programs {
        self.tree = Some(Box::new(tree));
        self
    }

    /// Adds the object that cuts off, reconnects and removes the launcher's hosts.
    #[must_use]
    pub fn with_hosts(mut self, hosts: impl Hosts + 'static) -> Programs {
        self.hosts = Some(Box::new(hosts));
        self
    }

    /// Adds counters of the calls that reach an inner launcher, for a launcher under test that wraps another one: put a
    /// [`Counted`](crate::testing::doubles::Counted) around the inner launcher.
    /// [`FakeLauncher`](crate::testing::doubles::FakeLauncher) counts its calls by itself, and its programs include the
    /// counters.
    #[must_use]
    pub fn with_calls(mut self, calls: &Calls) -> Programs {
        self.calls = Some(calls.clone());
        self
    }

    /// Returns programs for `sh` on this machine, for launchers that run commands here unchanged. The programs write
    /// files into a temporary directory, which is removed when the last of these programs is dropped. Processes that
    /// the launcher has not stopped by then are killed if they have the environment with which they were to be started;
    /// otherwise they end by themselves after ten minutes.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created.
    pub fn shell() -> std::io::Result<Programs> {
        let marks = Arc::new(Marks { dir: tempfile::tempdir()?, next: AtomicU32::new(0) });
        let (counted, stubborn, tree) = (Arc::clone(&marks), Arc::clone(&marks), Arc::clone(&marks));
        let (runs, exits) = (Arc::clone(&marks), marks);
        let exits = move |after: Duration, code| exits.sh(&format!("sleep {}; exit {code}", after.as_secs_f64()));
        Ok(Programs::new(move || runs.sh("exec sleep 600"), exits)
            .with_unstartable(WorkerSpec::new(["/nonexistent/command-of-the-conformance-suite"]))
            .with_counted(move || counted.witnessed(&format!("{MARK}; exec sleep 600"), lines))
            .with_stubborn(move || stubborn.witnessed(&format!("trap '' TERM; {MARK}; {RESIST}"), lines))
            .with_tree(move || tree.witnessed(&format!("{CHILDREN}; {MARK}; wait"), alive)))
    }
}

const MARK: &str = r#"echo $$ >>"$MARKS""#;
const RESIST: &str = "for i in $(seq 600); do sleep 1; done";
/// One child in its parent's process group, and one in its own session if the machine has `setsid`.
const CHILDREN: &str = r#"for by in "" $(command -v setsid); do $by sleep 600 & echo $! >>"$MARKS"; done"#;

/// A directory in which each shell program writes a file, one line per process.
struct Marks {
    dir: tempfile::TempDir,
    next: AtomicU32,
}

/// Variable that identifies the processes of a run; its value is the directory of their marks.
const OF_RUN: &str = "TASKD_CONFORMANCE_RUN";

impl Drop for Marks {
    /// Kills the processes that a launcher with a broken contract has left running, so that none remains. The suite has
    /// reported them.
    fn drop(&mut self) {
        let ours = format!("{OF_RUN}={}", self.dir.path().display());
        let is_ours = |pid: &i32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == ours.as_bytes())
        };
        // A process may start another one during the search: repeat until none is found, within a bound.
        for _ in 0..LOOKS_MAX {
            let pids = std::fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| {
                entry.ok()?.file_name().to_str()?.parse::<i32>().ok() // an entry that is not a number is not a process
            });
            let left: Vec<Pid> = pids.filter(is_ours).filter_map(Pid::from_raw).collect();
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL); // it may have ended in the meantime
            }
        }
    }
}

/// Largest number of searches for remaining processes.
const LOOKS_MAX: u32 = 100;

impl Marks {
    /// Returns a program that runs a script in `sh`, with an environment variable by which its processes are recognised
    /// as part of this run.
    fn sh(&self, script: &str) -> WorkerSpec {
        WorkerSpec::new(["sh", "-c", script]).with_env(OF_RUN, self.dir.path().display().to_string())
    }

    /// Returns a program whose processes write marks into a file of its own, and whose `count` is computed from that
    /// file.
    fn witnessed(self: &Arc<Marks>, script: &str, count: fn(&str) -> usize) -> Witnessed {
        let file: PathBuf = self.dir.path().join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let spec = self.sh(script).with_env("MARKS", file.display().to_string());
        let keep = Arc::clone(self);
        Witnessed::new(spec, move || {
            let _ = &keep.dir;
            std::fs::read_to_string(&file).map_or(0, |text| count(&text))
        })
    }
}

fn lines(text: &str) -> usize {
    text.lines().count()
}

/// Returns the number of processes that exist and are not zombies, among the process ids in the text, one per line.
fn alive(text: &str) -> usize {
    let state = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ").map(|(_, rest)| !rest.starts_with('Z'))
    };
    text.lines().filter(|pid| state(pid) == Some(true)).count()
}

impl fmt::Debug for Witnessed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witnessed").field("spec", &self.spec).field("count", &self.count()).finish()
    }
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs")
            .field("runs", &(self.runs)())
            .field("exits", &(self.exits)(Duration::from_secs(1), 0))
            .field("unstartable", &self.unstartable)
            .field("counted", &self.counted.is_some())
            .field("stubborn", &self.stubborn.is_some())
            .field("tree", &self.tree.is_some())
            .field("hosts", &self.hosts.is_some())
            .field("calls", &self.calls.is_some())
            .finish()
    }
}

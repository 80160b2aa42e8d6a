//! What the suite must know about the world of a launcher: how to make processes that run, end, and resist.

use crate::job::{NodeId, WorkerSpec};
use crate::testing::doubles::Calls;
use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A specification, and a figure that is seen from outside of the launcher.
pub struct Witnessed {
    pub(super) spec: WorkerSpec,
    count: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Witnessed {
    /// Processes from `spec` change what `count` returns; what that is, the method that takes this says.
    pub fn new(spec: WorkerSpec, count: impl Fn() -> usize + Send + Sync + 'static) -> Witnessed {
        Witnessed { spec, count: Box::new(count) }
    }

    pub(super) fn count(&self) -> usize {
        (self.count)()
    }
}

/// Where the launcher's hosts can be taken out of its sight.
#[async_trait]
pub trait Hosts: Send + Sync {
    /// Cuts the launcher off from this host. Its processes go on.
    async fn hide(&self, node: &NodeId);
    /// Connects it again.
    async fn show(&self, node: &NodeId);
    /// Ends the host with its processes, and lets the launcher know that it will not come back.
    async fn remove(&self, node: &NodeId);
}

type Witness = Box<dyn Fn() -> Witnessed + Send + Sync>;

/// How the suite makes the launcher's processes do what a clause is about.
///
/// Two programs are needed. Each further one adds clauses; without it they are skipped, and the report says so.
/// [`Programs::shell`] has all but the hosts and the calls, for launchers that run commands of this machine.
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
    /// `runs` gives a program that runs until it is stopped politely, `exits` one that ends by itself after so long with
    /// this exit code.
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

    /// Adds a program that runs until it is stopped. Its witness counts how often a process was started from it.
    #[must_use]
    pub fn with_counted(mut self, counted: impl Fn() -> Witnessed + Send + Sync + 'static) -> Programs {
        self.counted = Some(Box::new(counted));
        self
    }

    /// Adds a program that ends by force only. Its witness counts the processes that have come so far as to resist.
    #[must_use]
    pub fn with_stubborn(mut self, stubborn: impl Fn() -> Witnessed + Send + Sync + 'static) -> Programs {
        self.stubborn = Some(Box::new(stubborn));
        self
    }

    /// Adds a program that runs until it is stopped and has descendants. Its witness counts how many processes of the
    /// tree are alive.
    #[must_use]
    pub fn with_tree(mut self, tree: impl Fn() -> Witnessed + Send + Sync + 'static) -> Programs {
        self.tree = Some(Box::new(tree));
        self
    }

    /// Adds a way to take hosts out of the launcher's sight.
    #[must_use]
    pub fn with_hosts(mut self, hosts: impl Hosts + 'static) -> Programs {
        self.hosts = Some(Box::new(hosts));
        self
    }

    /// Counts the calls that reach a launcher inside of the one that is checked: put a
    /// [`Counted`](crate::testing::doubles::Counted) around it. [`FakeLauncher`](crate::testing::doubles::FakeLauncher) counts
    /// by itself, and its programs know of it.
    #[must_use]
    pub fn with_calls(mut self, calls: &Calls) -> Programs {
        self.calls = Some(calls.clone());
        self
    }

    /// Programs for `sh` on this machine, for launchers that run commands on it as they are. They leave marks in a
    /// directory that goes with the last of these programs. So do their processes: what a launcher has not stopped by then is
    /// killed, as long as it has the environment that it was to be started with, and else ends by itself after ten minutes.
    ///
    /// # Errors
    /// When the directory cannot be made.
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
/// One child in the group of its parent, one in a session of its own where the machine has `setsid`.
const CHILDREN: &str = r#"for by in "" $(command -v setsid); do $by sleep 600 & echo $! >>"$MARKS"; done"#;

/// A directory in which shell programs leave a file each, one line a process.
struct Marks {
    dir: tempfile::TempDir,
    next: AtomicU32,
}

/// The variable by which the processes of a run are known: the directory of their marks.
const OF_RUN: &str = "TASKD_CONFORMANCE_RUN";

impl Drop for Marks {
    /// Kills what a launcher has left behind that does not keep the contract: that is reported, and nothing stays of it.
    fn drop(&mut self) {
        let ours = format!("{OF_RUN}={}", self.dir.path().display());
        let is_ours = |pid: &i32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == ours.as_bytes())
        };
        // A process may start another one while we look: until none is found, within a bound.
        for _ in 0..LOOKS_MAX {
            let pids = std::fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| {
                entry.ok()?.file_name().to_str()?.parse::<i32>().ok() // what is no number is no process
            });
            let left: Vec<Pid> = pids.filter(is_ours).filter_map(Pid::from_raw).collect();
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL); // it may have ended just now
            }
        }
    }
}

/// How often processes that are left are looked for.
const LOOKS_MAX: u32 = 100;

impl Marks {
    /// A script for `sh`, whose processes are known as this run's.
    fn sh(&self, script: &str) -> WorkerSpec {
        WorkerSpec::new(["sh", "-c", script]).with_env(OF_RUN, self.dir.path().display().to_string())
    }

    /// A program that marks its processes in a file of its own, and what `count` makes of that file.
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

/// How many of the marked processes are there and are no zombies.
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

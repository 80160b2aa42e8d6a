//! A minimal launcher of real processes that keeps the contract, to run the suite on real time. Its processes outlive
//! every owner but not this program: it has no guard.

use crate::job::{Exit, Name, NodeId, ProcId, Termination, WorkerSpec};
use crate::launch::{
    Change, ChangeLog, LaunchError, Launcher, LauncherInfo, Listing, NodeState, NodeStatus, Phase, ProcStatus,
    Revision, StartBatch,
};
use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HOST: NodeId = NodeId(Name::new("here"));

/// Clones share the processes.
#[derive(Clone)]
pub(super) struct Commands(Arc<Shared>);

struct Shared {
    log: ChangeLog,
    /// Processes that have not been waited for.
    running: Mutex<BTreeMap<ProcId, Pid>>,
    /// Variables of all processes.
    env: BTreeMap<String, String>,
    /// True if it stops nothing.
    is_deaf: bool,
}

impl Default for Commands {
    fn default() -> Commands {
        Commands::of(BTreeMap::new(), false)
    }
}

impl Commands {
    fn of(env: BTreeMap<String, String>, is_deaf: bool) -> Commands {
        let log = ChangeLog::new(1);
        log.push(Change::Node(NodeStatus::new(HOST, NodeState::Ready, 64)));
        Commands(Arc::new(Shared { log, running: Mutex::default(), env, is_deaf }))
    }

    /// Returns a launcher that stops nothing, with this variable in all its processes.
    pub(super) fn deaf(name: &str, value: &str) -> Commands {
        Commands::of(BTreeMap::from([(name.to_owned(), value.to_owned())]), true)
    }

    fn run(&self, proc: &ProcId, mut child: Child) {
        let pid = Pid::from_child(&child);
        self.0.running.lock().unwrap().insert(proc.clone(), pid);
        self.0.log.push(status(proc, Some(pid), Phase::Running));
        let (shared, proc) = (Arc::clone(&self.0), proc.clone());
        std::thread::spawn(move || {
            let status_of_exit = child.wait().unwrap();
            shared.running.lock().unwrap().remove(&proc);
            let signal = |number| Termination::Signal { number, core_dumped: status_of_exit.core_dumped() };
            let how = status_of_exit.code().map(Termination::Code).or(status_of_exit.signal().map(signal));
            let exit = Exit::new(how.unwrap_or(Termination::Unknown));
            shared.log.push(status(&proc, Some(pid), Phase::Exited(Box::new(exit))));
        });
    }
}

fn status(proc: &ProcId, pid: Option<Pid>, phase: Phase) -> Change {
    let pid = pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    let instance = Name::from(pid.map_or_else(String::new, |pid| pid.to_string()));
    Change::Proc(ProcStatus::new(proc.clone(), instance, phase).with_node(HOST).with_pid(pid))
}

fn spawn(spec: &WorkerSpec, env: &BTreeMap<String, String>) -> std::io::Result<Child> {
    let mut command = Command::new(&spec.argv[0]);
    command.args(&spec.argv[1..]).envs(&spec.env).envs(env).stdin(Stdio::null()).spawn()
}

/// Returns the process and all its descendants.
fn tree(root: Pid) -> Vec<Pid> {
    let file = format!("/proc/{0}/task/{0}/children", root.as_raw_nonzero());
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let children = text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    std::iter::once(root).chain(children.flat_map(tree)).collect()
}

#[async_trait]
impl Launcher for Commands {
    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("commands").with_limitation("nothing outlives the program")
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let exists = |order: &&crate::launch::StartOrder| !order.spec.argv[0].starts_with("/nonexistent");
        if !batch.starts.iter().all(|order| exists(&order)) {
            return Err(LaunchError::Refused("there is no such command".into()));
        }
        for order in &batch.starts {
            let Change::Proc(pending) = status(&order.proc, None, Phase::Pending("accepted".into())) else { continue };
            if !self.0.log.admit([pending]).is_empty() {
                self.run(&order.proc, spawn(&order.spec, &self.0.env).unwrap());
            }
        }
        Ok(())
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        if self.0.is_deaf {
            return Ok(());
        }
        let running = self.0.running.lock().unwrap().clone();
        for (proc, pid) in procs.iter().filter_map(|proc| Some((proc.clone(), *running.get(proc)?))) {
            let all = tree(pid);
            for pid in &all {
                let _ = kill_process(*pid, Signal::TERM); // it may have ended in the meantime
            }
            let shared = Arc::clone(&self.0);
            tokio::spawn(async move {
                tokio::time::sleep(grace).await;
                if shared.running.lock().unwrap().contains_key(&proc) {
                    for pid in tree(pid) {
                        let _ = kill_process(pid, Signal::KILL);
                    }
                }
            });
        }
        Ok(())
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        Ok(self.0.log.listing())
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.0.log.after(from).await
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.0.log.acknowledge(exits);
        Ok(())
    }
}

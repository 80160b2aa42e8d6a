use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{Exit, Name, ProcId, Termination};
use taskd_core::launch::*;

const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Launcher that runs ranks as plain child processes of this program. Clones share the processes.
#[derive(Clone)]
pub struct Children(Arc<ChangeLog>);

impl Children {
    pub fn new() -> Children {
        Children(Arc::new(ChangeLog::starting_now()))
    }

    fn report(&self, proc: &ProcId, pid: Option<u32>, phase: Phase) {
        self.0.push(Change::Proc(status(proc, pid, phase)));
    }

    /// Runs one process to its end, on a thread of its own.
    fn run(&self, order: &StartOrder) {
        let spec = &order.spec;
        let mut command = Command::new(&spec.argv[0]);
        let child = command.args(&spec.argv[1..]).env("ACME_PROC", order.proc.to_string()).envs(&spec.env).spawn();
        let pid = child.as_ref().ok().map(Child::id);
        if pid.is_some() {
            self.report(&order.proc, pid, Phase::Running);
        }
        let how = child.and_then(|mut child| child.wait()).map_or(Termination::Unknown, termination);
        self.report(&order.proc, pid, Phase::Exited(Box::new(Exit::new(how)))); // also when it could not be started
    }

    /// Signals those of these processes that run, with all their descendants. Returns false if all of them have ended.
    fn signal(&self, procs: &[ProcId], signal: Signal) -> bool {
        let listed = self.0.listing().procs.into_iter();
        let left: Vec<ProcStatus> = listed.filter(|p| procs.contains(&p.proc) && !p.phase.is_exited()).collect();
        for pid in left.iter().filter_map(|p| p.pid).flat_map(tree) {
            let _ = Pid::from_raw(pid.cast_signed()).map(|pid| kill_process(pid, signal)); // it may have ended just now
        }
        !left.is_empty()
    }
}

fn status(proc: &ProcId, pid: Option<u32>, phase: Phase) -> ProcStatus {
    let instance = Name::from(pid.map_or_else(String::new, |pid| pid.to_string()));
    ProcStatus::new(proc.clone(), instance, phase).with_pid(pid)
}

fn termination(status: ExitStatus) -> Termination {
    let signal = |number| Termination::Signal { number, core_dumped: status.core_dumped() };
    status.code().map(Termination::Code).or(status.signal().map(signal)).unwrap_or(Termination::Unknown)
}

fn tree(root: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{root}/task/{root}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    std::iter::once(root).chain(children.flat_map(tree)).collect()
}

#[async_trait::async_trait]
impl Launcher for Children {
    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("acme.children").with_limitation("when this program is killed its ranks are left behind")
    }
    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        for order in &batch.starts {
            let pending = status(&order.proc, None, Phase::Pending("accepted".into()));
            if !self.0.admit([pending]).is_empty() {
                let (children, order) = (self.clone(), order.clone());
                std::thread::spawn(move || children.run(&order));
            }
        }
        Ok(())
    }
    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.signal(procs, Signal::TERM);
        let (children, procs) = (self.clone(), procs.to_vec());
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            while children.signal(&procs, Signal::KILL) {
                tokio::time::sleep(AGAIN_AFTER).await; // one that was only accepted may run by now
            }
        });
        Ok(())
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        Ok(self.0.listing())
    }
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.0.after(from).await
    }
    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.0.acknowledge(exits);
        Ok(())
    }
}

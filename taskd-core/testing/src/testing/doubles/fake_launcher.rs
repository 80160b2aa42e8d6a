//! A launcher whose processes exist in memory only, and end when a test ends them.

use super::{Calls, FakeProgram};
use crate::job::{CommandId, Exit, Name, NodeId, ProcId, Termination, WorkerSpec};
use crate::launch::{
    Change, ChangeLog, DirectiveBatch, LaunchError, Launcher, LauncherInfo, Listing, NodeState, NodeStatus, Phase,
    Place, PrepareOptions, ProcStatus, Revision, StartBatch, StartOrder,
};
use crate::testing::conformance::launcher::{Hosts, Programs, Witnessed};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// Variable that distinguishes the processes that were started from one specification.
const LABEL: &str = "FAKE_LABEL";

/// A launcher for tests that keeps the whole contract of launchers and runs no real processes: a test controls its
/// fake processes.
///
/// The processes outlive a handle: [`attach`](FakeLauncher::attach) returns the handle that a new owner would have
/// after the old owner was killed. The launcher uses tokio's time, so a test with paused time never waits.
///
/// ```
/// use std::sync::Arc;
/// use taskd_core::job::{ProcId, Termination, World};
/// use taskd_core::launch::{Launcher, Place, StartBatch, StartOrder};
/// use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let launcher = FakeLauncher::new();
/// let (proc, spec) = (ProcId::rank(0, 1), Arc::new(FakeProgram::Runs.spec()));
/// let starts = vec![StartOrder::new(proc.clone(), Place::anywhere(), spec)];
/// launcher.start(&StartBatch::new(Arc::new(World::first(Default::default())), starts)).await.unwrap();
///
/// let next_owner = launcher.attach();
/// drop(launcher);
/// next_owner.kill(&proc);
/// let exit = next_owner.list().await.unwrap().procs[0].phase.termination();
/// assert_eq!(exit, Some(Termination::Signal { number: 9, core_dumped: false }));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FakeLauncher {
    world: Arc<FakeWorld>,
}

#[derive(Debug)]
struct FakeWorld {
    log: ChangeLog,
    lifeline: bool,
    calls: Calls,
    /// The directory that the launcher reports as the place of its processes' output.
    output_dir: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    procs: BTreeMap<ProcId, FakeProc>,
    nodes: BTreeMap<NodeId, NodeStatus>,
}

#[derive(Debug)]
struct FakeProc {
    node: NodeId,
    pid: u32,
    spec: Arc<WorkerSpec>,
    frozen: bool,
    /// How the process ended, or will end once it is no longer frozen.
    end: Option<Termination>,
    /// True if the launcher has reported the end of the process.
    reported: bool,
}

impl Default for FakeLauncher {
    fn default() -> FakeLauncher {
        FakeLauncher::new()
    }
}

impl FakeLauncher {
    /// Creates a launcher with one host, `fake-host`, that can hold 64 ranks, and without lifelines: the launcher
    /// reports a death only by the exit of the process.
    #[must_use]
    pub fn new() -> FakeLauncher {
        FakeLauncher::with_nodes(["fake-host"], 64)
    }

    /// Creates a launcher with hosts of these names. Each host reports room for `slots` ranks, but accepts more.
    pub fn with_nodes<N: Into<Name>>(names: impl IntoIterator<Item = N>, slots: u32) -> FakeLauncher {
        let status = |name: N| NodeStatus::new(NodeId(name.into()), NodeState::Ready, slots);
        FakeLauncher::build(names.into_iter().map(status), false, None)
    }

    /// Returns a launcher with the same hosts, without processes and with lifelines: it reports a [`Phase::Dead`]
    /// before each exit.
    #[must_use]
    pub fn with_lifeline(self) -> FakeLauncher {
        let nodes = self.world.lock().nodes.clone();
        FakeLauncher::build(nodes.into_values(), true, self.world.output_dir.clone())
    }

    /// Returns a launcher with the same hosts and without processes. It reports `dir` as the directory of the
    /// processes' output, but nothing is written there.
    #[must_use]
    pub fn with_output_in(self, dir: impl Into<PathBuf>) -> FakeLauncher {
        let nodes = self.world.lock().nodes.clone();
        FakeLauncher::build(nodes.into_values(), self.world.lifeline, Some(dir.into()))
    }

    fn build(nodes: impl Iterator<Item = NodeStatus>, lifeline: bool, output_dir: Option<PathBuf>) -> FakeLauncher {
        let (log, mut state) = (ChangeLog::new(1), State::default());
        for node in nodes {
            log.push(Change::Node(node.clone()));
            state.nodes.insert(node.node.clone(), node);
        }
        let calls = Calls::default();
        FakeLauncher { world: Arc::new(FakeWorld { log, lifeline, calls, output_dir, state: Mutex::new(state) }) }
    }

    /// Returns a second handle to the same fake processes, as a new owner of the processes would have.
    #[must_use]
    pub fn attach(&self) -> FakeLauncher {
        self.clone()
    }

    /// Ends a process by SIGKILL. Returns false if it does not run.
    pub fn kill(&self, proc: &ProcId) -> bool {
        self.end(proc, signal(SIGKILL))
    }

    /// Lets a process exit with this code. Returns false if it does not run.
    pub fn finish(&self, proc: &ProcId, code: i32) -> bool {
        self.end(proc, Termination::Code(code))
    }

    /// Ends a process in the given way. Returns false if it does not run.
    pub fn end(&self, proc: &ProcId, how: Termination) -> bool {
        self.world.end(proc, how)
    }

    /// Freezes a process, as SIGSTOP does: the launcher still reports it as running, and only a forced stop ends it.
    pub fn freeze(&self, proc: &ProcId) {
        if let Some(p) = self.world.lock().procs.get_mut(proc) {
            p.frozen = true;
        }
    }

    /// Lets a frozen process continue. If the process was due to end while it was frozen, it ends now.
    pub fn thaw(&self, proc: &ProcId) {
        let mut state = self.world.lock();
        if let Some(p) = state.procs.get_mut(proc) {
            p.frozen = false;
        }
        self.world.report_ends(&mut state);
    }

    /// Waits until the processes of the first ranks run in this incarnation.
    ///
    /// # Panics
    /// If they do not within a minute.
    pub async fn all_run(&self, ranks: u32, incarnation: u32) {
        let all = async {
            while !(0..ranks).all(|rank| self.runs(&ProcId::rank(rank, incarnation))) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("all ranks run in the end");
    }

    /// Returns true if the process was started and has not ended, whatever the launcher reports about it.
    #[must_use]
    pub fn runs(&self, proc: &ProcId) -> bool {
        self.world.lock().procs.get(proc).is_some_and(FakeProc::runs)
    }

    /// Returns true if a process of this incarnation, of any role, runs.
    #[must_use]
    pub fn runs_any(&self, incarnation: u32) -> bool {
        let state = self.world.lock();
        state.procs.iter().any(|(proc, known)| proc.incarnation.0 == incarnation && known.runs())
    }

    /// Changes the state of a host. While a host is [`NodeState::OutOfSight`], the changes of its processes are not
    /// reported; they are reported when the host is in another state. [`NodeState::Left`] ends the processes of the
    /// host.
    pub fn set_node(&self, node: &NodeId, to: NodeState) {
        let mut state = self.world.lock();
        let Some(known) = state.nodes.get_mut(node) else { return };
        known.state = to;
        let sent = known.clone();
        self.world.log.push(Change::Node(sent));
        if to == NodeState::Left {
            state.procs.values_mut().filter(|p| p.node == *node && p.runs()).for_each(|p| {
                p.frozen = false;
                p.end = Some(Termination::Unknown);
            });
        }
        self.world.report_ends(&mut state);
    }

    /// Returns the programs with which the launcher [conformance suite](crate::testing::conformance::launcher()) checks
    /// this launcher.
    #[must_use]
    pub fn programs(&self) -> Programs {
        let labels = Arc::new(AtomicU32::new(0));
        let witnessed = |program: FakeProgram, counts: fn(&FakeProc) -> bool| {
            let (labels, fake) = (Arc::clone(&labels), self.clone());
            move || {
                let label = labels.fetch_add(1, Ordering::Relaxed).to_string();
                let fake = fake.clone();
                let spec = program.spec().with_env(LABEL, label.clone());
                let has_label = move |p: &FakeProc| p.spec.env.get(LABEL) == Some(&label);
                Witnessed::new(spec, move || {
                    fake.world.lock().procs.values().filter(|p| has_label(p) && counts(p)).count()
                })
            }
        };
        Programs::new(|| FakeProgram::Runs.spec(), |after, code| FakeProgram::Exits { after, code }.spec())
            .with_unstartable(FakeProgram::CannotStart.spec())
            .with_unstartable(FakeProgram::Refused.spec())
            .with_counted(witnessed(FakeProgram::Runs, |_| true))
            .with_stubborn(witnessed(FakeProgram::Stubborn, |_| true))
            .with_tree(witnessed(FakeProgram::Runs, FakeProc::runs))
            .with_hosts(self.clone())
            .with_calls(&self.world.calls)
    }
}

impl FakeProc {
    fn runs(&self) -> bool {
        self.end.is_none() || self.frozen
    }
}

impl FakeWorld {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a process by force or by itself. A frozen process ends by SIGKILL only, or when it is thawed. Returns false
    /// if the process does not run.
    fn end(&self, proc: &ProcId, how: Termination) -> bool {
        let mut state = self.lock();
        let Some(p) = state.procs.get_mut(proc).filter(|p| p.runs()) else { return false };
        p.end = Some(how);
        p.frozen &= how != signal(SIGKILL);
        self.report_ends(&mut state);
        true
    }

    /// Reports every end of a process that was not reported yet, except on hosts that are out of sight.
    fn report_ends(&self, state: &mut State) {
        let State { procs, nodes } = state;
        let hidden = |node: &NodeId| nodes.get(node).is_some_and(|n| n.state == NodeState::OutOfSight);
        for (proc, p) in procs.iter_mut().filter(|(_, p)| !p.reported && !p.runs() && !hidden(&p.node)) {
            p.reported = true;
            let how = p.end.unwrap_or(Termination::Unknown);
            if self.lifeline {
                self.log.push(Change::Proc(p.status(proc, Phase::Dead(how))));
            }
            self.log.push(Change::Proc(p.status(proc, Phase::Exited(Box::new(Exit::new(how))))));
        }
    }

    fn run(self: &Arc<FakeWorld>, state: &mut State, proc: &ProcId) {
        let Some(p) = state.procs.get_mut(proc) else { return };
        match FakeProgram::of(&p.spec) {
            FakeProgram::CannotStart | FakeProgram::Refused => {
                p.end = Some(Termination::Unknown);
                return self.report_ends(state);
            }
            FakeProgram::Exits { after, code } => self.end_later(proc.clone(), after, Termination::Code(code)),
            FakeProgram::Runs | FakeProgram::Stubborn => {}
        }
        self.log.push(Change::Proc(p.status(proc, Phase::Running)));
    }

    fn end_later(self: &Arc<FakeWorld>, proc: ProcId, after: Duration, how: Termination) {
        let world = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            world.end(&proc, how);
        });
    }
}

impl FakeProc {
    fn status(&self, proc: &ProcId, phase: Phase) -> ProcStatus {
        let instance = Name::from(format!("fake-{}", self.pid));
        ProcStatus::new(proc.clone(), instance, phase).with_node(self.node.clone()).with_pid(self.pid)
    }
}

impl State {
    /// Returns the host for a start order: the one that the order names, or else the permitted one with the fewest
    /// processes.
    fn place(&self, order: &StartOrder) -> Result<NodeId, LaunchError> {
        let ready = |n: &&NodeStatus| n.state == NodeState::Ready;
        let barred = BTreeSet::new();
        let (only, barred) = match &order.place {
            Place::On(node) => (Some(node), &barred),
            Place::AnyBut(nodes) => (None, nodes),
            other => return Err(LaunchError::Refused(format!("{}: unknown place {other:?}", order.proc))),
        };
        let fits = |n: &&NodeStatus| only.is_none_or(|o| *o == n.node) && !barred.contains(&n.node);
        let load = |n: &&NodeStatus| self.procs.values().filter(|p| p.node == n.node && p.runs()).count();
        let chosen = self.nodes.values().filter(ready).filter(fits).min_by_key(load);
        chosen.map(|n| n.node.clone()).ok_or_else(|| {
            LaunchError::Refused(format!("{} cannot be placed: none of its permitted hosts is ready", order.proc))
        })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // each method is counted
impl Launcher for FakeLauncher {
    fn info(&self) -> LauncherInfo {
        self.world.calls.count("info");
        let mut info = LauncherInfo::new("fake").with_detach();
        if let Some(dir) = &self.world.output_dir {
            let nodes = self.world.lock().nodes.clone();
            info.output_dirs = nodes.into_keys().map(|node| (node, dir.clone())).collect();
        }
        if self.world.lifeline { info.with_lifeline() } else { info }
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.world.calls.count("start");
        let mut state = self.world.lock();
        let mut placed = Vec::new();
        for order in &batch.starts {
            if FakeProgram::of(&order.spec) == FakeProgram::Refused {
                return Err(LaunchError::Refused(format!("{} asks to be refused", order.proc)));
            }
            placed.push((order, state.place(order)?));
        }
        for (order, node) in placed {
            let pid = u32::try_from(state.procs.len()).unwrap_or(u32::MAX).saturating_add(1);
            let spec = Arc::clone(&order.spec);
            let p = FakeProc { node, pid, spec, frozen: false, end: None, reported: false };
            let pending = p.status(&order.proc, Phase::Pending("accepted".into()));
            if !self.world.log.admit([pending]).is_empty() {
                state.procs.insert(order.proc.clone(), p);
                self.world.run(&mut state, &order.proc);
            }
        }
        Ok(())
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.world.calls.count("stop");
        for proc in procs {
            let listens = {
                let state = self.world.lock();
                let Some(p) = state.procs.get(proc).filter(|p| p.runs()) else { continue };
                !p.frozen && FakeProgram::of(&p.spec) != FakeProgram::Stubborn
            };
            if listens {
                self.world.end(proc, signal(SIGTERM));
            } else {
                self.world.end_later(proc.clone(), grace, signal(SIGKILL));
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        self.world.calls.count("list");
        Ok(self.world.log.listing())
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.world.calls.count("watch");
        self.world.log.after(from).await
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.world.calls.count("acknowledge");
        self.world.log.acknowledge(exits);
        Ok(())
    }

    async fn send_directives(&self, _id: CommandId, _batch: &DirectiveBatch) -> Result<(), LaunchError> {
        self.world.calls.count("send_directives");
        Err(LaunchError::Refused("processes in memory have no link".into()))
    }

    async fn prepare(&self, _batch: &StartBatch, _options: &PrepareOptions) -> Result<(), LaunchError> {
        self.world.calls.count("prepare");
        Ok(())
    }

    async fn detach(&self, _keep: Duration) -> Result<(), LaunchError> {
        self.world.calls.count("detach");
        Ok(()) // its processes belong to no handle
    }

    fn begin_shutdown(&self, _grace: Duration) {
        self.world.calls.count("begin_shutdown"); // the next owner stops what still runs
    }
}

#[async_trait]
impl Hosts for FakeLauncher {
    async fn hide(&self, node: &NodeId) {
        self.set_node(node, NodeState::OutOfSight);
    }
    async fn show(&self, node: &NodeId) {
        self.set_node(node, NodeState::Ready);
    }
    async fn remove(&self, node: &NodeId) {
        self.set_node(node, NodeState::Left);
    }
}

const fn signal(number: i32) -> Termination {
    Termination::Signal { number, core_dumped: false }
}

//! One run of the suite against one launcher: calls with a time limit, and a follower that checks all reported changes.

use super::super::verdict::Verdict;
use super::{
    ACKNOWLEDGED_IS_FORGOTTEN, Clause, DEAD_ONCE, DETACH_KEEPS, EXIT_ONCE, LIST_COMPLETE, LIST_HOSTS, LIST_THEN_WATCH,
    OUT_OF_SIGHT_IS_NOT_ENDED, PHASE_FORWARD, Programs, START_IS_REPORTED, START_NEVER_AGAIN, START_ONCE,
    START_ONLY_ACCEPTS, WATCH_WAITS,
};
use crate::job::{Member, Name, NodeId, ProcId, Role, Termination, WorkerSpec, World};
use crate::launch::{
    Change, LaunchError, Launcher, LauncherExt, Listing, NodeState, NodeStatus, Phase, Place, ProcStatus, Revision,
    StartBatch, StartOrder,
};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Number of consecutive `watch` calls without a change after which the suite stops watching.
const FRUITLESS_MAX: u32 = 50;
/// The `keep` time of a detached launcher: longer than any owner's absence.
const KEEP: Duration = Duration::from_secs(600);
/// Interval at which a condition outside the launcher is checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) patience: Duration,
    pub(super) settle: Duration,
    pub(super) grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { patience: Duration::from_secs(30), settle: Duration::from_millis(200), grace: Duration::from_secs(2) }
    }
}

type Making<'a> = Pin<Box<dyn Future<Output = Arc<dyn Launcher>> + 'a>>;

/// The author's closure, with its types erased.
pub(super) trait Maker {
    fn make(&self, owner: u32) -> Making<'_>;
}

impl<F, L> Maker for F
where
    F: AsyncFn(u32) -> L,
    L: Launcher + 'static,
{
    fn make(&self, owner: u32) -> Making<'_> {
        Box::pin(async move { self(owner).await.shared() })
    }
}

/// The current owner's knowledge about a process.
#[derive(Clone, Debug)]
struct Known {
    status: ProcStatus,
    /// True if the status comes from a listing, false if it comes from a change.
    listed: bool,
}

pub(super) struct Session<'a> {
    make: &'a dyn Maker,
    pub(super) programs: &'a Programs,
    pub(super) limits: Limits,
    pub(super) verdict: Verdict,
    /// The current owner's handle of the launcher; `None` only while the owner changes.
    launcher: Option<Arc<dyn Launcher>>,
    owner: u32,
    procs: u32,
    from: Revision,
    known: BTreeMap<ProcId, Known>,
    acknowledged: BTreeSet<ProcId>,
    nodes: BTreeMap<NodeId, NodeStatus>,
    fruitless: u32,
}

impl<'a> Session<'a> {
    pub(super) async fn open(make: &'a dyn Maker, programs: &'a Programs, limits: Limits, verdict: Verdict) -> Self {
        let mut session = Session {
            make,
            programs,
            limits,
            verdict,
            launcher: Some(make.make(1).await),
            owner: 1,
            procs: 0,
            from: Revision::default(),
            known: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            nodes: BTreeMap::new(),
            fruitless: 0,
        };
        session.attach().await;
        session
    }

    /// Ends the remaining processes, as well as the launcher can, and returns the verdict.
    pub(super) async fn close(mut self) -> Verdict {
        let left: Vec<ProcId> = self.known.keys().cloned().collect();
        let launcher = self.launcher();
        let stopped = timeout(self.limits.patience, launcher.stop(&left, Duration::ZERO)).await;
        if matches!(stopped, Ok(Ok(()))) {
            self.until(|s| left.iter().all(|p| s.exit(p).is_some())).await;
            let _ = timeout(self.limits.patience, launcher.acknowledge(&left)).await; // no caller watches any more
        }
        self.verdict
    }

    pub(super) fn launcher(&self) -> Arc<dyn Launcher> {
        Arc::clone(self.launcher.as_ref().expect("no call is made while the owner changes"))
    }

    pub(super) fn from(&self) -> Revision {
        self.from
    }

    pub(super) fn broken(&mut self, clause: Clause, seen: impl Into<String>) {
        self.verdict.broken(clause, seen);
    }

    /// Returns a process id that was never used. Every third one is a service.
    pub(super) fn new_proc(&mut self) -> ProcId {
        self.procs += 1;
        if self.procs.is_multiple_of(3) {
            ProcId::service(Name::from(format!("conformance-{}", self.procs)), 1)
        } else {
            ProcId::rank(self.procs, 1)
        }
    }

    // ---- calls ----

    /// Lets the owner detach, if it can, drops it, waits for `gap`, and attaches the next one. Returns true if it
    /// detached.
    pub(super) async fn change_owner(&mut self, gap: Duration) -> bool {
        let mut handed_over = false;
        if let Some(launcher) = self.launcher.take() {
            match timeout(self.limits.patience, launcher.detach(KEEP)).await {
                Ok(Ok(())) => handed_over = true,
                Ok(Err(LaunchError::Refused(why))) => self.verdict.skip(DETACH_KEEPS, why),
                Ok(Err(error)) => self.broken(DETACH_KEEPS, format!("`detach` failed: {error}")),
                Err(_) => {
                    self.broken(DETACH_KEEPS, format!("`detach` did not return within {:?}", self.limits.patience));
                }
            }
        }
        sleep(gap).await;
        self.owner += 1;
        self.launcher = Some(self.make.make(self.owner).await);
        handed_over
    }

    /// Makes a call that must return in time and without an error.
    pub(super) async fn call<T>(
        &mut self,
        clause: Clause,
        what: &str,
        call: impl Future<Output = Result<T, LaunchError>>,
    ) -> Option<T> {
        match timeout(self.limits.patience, call).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => self.broken(clause, format!("{what} failed: {error}")),
            Err(_) => self.broken(clause, format!("{what} did not return within {:?}", self.limits.patience)),
        }
        None
    }

    /// Starts processes that can be started. Returns false if the batch was not accepted.
    pub(super) async fn start(&mut self, orders: &[(ProcId, WorkerSpec)]) -> bool {
        let (launcher, batch) = (self.launcher(), batch(orders));
        match timeout(self.limits.patience, launcher.start(&batch)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => {
                self.broken(START_IS_REPORTED, format!("an order that can be carried out failed: {error}"))
            }
            Err(_) => self.broken(
                START_ONLY_ACCEPTS,
                format!("`start` of {} did not return within {:?}", orders[0].0, self.limits.patience),
            ),
        }
        false
    }

    /// Starts one process and waits until it runs. Returns false if it does not.
    pub(super) async fn run(&mut self, proc: &ProcId, spec: WorkerSpec) -> bool {
        if !self.start(&[(proc.clone(), spec)]).await {
            return false;
        }
        let runs = self.until(|s| s.phase(proc).is_some_and(|phase| phase.order() >= Phase::Running.order())).await;
        if !runs {
            let patience = self.limits.patience;
            self.broken(
                START_IS_REPORTED,
                format!("{proc} was accepted and not reported as running within {patience:?}"),
            );
        }
        runs
    }

    /// Stops, waits for the exits, and acknowledges them.
    pub(super) async fn finish(&mut self, procs: &[ProcId]) {
        let launcher = self.launcher();
        self.call(super::STOP_ENDS, "`stop`", launcher.stop(procs, self.limits.grace)).await;
        for proc in procs {
            self.exit_of(proc, super::STOP_ENDS).await;
        }
        self.acknowledge(procs).await;
    }

    pub(super) async fn acknowledge(&mut self, procs: &[ProcId]) {
        let launcher = self.launcher();
        let acknowledged =
            self.call(super::ACKNOWLEDGE_UNKNOWN_IS_FINE, "`acknowledge`", launcher.acknowledge(procs)).await;
        if acknowledged.is_some() {
            for proc in procs.iter().filter(|p| self.exit(p).is_some()).cloned().collect::<Vec<_>>() {
                self.known.remove(&proc);
                self.acknowledged.insert(proc);
            }
        }
    }

    /// Returns the result of `list`, checked for entries that must not be in it.
    pub(super) async fn list(&mut self) -> Listing {
        let launcher = self.launcher();
        let Some(listing) = self.call(LIST_COMPLETE, "`list`", launcher.list()).await else {
            return Listing::default();
        };
        for status in &listing.procs {
            if self.acknowledged.contains(&status.proc) {
                self.broken(ACKNOWLEDGED_IS_FORGOTTEN, format!("{} is still listed: {}", status.proc, status.phase));
            }
            if let Some(node) = status.node.as_ref().filter(|n| !listing.nodes.iter().any(|known| known.node == **n)) {
                self.broken(LIST_HOSTS, format!("{} runs on {node}, which is not listed", status.proc));
            }
        }
        listing
    }

    // ---- following ----

    /// Begins to follow from a new listing.
    pub(super) async fn attach(&mut self) {
        let listing = self.list().await;
        self.attach_to(listing);
    }

    pub(super) fn attach_to(&mut self, listing: Listing) {
        self.from = listing.revision;
        let listed = |status: ProcStatus| (status.proc.clone(), Known { status, listed: true });
        self.known = listing.procs.into_iter().map(listed).collect();
        self.nodes = listing.nodes.into_iter().map(|n| (n.node.clone(), n)).collect();
    }

    pub(super) fn status(&self, proc: &ProcId) -> Option<&ProcStatus> {
        self.known.get(proc).map(|k| &k.status)
    }

    pub(super) fn phase(&self, proc: &ProcId) -> Option<&Phase> {
        self.status(proc).map(|s| &s.phase)
    }

    /// Returns how a process has exited, if this was reported.
    pub(super) fn exit(&self, proc: &ProcId) -> Option<Termination> {
        self.phase(proc).filter(|phase| phase.is_exited()).and_then(Phase::termination)
    }

    pub(super) fn node(&self, node: &NodeId) -> Option<&NodeStatus> {
        self.nodes.get(node)
    }

    /// Follows until `arrived` returns true. Returns false if it does not within the patience.
    pub(super) async fn until(&mut self, arrived: impl Fn(&Self) -> bool) -> bool {
        let deadline = Instant::now() + self.limits.patience;
        while !arrived(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.follow(left).await {
                return arrived(self);
            }
        }
        true
    }

    /// Follows until no change has been reported for the settle time.
    pub(super) async fn settle(&mut self) {
        while self.follow(self.limits.settle).await {}
    }

    /// Follows until `proc` has exited; if it does not exit, `clause` is broken.
    pub(super) async fn exit_of(&mut self, proc: &ProcId, clause: Clause) -> Option<Termination> {
        self.until(|s| s.exit(proc).is_some()).await;
        let exit = self.exit(proc);
        if exit.is_none() {
            let last = self.phase(proc).map_or("nothing".to_owned(), ToString::to_string);
            let patience = self.limits.patience;
            self.broken(clause, format!("{proc} was not reported as exited within {patience:?}; last report: {last}"));
        }
        exit
    }

    /// Receives the launcher's next changes and records them. Returns false if none came in time, or none can be
    /// received.
    async fn follow(&mut self, within: Duration) -> bool {
        if self.fruitless >= FRUITLESS_MAX {
            return false;
        }
        let launcher = self.launcher();
        let Ok(answer) = timeout(within, launcher.watch(self.from)).await else { return false };
        self.fruitless += 1;
        match answer {
            Ok((changes, next)) => {
                if changes.is_empty() || next <= self.from {
                    let (count, from) = (changes.len(), self.from.seq);
                    self.broken(WATCH_WAITS, format!("{count} changes from {from}, and then the cursor {}", next.seq));
                } else {
                    self.fruitless = 0;
                }
                self.from = next;
                changes.into_iter().for_each(|change| self.take(change));
            }
            Err(LaunchError::Stale) => self.attach().await, // allowed, unless it never ends
            Err(error) => self.broken(LIST_THEN_WATCH, format!("`watch` failed: {error}")),
        }
        if self.fruitless == FRUITLESS_MAX {
            self.broken(LIST_THEN_WATCH, format!("`watch` was called {FRUITLESS_MAX} times and returned no changes"));
        }
        true
    }

    fn take(&mut self, change: Change) {
        let new = match change {
            Change::Node(node) => {
                self.nodes.insert(node.node.clone(), node);
                return;
            }
            Change::Proc(status) => status,
            Change::Link(_) | Change::Worker(_) | Change::Guard(_) => return,
        };
        let proc = new.proc.clone();
        if self.acknowledged.contains(&proc) {
            let clause = if new.phase.is_exited() { EXIT_ONCE } else { START_NEVER_AGAIN };
            return self
                .broken(clause, format!("{proc} was reported as {} after its exit was acknowledged", new.phase));
        }
        let old = self.known.get(&proc).cloned();
        let node = new.node.as_ref().or(old.as_ref().and_then(|old| old.status.node.as_ref()));
        let hidden = node.and_then(|n| self.nodes.get(n)).filter(|n| n.state == NodeState::OutOfSight);
        if let Some(NodeStatus { node, .. }) = hidden.filter(|_| new.phase.is_over()) {
            let seen = format!("{proc} was reported as {} while {node} was out of sight", new.phase);
            self.broken(OUT_OF_SIGHT_IS_NOT_ENDED, seen);
        }
        if let Some(Known { status: old, listed }) = old {
            if old.phase.order() >= Phase::Running.order() && old.instance != new.instance {
                self.broken(START_ONCE, format!("{proc} was {} and became {}", old.instance, new.instance));
            }
            let seen = format!("{proc} was reported as {} after {}", new.phase, old.phase);
            match (&old.phase, &new.phase) {
                _ if old == new && listed => self.broken(LIST_THEN_WATCH, format!("{seen}, which was listed")),
                (Phase::Exited(_), Phase::Exited(_)) => self.broken(EXIT_ONCE, seen),
                (Phase::Dead(_), Phase::Dead(_)) => self.broken(DEAD_ONCE, seen),
                (before, after) if after.order() < before.order() => self.broken(PHASE_FORWARD, seen),
                _ if old == new => self.broken(LIST_THEN_WATCH, seen),
                _ => {}
            }
            if new.phase.order() < old.phase.order() {
                return;
            }
        }
        self.known.insert(proc, Known { status: new, listed: false });
    }
}

/// Waits for a condition outside the launcher. Returns false if it is not met in time.
pub(super) async fn comes_about(within: Duration, condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(LOOK_EVERY).await;
    }
    true
}

/// Polls a call until it is ready, or until it has been pending `times` times.
pub(super) async fn polled<F: Future + Unpin>(call: &mut F, times: u32) -> Option<F::Output> {
    let mut pending = 0;
    poll_fn(|cx| match Pin::new(&mut *call).poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => {
            pending += 1;
            if pending >= times { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}

/// Returns a batch that starts these processes, on any host, in a world of their ranks.
pub(super) fn batch(orders: &[(ProcId, WorkerSpec)]) -> StartBatch {
    let member = |proc: &ProcId| match &proc.role {
        Role::Rank(rank) => Some((*rank, Member { incarnation: proc.incarnation, node: None, device: None })),
        Role::Service(_) => None,
    };
    let world = Arc::new(World::first(orders.iter().filter_map(|(proc, _)| member(proc)).collect()));
    let order =
        |(proc, spec): &(ProcId, WorkerSpec)| StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(spec.clone()));
    StartBatch::new(world, orders.iter().map(order).collect())
}

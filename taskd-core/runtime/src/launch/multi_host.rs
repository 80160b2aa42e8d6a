//! Combines several launchers into one: each contributes its hosts, and an order goes to the launcher that has the
//! named host.
//!
//! This launcher starts nothing by itself and trusts the reports of each part. A part that cannot be reached keeps its
//! hosts: they are out of sight, and nothing is reported about their processes.

mod cordons;
mod follow;
mod parts;
mod returned;
mod spare;

use super::{
    Change, ChangeLog, DirectiveBatch, LaunchError, Launcher, LauncherInfo, Listing, NodeState, NodeStatus, Phase,
    Place, PrepareOptions, ProcStatus, Revision, StartBatch,
};
use crate::job::{CommandId, ErrorReport, Exit, Name, NodeId, ProcId, Termination};
use async_trait::async_trait;
use cordons::Cordons;
use follow::{follow, missing};
use futures::future::join_all;
use parts::{Free, PartId, Parts};
use returned::Returned;
use spare::Spare;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// A launcher that combines several launchers, and places processes on the hosts of all of them.
///
/// The hosts must have different names. A start order that names no host goes to the host with the fewest
/// processes. Hosts without processes [prepare](Launcher::prepare) to start the ranks of the host with the most
/// ranks. Launchers can be [added](Self::add) and hosts [removed](Self::remove) at any time.
pub struct MultiHostLauncher {
    shared: Arc<Shared>,
    /// Two tasks per combined launcher, which follow it and prepare its hosts; all end when this value is dropped.
    following: Mutex<BTreeMap<PartId, JoinSet<()>>>,
}

struct Shared {
    parts: Mutex<Parts>,
    cordons: Mutex<Cordons>,
    log: ChangeLog,
    /// Start orders for which hosts without processes should prepare.
    spare: Spare,
}

impl fmt::Debug for MultiHostLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("parts", &self.shared.launchers()).finish_non_exhaustive()
    }
}

impl Default for MultiHostLauncher {
    /// Creates a launcher without hosts.
    fn default() -> MultiHostLauncher {
        let shared = Shared {
            parts: Mutex::default(),
            cordons: Mutex::default(),
            log: ChangeLog::starting_now(),
            spare: Spare::default(),
        };
        MultiHostLauncher { shared: Arc::new(shared), following: Mutex::default() }
    }
}

impl MultiHostLauncher {
    /// Combines `launchers` into one launcher. Returns when the processes and hosts of each of them have been listed.
    ///
    /// # Errors
    /// Returns the error of a launcher if its processes and hosts cannot be listed, and [`LaunchError::Refused`] if two
    /// launchers have hosts of the same name.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    pub async fn of<L: Launcher + 'static>(
        launchers: impl IntoIterator<Item = L>,
    ) -> Result<MultiHostLauncher, LaunchError> {
        let combined = MultiHostLauncher::default();
        for launcher in launchers {
            combined.add(launcher).await?;
        }
        Ok(combined)
    }

    /// Adds a launcher. Returns when its processes and hosts have been listed. A host that had [left](Self::remove) returns
    /// with the launcher that lists it.
    ///
    /// # Errors
    /// Returns the error of the launcher if its processes and hosts cannot be listed, and [`LaunchError::Refused`] if it has a
    /// host with the name of another launcher's.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    pub async fn add<L: Launcher + 'static>(&self, launcher: L) -> Result<(), LaunchError> {
        let launcher: Arc<dyn Launcher> = Arc::new(launcher);
        let listing = launcher.list().await?;
        let part = self.shared.lock().add(Arc::clone(&launcher), &listing)?;
        self.shared.take_listing(part, &listing);
        missing(&self.shared, &listing); // of those that were expected
        let mut following = JoinSet::new();
        following.spawn(follow(Arc::clone(&self.shared), part, listing));
        following.spawn(spare::keep_ready(Arc::clone(&self.shared), part));
        self.following.lock().unwrap_or_else(PoisonError::into_inner).insert(part, following);
        Ok(())
    }

    /// Lists a host that has no launcher yet as out of sight, with processes that may run on it. The host can be
    /// [removed](Self::remove) before a launcher with it is [added](Self::add).
    pub fn expect(&self, host: &NodeId, procs: impl IntoIterator<Item = ProcId>) {
        if self.shared.log.node(host).is_some() {
            return;
        }
        self.shared.log.push(Change::Node(NodeStatus::new(host.clone(), NodeState::OutOfSight, 0)));
        for proc in procs {
            self.shared.log.push(Change::Proc(awaited(proc, host)));
        }
    }

    /// Lists a host as out of sight from now on, until its launcher reports it again or it is [removed](Self::remove). For a
    /// host of which it is known that its launcher will not answer any more. One that is not known, or has left, stays as it
    /// is.
    pub fn lose_sight(&self, host: &NodeId) {
        if let Some(status) = self.shared.log.node(host).filter(|status| status.state != NodeState::Left) {
            self.shared.push_node(status.with_state(NodeState::OutOfSight));
        }
    }

    /// Reports that a host has left for good, and its processes with it, and drops the launcher of the host. `why` is the
    /// reason, in one sentence.
    ///
    /// The caller MUST be certain that no process of the host runs any more. A host that is not known, or has left, stays as
    /// it is.
    pub fn remove(&self, host: &NodeId, why: &str) {
        self.remove_together([(host.clone(), why.to_owned())].into(), None);
    }

    /// Reports that several hosts have left for good, as [`remove`](Self::remove) does for one, with the reason of each.
    /// `lost_with` is the fault or network domain that failed, if that explains the loss: see
    /// [`NodeStatus::lost_with`].
    pub fn remove_together(&self, hosts: BTreeMap<NodeId, String>, lost_with: Option<&Name>) {
        let mut gone = Vec::new();
        for (host, why) in hosts {
            let part = self.shared.lock().remove(&host);
            if let Some(part) = part {
                self.following.lock().unwrap_or_else(PoisonError::into_inner).remove(&part);
            }
            self.shared.cordons().forget(&host);
            if let Some(status) = self.shared.log.node(&host).filter(|status| status.state != NodeState::Left) {
                let left = status.with_state(NodeState::Left).with_why(&*why).with_lost_with(lost_with.cloned());
                self.shared.log.push(Change::Node(left));
                gone.push((host, why));
            }
        }
        // After all hosts: the first end of a process is judged with all losses known.
        for (host, why) in gone {
            self.shared.end_all_on(&host, &why);
        }
    }

    /// Reports a host as cordoned from now on while its launcher reports it as ready, also if no launcher lists it yet. Its
    /// standbys are kept ready. `why` is the reason, in one sentence; it replaces an earlier one.
    pub fn cordon(&self, host: &NodeId, why: &str) {
        let mut cordons = self.shared.cordons();
        if let Some(status) = cordons.cordon(host, why, self.shared.log.node(host)) {
            self.shared.log.push(Change::Node(status));
        }
    }

    /// Reports a host as its launcher does again.
    pub fn uncordon(&self, host: &NodeId) {
        let mut cordons = self.shared.cordons();
        if let Some(status) = cordons.uncordon(host, self.shared.log.node(host)) {
            self.shared.log.push(Change::Node(status));
        }
    }

    /// Returns the status of a host as it is listed; `None` if it is not known.
    #[must_use]
    pub fn node(&self, host: &NodeId) -> Option<NodeStatus> {
        self.shared.log.node(host)
    }
}

/// Phase of a process of which is not known whether it runs, because its host is out of sight.
const AWAITED: &str = "its host is out of sight";

/// Returns the status of a process that may run on a host that is out of sight.
fn awaited(proc: ProcId, host: &NodeId) -> ProcStatus {
    ProcStatus::new(proc, "expected", Phase::Pending(AWAITED.into())).with_node(host.clone())
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }

    fn cordons(&self) -> MutexGuard<'_, Cordons> {
        self.cordons.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }

    fn launchers(&self) -> Vec<Arc<dyn Launcher>> {
        self.lock().launchers.values().cloned().collect()
    }

    /// Returns a combined launcher.
    fn part(&self, part: PartId) -> Result<Arc<dyn Launcher>, LaunchError> {
        let removed = || LaunchError::Unreachable("its host has left".into());
        self.lock().launchers.get(&part).cloned().ok_or_else(removed)
    }

    /// Returns the launcher that has a host.
    fn part_of(&self, host: &NodeId) -> Option<PartId> {
        self.lock().hosts.get(host).copied()
    }

    /// Lists one of the combined launchers and adds the result to the history.
    async fn list_part(&self, part: PartId) -> Result<Listing, LaunchError> {
        let listing = self.part(part)?.list().await?;
        self.take_listing(part, &listing);
        Ok(listing)
    }

    fn take_listing(&self, part: PartId, listing: &Listing) {
        let nodes = listing.nodes.iter().cloned().map(Change::Node);
        let procs = listing.procs.iter().cloned().map(Change::Proc);
        let guards = listing.guards.iter().cloned().map(Change::Guard);
        let links = listing.links.iter().cloned().map(Change::Link);
        let failed = listing.failed_steps.iter().filter(|event| !self.log.lists_failed_step(event));
        let failed = failed.cloned().map(Change::Worker);
        // A guard explains the ends of its processes.
        self.take(part, guards.chain(nodes).chain(procs).chain(links).chain(failed));
    }

    fn take(&self, part: PartId, changes: impl IntoIterator<Item = Change>) {
        let mut returned = Returned::default();
        for change in changes {
            if let Change::Node(status) = &change {
                let mut parts = self.lock();
                if !parts.launchers.contains_key(&part) {
                    return; // its host has left meanwhile
                }
                parts.lists(part, &status.node);
            }
            self.spare.take(&change);
            returned.take(&change, &self.log);
            match change {
                Change::Node(status) => self.push_node(status),
                change => _ = self.log.push(change), // changes that are not new are counted
            }
        }
        if let Ok(launcher) = self.part(part) {
            returned.settle(launcher);
        }
    }

    /// Adds the status of a host to the history; a cordon takes precedence over a ready state.
    fn push_node(&self, status: NodeStatus) {
        let mut cordons = self.cordons(); // locked until the status is in the history: no cordon comes in between
        let status = cordons.applied(status);
        self.log.push(Change::Node(status));
    }

    /// Reports the ends of all processes of a host that has left.
    fn end_all_on(&self, host: &NodeId, why: &str) {
        for status in self.log.procs_on(host) {
            let mut exit = Exit::new(Termination::Unknown);
            exit.stderr_tail = why.to_owned();
            self.log.push(Change::Proc(status.with_phase(Phase::Exited(Box::new(exit)))));
        }
    }

    /// Assigns each start order to a launcher, and gives it a host.
    fn route(&self, batch: &StartBatch) -> Result<BTreeMap<PartId, StartBatch>, LaunchError> {
        let mut free = Free::default();
        let mut routed: BTreeMap<PartId, StartBatch> = BTreeMap::new();
        for order in &batch.starts {
            let known = self.log.proc(&order.proc).and_then(|status| status.node);
            let node = match (&order.place, known) {
                (Place::On(node), _) => node.clone(),
                (Place::AnyBut(_), Some(node)) => node,
                (Place::AnyBut(not), None) => free
                    .emptiest(&self.log, not)
                    .ok_or_else(|| LaunchError::Refused(format!("no host has room for {}", order.proc)))?,
                (other, _) => return Err(LaunchError::Refused(format!("{}: unknown place {other:?}", order.proc))),
            };
            let part = self.part_of(&node).ok_or_else(|| match self.log.node(&node) {
                Some(_) => LaunchError::Unreachable(format!("no launcher lists {node} now")),
                None => LaunchError::Refused(format!("no launcher of this fleet has {node}")),
            })?;
            let batch = || StartBatch::new(Arc::clone(&batch.world), Vec::new());
            let order = order.clone().with_place(Place::On(node));
            routed.entry(part).or_insert_with(batch).starts.push(order);
        }
        Ok(routed)
    }

    /// Returns true if each host of a launcher has processes.
    fn is_busy(&self, part: PartId) -> bool {
        let hosts: Vec<NodeId> = self.lock().hosts_of(part).cloned().collect();
        hosts.iter().all(|node| self.has_procs(node))
    }

    fn has_procs(&self, node: &NodeId) -> bool {
        self.log.procs_on(node).iter().any(|proc| !proc.phase.is_over())
    }

    /// Returns the hosts of a launcher that have no processes and accept new ones.
    fn idle(&self, of: &Listing) -> Vec<NodeId> {
        let idle = of.nodes.iter().filter(|n| n.state == NodeState::Ready && !self.has_procs(&n.node));
        idle.map(|n| n.node.clone()).collect()
    }

    async fn start_part(&self, part: PartId, batch: &StartBatch) -> Result<(), LaunchError> {
        self.part(part)?.start(batch).await?;
        let _ = self.list_part(part).await; // for the next list; else the follower lists
        Ok(())
    }

    /// Reports processes that were accepted with others but could not be started: they exit without having run. If their
    /// launcher could not be reached, or its host had no lease, no rank is to blame, and the next attempt costs nothing.
    fn not_started(&self, batch: &StartBatch, why: &LaunchError) {
        let is_unreachable = matches!(why, LaunchError::Unreachable(_));
        for order in &batch.starts {
            let mut exit = Exit::new(Termination::Unknown);
            exit.stderr_tail = format!("not started: {why}");
            exit.error = is_unreachable
                .then(|| Box::new(ErrorReport::new("launcher", "Unreachable", why.to_string()).with_retry_free(true)));
            let node = match &order.place {
                Place::On(node) => Some(node.clone()),
                _ => None,
            };
            let phase = Phase::Exited(Box::new(exit));
            let instance = Name::new("not-started");
            self.log.push(Change::Proc(ProcStatus::new(order.proc.clone(), instance, phase).with_node(node)));
        }
    }

    /// Settles the start on one launcher that has failed beside others: its processes may have started, and stop. If their
    /// host cannot be reached for that, it may be lost. Then they are listed as its processes and end with it, after it was
    /// reported: the host is the cause of their ends, not they.
    async fn settle_failed(&self, part: PartId, batch: &StartBatch, why: &LaunchError) {
        let procs: Vec<ProcId> = batch.starts.iter().map(|order| order.proc.clone()).collect();
        let stopped = match self.part(part) {
            Ok(launcher) => launcher.stop(&procs, Duration::ZERO).await,
            Err(error) => Err(error),
        };
        if stopped.is_ok() {
            return self.not_started(batch, why);
        }
        for order in &batch.starts {
            let Place::On(host) = &order.place else { continue };
            let state = || self.log.node(host).map(|status| status.state);
            if matches!(state(), Some(NodeState::OutOfSight | NodeState::Left)) {
                self.log.push(Change::Proc(awaited(order.proc.clone(), host)));
            }
            // Asked again: a host that has left meanwhile reports no end of what was added after that.
            if state() != Some(NodeState::OutOfSight) {
                self.not_started(&StartBatch::new(Arc::clone(&batch.world), vec![order.clone()]), why);
            }
        }
    }
}

#[async_trait]
impl Launcher for MultiHostLauncher {
    fn info(&self) -> LauncherInfo {
        let parts: Vec<LauncherInfo> = self.shared.launchers().iter().map(|part| part.info()).collect();
        let mut info = LauncherInfo::new("fleet");
        info.lifeline = !parts.is_empty() && parts.iter().all(|part| part.lifeline);
        info.supports_detach = parts.iter().all(|part| part.supports_detach);
        info.rendezvous_service = parts.iter().find_map(|part| part.rendezvous_service.clone());
        info.output_dirs = parts.iter().flat_map(|part| part.output_dirs.clone()).collect();
        info.uninitialised = parts.iter().flat_map(|part| part.uninitialised.clone()).collect();
        let without: BTreeSet<String> = parts.into_iter().flat_map(|part| part.limitations).collect();
        without.into_iter().fold(info, LauncherInfo::with_limitation)
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let routed = self.shared.route(batch)?;
        // All at once: the hosts of a world start together.
        let started = join_all(routed.iter().map(|(part, batch)| self.shared.start_part(*part, batch))).await;
        if !started.is_empty() && started.iter().all(Result::is_err) {
            return started.into_iter().collect();
        }
        for ((part, batch), result) in routed.iter().zip(started) {
            if let Err(error) = result {
                self.shared.settle_failed(*part, batch, &error).await;
            }
        }
        self.shared.spare.started(&routed);
        Ok(())
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        let mut routed: BTreeMap<Option<PartId>, Vec<ProcId>> = BTreeMap::new();
        for proc in procs {
            let part = match self.shared.log.proc(proc).and_then(|status| status.node) {
                None => None,
                Some(node) => match self.shared.part_of(&node) {
                    None => continue, // it ended with its host
                    some => some,
                },
            };
            routed.entry(part).or_default().push(proc.clone());
        }
        // Processes that are not known here may be known to any launcher.
        let unknown = routed.remove(&None).unwrap_or_default();
        let everywhere =
            (!unknown.is_empty()).then(|| self.shared.lock().launchers.keys().copied().collect::<Vec<_>>());
        for part in everywhere.into_iter().flatten() {
            routed.entry(Some(part)).or_default().extend(unknown.iter().cloned());
        }
        // All at once: a launcher that does not answer must not keep the others from stopping. Stopping the unknown is
        // no error.
        let stops = routed.into_iter().filter_map(|(part, procs)| Some((self.shared.part(part?).ok()?, procs)));
        let stops = stops.map(|(part, procs)| async move { part.stop(&procs, grace).await });
        join_all(stops).await.into_iter().collect()
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        Ok(self.shared.log.listing())
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.shared.log.after(from).await
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        let mut routed: BTreeMap<PartId, Vec<ProcId>> = BTreeMap::new();
        for proc in exits {
            let node = self.shared.log.proc(proc).and_then(|status| status.node);
            if let Some(part) = node.and_then(|node| self.shared.part_of(&node)) {
                routed.entry(part).or_default().push(proc.clone());
            }
        }
        let parts = routed.into_iter().filter_map(|(part, exits)| Some((self.shared.part(part).ok()?, exits)));
        let acknowledged = join_all(parts.map(|(part, exits)| async move { part.acknowledge(&exits).await })).await;
        acknowledged.into_iter().collect::<Result<(), LaunchError>>()?;
        self.shared.log.acknowledge(exits);
        Ok(())
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        let mut routed: BTreeMap<PartId, DirectiveBatch> = BTreeMap::new();
        for (proc, directive) in &batch.directives {
            let node = self.shared.log.proc(proc).and_then(|status| status.node);
            let part = node.and_then(|node| self.shared.part_of(&node));
            let part = part.ok_or_else(|| LaunchError::Refused(format!("no launcher of this fleet runs {proc}")))?;
            let none = || DirectiveBatch::new(Arc::clone(&batch.world), Vec::new());
            routed.entry(part).or_insert_with(none).directives.push((proc.clone(), directive.clone()));
        }
        let parts =
            routed.iter().map(|(part, batch)| async { self.shared.part(*part)?.send_directives(id, batch).await });
        join_all(parts).await.into_iter().collect()
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        for (part, batch) in self.shared.route(batch)? {
            self.shared.part(part)?.prepare(&batch, options).await?;
        }
        Ok(())
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        // Checked before the first launcher hands its processes over, which cannot be undone.
        let parts = self.shared.launchers();
        if let Some(cannot) = parts.iter().map(|part| part.info()).find(|info| !info.supports_detach) {
            let text = format!("the launcher {} cannot leave its processes to a later owner: stop them", cannot.name);
            return Err(LaunchError::Refused(text));
        }
        for (done, part) in parts.iter().enumerate() {
            match part.detach(keep).await {
                Err(error) if done > 0 => {
                    let name = part.info().name;
                    let text =
                        format!("{done} launchers have detached from their processes, and {name} has not: {error}");
                    return Err(LaunchError::Unreachable(text));
                }
                result => result?,
            }
        }
        Ok(())
    }

    fn begin_shutdown(&self, grace: Duration) {
        self.shared.launchers().iter().for_each(|part| part.begin_shutdown(grace));
    }
}

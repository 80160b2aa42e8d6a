//! Combines several launchers into one: each contributes its hosts, and an order goes to the launcher that has the
//! named host.
//!
//! This launcher starts nothing by itself and trusts the reports of each part. A part that cannot be reached keeps its
//! hosts: they are out of sight, and nothing is reported about their processes.

mod spare;

use super::{
    Change, ChangeLog, DirectiveBatch, LaunchError, Launcher, LauncherInfo, Listing, NodeState, NodeStatus, Phase,
    Place, PrepareOptions, ProcStatus, Revision, StartBatch,
};
use crate::job::{CommandId, Exit, Name, NodeId, ProcId, Termination};
use async_trait::async_trait;
use futures::future::join_all;
use spare::Spare;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Time to wait before an unreachable launcher is contacted again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// A launcher that combines several launchers, and places processes on the hosts of all of them.
///
/// The hosts must have different names. A start order that names no host goes to the host with the fewest
/// processes. Hosts without processes [prepare](Launcher::prepare) to start the ranks of the host with the most
/// ranks.
pub struct MultiHostLauncher {
    shared: Arc<Shared>,
    /// Two tasks per combined launcher, which follow it and prepare its hosts; all end when this value is dropped.
    _following: JoinSet<()>,
}

struct Shared {
    parts: Vec<Arc<dyn Launcher>>,
    log: ChangeLog,
    /// Start orders for which hosts without processes should prepare.
    spare: Spare,
}

impl fmt::Debug for MultiHostLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("parts", &self.shared.parts).finish_non_exhaustive()
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
        let parts: Vec<Arc<dyn Launcher>> = launchers.into_iter().map(|l| Arc::new(l) as Arc<dyn Launcher>).collect();
        let shared = Arc::new(Shared { parts, log: ChangeLog::starting_now(), spare: Spare::default() });
        let mut hosts: BTreeSet<NodeId> = BTreeSet::new();
        let mut following = JoinSet::new();
        for index in 0..shared.parts.len() {
            let listing = shared.list_part(index).await?;
            if let Some(twice) = listing.nodes.iter().find(|n| !hosts.insert(n.node.clone())) {
                return Err(LaunchError::Refused(format!(
                    "two launchers have a host named {}: rename one",
                    twice.node
                )));
            }
            following.spawn(follow(Arc::clone(&shared), index, listing));
            following.spawn(spare::keep_ready(Arc::clone(&shared), index));
        }
        Ok(MultiHostLauncher { shared, _following: following })
    }
}

impl Shared {
    /// Lists one of the combined launchers and adds the result to the history.
    async fn list_part(&self, part: usize) -> Result<Listing, LaunchError> {
        let listing = self.parts[part].list().await?;
        let nodes = listing.nodes.iter().cloned().map(Change::Node);
        let procs = listing.procs.iter().cloned().map(Change::Proc);
        let guards = listing.guards.iter().cloned().map(Change::Guard);
        let links = listing.links.iter().cloned().map(Change::Link);
        self.take(guards.chain(nodes).chain(procs).chain(links)); // a guard explains the ends of its processes
        Ok(listing)
    }

    fn take(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.spare.take(&change);
            self.log.push(change); // changes that are not new are counted
        }
    }

    /// Assigns each start order to a launcher, and gives it a host.
    fn route(
        &self,
        hosts: &[BTreeSet<NodeId>],
        batch: &StartBatch,
    ) -> Result<BTreeMap<usize, StartBatch>, LaunchError> {
        let Listing { procs, nodes, .. } = self.log.listing();
        let ready: Vec<&NodeStatus> = nodes.iter().filter(|n| n.state == NodeState::Ready).collect();
        let mut load: BTreeMap<&NodeId, u32> = BTreeMap::new();
        for proc in procs.iter().filter(|p| !p.phase.is_over()) {
            *load.entry(proc.node.as_ref().unwrap_or(&NOWHERE)).or_default() += 1;
        }
        let mut routed: BTreeMap<usize, StartBatch> = BTreeMap::new();
        for order in &batch.starts {
            let known = procs.iter().find(|p| p.proc == order.proc).and_then(|p| p.node.as_ref());
            let node = match (&order.place, known) {
                (Place::On(node), _) => node,
                (Place::AnyBut(_), Some(node)) => node,
                (Place::AnyBut(not), None) => {
                    let free = ready.iter().filter(|n| !not.contains(&n.node));
                    let free = free.filter(|n| load.get(&n.node).copied().unwrap_or(0) < n.slots);
                    let emptiest = free.min_by_key(|n| (load.get(&n.node).copied().unwrap_or(0), &n.node));
                    let none = || LaunchError::Refused(format!("no host has room for {}", order.proc));
                    &emptiest.ok_or_else(none)?.node
                }
                (other, _) => return Err(LaunchError::Refused(format!("{}: unknown place {other:?}", order.proc))),
            };
            if known.is_none() {
                *load.entry(node).or_default() += 1;
            }
            let part = hosts.iter().position(|of| of.contains(node));
            let part = part.ok_or_else(|| match nodes.iter().any(|n| n.node == *node) {
                true => LaunchError::Unreachable(format!("no launcher lists {node} now")),
                false => LaunchError::Refused(format!("no launcher of this fleet has {node}")),
            })?;
            let batch = || StartBatch::new(Arc::clone(&batch.world), Vec::new());
            let order = order.clone().with_place(Place::On(node.clone()));
            routed.entry(part).or_insert_with(batch).starts.push(order);
        }
        Ok(routed)
    }

    /// Returns the hosts of a launcher that have no processes and accept new ones.
    fn idle(&self, of: &Listing) -> Vec<NodeId> {
        let procs = self.log.listing().procs;
        let busy: BTreeSet<&NodeId> =
            procs.iter().filter(|p| !p.phase.is_over()).filter_map(|p| p.node.as_ref()).collect();
        let idle = of.nodes.iter().filter(|n| n.state == NodeState::Ready && !busy.contains(&n.node));
        idle.map(|n| n.node.clone()).collect()
    }

    /// Lists the hosts of each combined launcher again, since hosts may have been added.
    async fn hosts(&self) -> Vec<BTreeSet<NodeId>> {
        let listings = join_all(self.parts.iter().map(|part| part.list())).await.into_iter();
        let of = |listing: Listing| listing.nodes.into_iter().map(|n| n.node).collect();
        listings.map(|listing| of(listing.unwrap_or_default())).collect() // unreachable: it takes nothing
    }

    /// Reports processes that were accepted with others but could not be started: they exit without having run.
    fn not_started(&self, batch: &StartBatch, why: &LaunchError) {
        for order in &batch.starts {
            let mut exit = Exit::new(Termination::Unknown);
            exit.stderr_tail = format!("not started: {why}");
            let node = match &order.place {
                Place::On(node) => Some(node.clone()),
                _ => None,
            };
            let phase = Phase::Exited(Box::new(exit));
            let instance = Name::new("not-started");
            self.log.push(Change::Proc(ProcStatus::new(order.proc.clone(), instance, phase).with_node(node)));
        }
    }
}

/// Placeholder for the host of a process that has none yet.
static NOWHERE: NodeId = NodeId(Name::new("-"));

/// Copies the changes of one launcher into the history, for as long as the combined launcher exists.
async fn follow(shared: Arc<Shared>, part: usize, listing: Listing) {
    let mut known = listing;
    loop {
        let error = watch(&shared, part, known.revision).await;
        if error != LaunchError::Stale {
            for node in &known.nodes {
                let status = node.clone().with_state(NodeState::OutOfSight);
                shared.log.push(Change::Node(status));
            }
        }
        known = loop {
            match shared.list_part(part).await {
                Ok(listing) => break listing,
                Err(_) => tokio::time::sleep(RETRY_AFTER).await, // meanwhile its hosts are out of sight
            }
        };
        missing(&shared, &known);
    }
}

/// Passes the changes of one launcher on until that launcher fails.
async fn watch(shared: &Shared, part: usize, from: Revision) -> LaunchError {
    let mut at = from;
    loop {
        match shared.parts[part].watch(at).await {
            Ok((changes, next)) => {
                shared.take(changes);
                at = next;
            }
            Err(error) => return error,
        }
    }
}

/// Reports the exit of processes that ran on a launcher's hosts and are no longer listed: they ended unobserved.
fn missing(shared: &Shared, now: &Listing) {
    let hosts: BTreeSet<&NodeId> = now.nodes.iter().map(|n| &n.node).collect();
    let listed: BTreeSet<&ProcId> = now.procs.iter().map(|p| &p.proc).collect();
    for status in shared.log.listing().procs {
        let here = status.node.as_ref().is_some_and(|node| hosts.contains(node));
        if here && !status.phase.is_exited() && !listed.contains(&status.proc) {
            let phase = Phase::Exited(Box::new(Exit::new(Termination::Unknown)));
            shared.log.push(Change::Proc(status.with_phase(phase)));
        }
    }
}

#[async_trait]
impl Launcher for MultiHostLauncher {
    fn info(&self) -> LauncherInfo {
        let parts: Vec<LauncherInfo> = self.shared.parts.iter().map(|part| part.info()).collect();
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
        let routed = self.shared.route(&self.shared.hosts().await, batch)?;
        let mut taken_on = false;
        for (part, batch) in &routed {
            match self.shared.parts[*part].start(batch).await {
                Ok(()) => taken_on = true,
                Err(error) if !taken_on => return Err(error),
                Err(error) => {
                    let procs: Vec<ProcId> = batch.starts.iter().map(|order| order.proc.clone()).collect();
                    let _ = self.shared.parts[*part].stop(&procs, Duration::ZERO).await; // it may have started
                    self.shared.not_started(batch, &error);
                }
            }
            let _ = self.shared.list_part(*part).await; // for the next list; else the follower lists
        }
        self.shared.spare.started(&routed);
        Ok(())
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        // All at once: a launcher that does not answer must not keep the others from stopping. Stopping the unknown is
        // no error.
        join_all(self.shared.parts.iter().map(|part| part.stop(procs, grace))).await.into_iter().collect()
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        Ok(self.shared.log.listing())
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.shared.log.after(from).await
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        let acknowledged = join_all(self.shared.parts.iter().map(|part| part.acknowledge(exits))).await;
        acknowledged.into_iter().collect::<Result<(), LaunchError>>()?;
        self.shared.log.acknowledge(exits);
        Ok(())
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        let at = |proc: &ProcId| self.shared.log.listing().procs.into_iter().find(|status| status.proc == *proc)?.node;
        let hosts = self.shared.hosts().await;
        let mut routed: BTreeMap<usize, DirectiveBatch> = BTreeMap::new();
        for (proc, directive) in &batch.directives {
            let part = at(proc).and_then(|node| hosts.iter().position(|hosts| hosts.contains(&node)));
            let part = part.ok_or_else(|| LaunchError::Refused(format!("no launcher of this fleet runs {proc}")))?;
            let none = || DirectiveBatch::new(Arc::clone(&batch.world), Vec::new());
            routed.entry(part).or_insert_with(none).directives.push((proc.clone(), directive.clone()));
        }
        let parts = routed.iter().map(|(part, batch)| self.shared.parts[*part].send_directives(id, batch));
        join_all(parts).await.into_iter().collect()
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        for (part, batch) in self.shared.route(&self.shared.hosts().await, batch)? {
            self.shared.parts[part].prepare(&batch, options).await?;
        }
        Ok(())
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        // Checked before the first launcher hands its processes over, which cannot be undone.
        if let Some(cannot) = self.shared.parts.iter().map(|part| part.info()).find(|info| !info.supports_detach) {
            let text = format!("the launcher {} cannot leave its processes to a later owner: stop them", cannot.name);
            return Err(LaunchError::Refused(text));
        }
        for (done, part) in self.shared.parts.iter().enumerate() {
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
        self.shared.parts.iter().for_each(|part| part.begin_shutdown(grace));
    }
}

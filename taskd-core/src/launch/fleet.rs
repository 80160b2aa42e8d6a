//! Several launchers as one: each brings its hosts, and an order goes to the one that has the host it names.
//!
//! It starts nothing by itself and trusts each launcher for what it tells. One that cannot be reached keeps its hosts: they
//! are out of sight, and nothing is said of what runs there.

mod spare;

use super::{
    Change, ChangeLog, DirectBatch, LaunchError, Launcher, LauncherInfo, Listing, NodeState, NodeStatus, Phase, Place,
    ProcStatus, Revision, StartBatch, StartOrder,
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

/// How long to wait before a launcher that could not be reached is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// A launcher over the hosts of several launchers.
///
/// Their hosts must have different names. An order without a host goes where the fewest processes run. Hosts where nothing runs
/// [prepare](Launcher::prepare) for the ranks of the host that has most of them.
pub struct Fleet {
    shared: Arc<Shared>,
    /// Two tasks for each launcher, all ended when this is dropped.
    _following: JoinSet<()>,
}

struct Shared {
    parts: Vec<Arc<dyn Launcher>>,
    log: ChangeLog,
    /// What hosts without processes are to be ready for.
    spare: Spare,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("parts", &self.shared.parts).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Joins these launchers. Returns when each has told what it has.
    ///
    /// # Errors
    /// That of a launcher that cannot be listed; [`LaunchError::Refused`] when two have a host of one name.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn of<L: Launcher + 'static>(launchers: impl IntoIterator<Item = L>) -> Result<Fleet, LaunchError> {
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
        Ok(Fleet { shared, _following: following })
    }
}

impl Shared {
    /// What a launcher has, taken into the history.
    async fn list_part(&self, part: usize) -> Result<Listing, LaunchError> {
        let listing = self.parts[part].list().await?;
        let nodes = listing.nodes.iter().cloned().map(Change::Node);
        let procs = listing.procs.iter().cloned().map(Change::Proc);
        let guards = listing.guards.iter().cloned().map(Change::Guard);
        let links = listing.links.iter().cloned().map(Change::Link);
        self.take(guards.chain(nodes).chain(procs).chain(links)); // a guard that is gone explains the ends of what it guarded
        Ok(listing)
    }

    fn take(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.spare.hear(&change);
            self.log.push(change); // what is no news is counted
        }
    }

    /// Where each order goes, by launcher, with the host it names.
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
        for order in &batch.orders {
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
            };
            if known.is_none() {
                *load.entry(node).or_default() += 1;
            }
            let part = hosts.iter().position(|of| of.contains(node));
            let part = part.ok_or_else(|| match nodes.iter().any(|n| n.node == *node) {
                true => LaunchError::Unreachable(format!("{node} is out of sight")),
                false => LaunchError::Refused(format!("no launcher of this fleet has {node}")),
            })?;
            let batch = || StartBatch { world: Arc::clone(&batch.world), orders: Vec::new() };
            let order = StartOrder { place: Place::On(node.clone()), ..order.clone() };
            routed.entry(part).or_insert_with(batch).orders.push(order);
        }
        Ok(routed)
    }

    /// The hosts of a launcher where nothing runs.
    fn idle(&self, of: &Listing) -> Vec<NodeId> {
        let procs = self.log.listing().procs;
        let busy: BTreeSet<&NodeId> =
            procs.iter().filter(|p| !p.phase.is_over()).filter_map(|p| p.node.as_ref()).collect();
        let idle = of.nodes.iter().filter(|n| n.state == NodeState::Ready && !busy.contains(&n.node));
        idle.map(|n| n.node.clone()).collect()
    }

    /// The hosts of each launcher, asked anew: one may have got another.
    async fn hosts(&self) -> Vec<BTreeSet<NodeId>> {
        let listings = join_all(self.parts.iter().map(|part| part.list())).await.into_iter();
        let of = |listing: Listing| listing.nodes.into_iter().map(|n| n.node).collect();
        listings.map(|listing| of(listing.unwrap_or_default())).collect() // out of reach: it takes nothing
    }

    /// Processes that were accepted with others, and then could not be started: they end without having begun.
    fn not_started(&self, batch: &StartBatch, why: &LaunchError) {
        for order in &batch.orders {
            let mut exit = Exit::new(Termination::Unknown);
            exit.stderr_tail = format!("not started: {why}");
            let node = match &order.place {
                Place::On(node) => Some(node.clone()),
                Place::AnyBut(_) => None,
            };
            let phase = Phase::Exited(Box::new(exit));
            let instance = Name::new("not-started");
            self.log.push(Change::Proc(ProcStatus { proc: order.proc.clone(), node, instance, pid: None, phase }));
        }
    }
}

/// Stands for the host of a process that has none yet.
static NOWHERE: NodeId = NodeId(Name::new("-"));

/// Takes into the history what one launcher tells, for as long as the fleet is there.
async fn follow(shared: Arc<Shared>, part: usize, listing: Listing) {
    let mut known = listing;
    loop {
        let error = watch(&shared, part, known.revision).await;
        if error != LaunchError::Stale {
            for node in &known.nodes {
                let status = NodeStatus { state: NodeState::OutOfSight, ..node.clone() };
                shared.log.push(Change::Node(status));
            }
        }
        known = loop {
            match shared.list_part(part).await {
                Ok(listing) => break listing,
                Err(_) => tokio::time::sleep(RETRY_AFTER).await, // its hosts are out of sight meanwhile
            }
        };
        missing(&shared, &known);
    }
}

/// Passes changes on until the launcher fails.
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

/// What ran on a launcher's hosts and is not listed any more has ended while nobody looked.
fn missing(shared: &Shared, now: &Listing) {
    let hosts: BTreeSet<&NodeId> = now.nodes.iter().map(|n| &n.node).collect();
    let listed: BTreeSet<&ProcId> = now.procs.iter().map(|p| &p.proc).collect();
    for status in shared.log.listing().procs {
        let here = status.node.as_ref().is_some_and(|node| hosts.contains(node));
        if here && !status.phase.is_exited() && !listed.contains(&status.proc) {
            let phase = Phase::Exited(Box::new(Exit::new(Termination::Unknown)));
            shared.log.push(Change::Proc(ProcStatus { phase, ..status }));
        }
    }
}

#[async_trait]
impl Launcher for Fleet {
    fn info(&self) -> LauncherInfo {
        let parts: Vec<LauncherInfo> = self.shared.parts.iter().map(|part| part.info()).collect();
        let mut info = LauncherInfo::new("fleet");
        info.lifeline = !parts.is_empty() && parts.iter().all(|part| part.lifeline);
        info.hands_over = parts.iter().all(|part| part.hands_over);
        info.meets_at = parts.iter().find_map(|part| part.meets_at.clone());
        info.output_dirs = parts.iter().flat_map(|part| part.output_dirs.clone()).collect();
        info.uninitialised = parts.iter().flat_map(|part| part.uninitialised.clone()).collect();
        let without: BTreeSet<String> = parts.into_iter().flat_map(|part| part.goes_without).collect();
        without.into_iter().fold(info, LauncherInfo::going_without)
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let routed = self.shared.route(&self.shared.hosts().await, batch)?;
        let mut taken_on = false;
        for (part, batch) in &routed {
            match self.shared.parts[*part].start(batch).await {
                Ok(()) => taken_on = true,
                Err(error) if !taken_on => return Err(error),
                Err(error) => {
                    let procs: Vec<ProcId> = batch.orders.iter().map(|order| order.proc.clone()).collect();
                    let _ = self.shared.parts[*part].stop(&procs, Duration::ZERO).await; // one that was started all the same
                    self.shared.not_started(batch, &error);
                }
            }
            let _ = self.shared.list_part(*part).await; // who lists now must see them; else its follower tells
        }
        self.shared.spare.started(&routed);
        Ok(())
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        // At once: one that does not answer must not keep the others from stopping. Stopping the unknown is no error.
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

    async fn direct(&self, id: CommandId, batch: &DirectBatch) -> Result<(), LaunchError> {
        let at = |proc: &ProcId| self.shared.log.listing().procs.into_iter().find(|status| status.proc == *proc)?.node;
        let hosts = self.shared.hosts().await;
        let mut routed: BTreeMap<usize, DirectBatch> = BTreeMap::new();
        for (proc, directive) in &batch.orders {
            let part = at(proc).and_then(|node| hosts.iter().position(|hosts| hosts.contains(&node)));
            let part = part.ok_or_else(|| LaunchError::Refused(format!("no launcher of this fleet runs {proc}")))?;
            let none = || DirectBatch { world: Arc::clone(&batch.world), orders: Vec::new() };
            routed.entry(part).or_insert_with(none).orders.push((proc.clone(), directive.clone()));
        }
        let parts = routed.iter().map(|(part, batch)| self.shared.parts[*part].direct(id, batch));
        join_all(parts).await.into_iter().collect()
    }

    async fn prepare(&self, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        for (part, batch) in self.shared.route(&self.shared.hosts().await, batch)? {
            self.shared.parts[part].prepare(&batch, in_loop).await?;
        }
        Ok(())
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        // Before the first has handed its processes over, which it cannot take back.
        if let Some(cannot) = self.shared.parts.iter().map(|part| part.info()).find(|info| !info.hands_over) {
            let text = format!("the launcher {} cannot leave its processes to a later owner: stop them", cannot.name);
            return Err(LaunchError::Refused(text));
        }
        for (done, part) in self.shared.parts.iter().enumerate() {
            match part.detach(keep).await {
                Err(error) if done > 0 => {
                    let name = part.info().name;
                    let text =
                        format!("{done} launchers have handed their processes over, and then {name} did not: {error}");
                    return Err(LaunchError::Unreachable(text));
                }
                result => result?,
            }
        }
        Ok(())
    }

    fn wind_down(&self, grace: Duration) {
        self.shared.parts.iter().for_each(|part| part.wind_down(grace));
    }
}

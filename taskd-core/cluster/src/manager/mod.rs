//! The manager of a job: admits agents, grants leases to their hosts, and offers the launchers of all hosts as one.
//!
//! It decides nothing about ranks: the runtime that holds its [`ClusterLauncher`] does.

mod admit;
mod arrivals;
mod broadcast;
mod candidates;
mod completed;
mod confirm;
mod confirmed;
mod copies;
mod facts;
#[cfg(feature = "test-util")]
pub(crate) mod fuzz;
mod host;
mod introduce;
mod launcher;
mod links;
mod members;
mod places;
mod proofs;
mod reach;
mod records;
mod remote;
mod service;
mod source;
mod standby;
mod voters;
mod watchdog;
mod world;

pub use broadcast::RelayCounts;
pub use facts::FactCounts;
pub use host::HostStatus;
pub use launcher::ClusterLauncher;
pub use members::{FirstWorld, Membership};
pub use places::Places;
pub use records::{FetchedRecords, RecordsError, RecordsRequest};
pub use service::ManagerService;
pub use source::ClusterSource;
pub use voters::{VOTER_LABEL, VOTER_LOST_AFTER};

use crate::clock::Moment;
use crate::consensus::{Candidate, Consensus, ConsensusError, Epoch};
use crate::session::Request;
use crate::settings::{ClusterSettings, SettingsError};
use crate::wire::{encode, method};
use broadcast::Broadcasts;
use bytes::Bytes;
use completed::Completed;
use copies::Copies;
use futures::future::join_all;
use host::Host;
use members::Members;
use places::Located;
use proofs::{Proofs, Proven};
use standby::Standbys;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use taskd_runtime::job::{NodeId, World};
use taskd_runtime::kernel::Resume;
use taskd_runtime::launch::{LaunchError, MultiHostLauncher};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use world::{Committed, WorldRecord};

/// Maximum number of hosts of a job.
const HOSTS_MAX: usize = 100_000;

/// The manager of a job during one epoch. When it is dropped, its sessions end; the processes of all hosts continue.
#[derive(Debug)]
pub struct Manager {
    inner: Arc<Inner>,
    service: ManagerService,
    resume: Option<Resume>,
    _tasks: JoinSet<()>,
}

/// What the tasks of a manager share.
struct Inner {
    job: String,
    epoch: Epoch,
    settings: ClusterSettings,
    consensus: Arc<dyn Consensus>,
    fleet: MultiHostLauncher,
    committed: tokio::sync::Mutex<Committed>,
    /// The checksums of the ranks, and what they prove now.
    proofs: Mutex<Proofs>,
    proven: watch::Sender<Option<Proven>>,
    hosts: Mutex<BTreeMap<NodeId, Arc<Host>>>,
    /// The ranks that hold second copies of in-memory checkpoints, of the newest world that starts ranks.
    copies: Mutex<Option<Copies>>,
    completed: Completed,
    /// Number of hosts that the launcher lists.
    listed: watch::Sender<usize>,
    /// Where the hosts are.
    located: Mutex<Located>,
    /// Decides which hosts take part, once a policy is set.
    members: OnceLock<Arc<Members>>,
    /// Woken after every change of a host or of the world in force.
    changed: Notify,
    /// Moment at which the epoch was last known to be in force.
    anchor: watch::Sender<Option<Moment>>,
    /// Moment at which the engine has last confirmed the epoch.
    confirmed: watch::Sender<Moment>,
    engine_answers: watch::Sender<bool>,
    standbys: Option<Standbys>,
    /// What was logged last about the standbys.
    standbys_log: watch::Sender<Option<Result<(), String>>>,
    /// Addresses at which a later manager may answer.
    candidates: Mutex<Vec<String>>,
    /// Reason why the epoch is over, once it is.
    over: watch::Sender<Option<String>>,
    sessions: AtomicU64,
    /// Moment from which this manager's own time counts.
    begun: Moment,
    /// What the sources of all hosts have reported.
    facts: facts::Facts,
    broadcasts: Broadcasts,
    /// The world that was sent last, in the form in which all hosts get it.
    packed: Mutex<Option<(Arc<World>, Bytes)>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("job", &self.job).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Error of a manager that could not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// Settings contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The consensus engine failed.
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    /// The record of an earlier manager cannot be read; contains the reason.
    #[error("{0}")]
    Record(String),
    /// The policy of membership cannot be used; contains the reason.
    #[error("{0}")]
    Membership(String),
    /// The job has ended under an earlier manager; contains its result.
    #[error("the job has ended: {0}")]
    Ended(String),
}

impl Manager {
    /// Waits until this process is the manager of `job`, and then serves agents at `service`.
    ///
    /// # Errors
    /// Returns [`ManagerError`] if settings contradict each other, the engine refuses the candidate, or the record of an earlier
    /// manager cannot be read.
    pub async fn campaign(
        job: impl Into<String>,
        candidate: &Candidate,
        consensus: Arc<dyn Consensus>,
        service: &ManagerService,
        settings: ClusterSettings,
    ) -> Result<Manager, ManagerError> {
        settings.check()?;
        let job = job.into();
        service.standing().stands(&job);
        let epoch = tokio::select! {
            biased;
            epoch = consensus.campaign(candidate) => epoch?,
            never = service.follow(&*consensus, candidate) => match never {},
        };
        service.standing().takes(epoch.0); // before the moment from which this manager's waiting times count
        let (anchor, elected) = (Moment::now(), Instant::now());
        let record = consensus.read().await?;
        let world = WorldRecord::read(&record.value).map_err(ManagerError::Record)?;
        if let Some(result) = world.result {
            consensus.resign(epoch).await?;
            return Err(ManagerError::Ended(result));
        }
        let (resume, expected) = (world.resume(), world.procs());
        let proofs = Mutex::new(Proofs::new(world.world.clone(), world.replicas.as_ref()));
        let (broadcasts, submissions) = Broadcasts::new(settings.relay_fanout);
        let inner = Arc::new(Inner {
            job,
            epoch,
            settings,
            consensus,
            fleet: MultiHostLauncher::default(),
            committed: tokio::sync::Mutex::new(Committed { version: record.version, record: world }),
            proofs,
            proven: watch::Sender::new(None),
            hosts: Mutex::default(),
            copies: Mutex::default(),
            completed: Completed::default(),
            listed: watch::Sender::new(0),
            located: Mutex::default(),
            members: OnceLock::new(),
            changed: Notify::new(),
            anchor: watch::Sender::new(Some(anchor)),
            confirmed: watch::Sender::new(anchor),
            engine_answers: watch::Sender::new(true),
            standbys: service.standbys(&candidate.address),
            standbys_log: watch::Sender::new(None),
            candidates: Mutex::default(),
            over: watch::Sender::new(None),
            sessions: AtomicU64::new(0),
            begun: anchor,
            facts: facts::Facts::default(),
            broadcasts,
            packed: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(broadcast::send(Arc::downgrade(&inner), submissions));
        tasks.spawn(confirm::confirm(Arc::clone(&inner)));
        tasks.spawn(proofs::store(Arc::clone(&inner)));
        for (host, procs) in &expected {
            inner.fleet.expect(host, procs.iter().cloned());
        }
        tasks.spawn(watchdog::expect(Arc::clone(&inner), expected, elected));
        service.take_office(Arc::clone(&inner));
        Ok(Manager { inner, service: service.clone(), resume, _tasks: tasks })
    }

    /// Returns the manager's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.inner.epoch
    }

    /// Returns the job as the last manager left it, for [`RuntimeBuilder::resume`](taskd_runtime::runtime::RuntimeBuilder::resume);
    /// `None` if the job begins.
    #[must_use]
    pub fn resume(&self) -> Option<Resume> {
        self.resume.clone()
    }

    /// Returns the launcher of all hosts.
    #[must_use]
    pub fn launcher(&self) -> ClusterLauncher {
        ClusterLauncher { inner: Arc::clone(&self.inner) }
    }

    /// Waits until at least `hosts` hosts are listed, at most until `deadline`. Returns their number.
    pub async fn wait_for_hosts(&self, hosts: usize, deadline: Instant) -> usize {
        let mut listed = self.inner.listed.subscribe();
        let _ = timeout_at(deadline, listed.wait_for(|listed| *listed >= hosts)).await;
        *listed.borrow()
    }

    /// Returns whether the consensus engine answers, as it changes. While it does not, this manager makes no decision: the
    /// caller pauses its runtime, so that no recovery uses up its attempts.
    #[must_use]
    pub fn engine_answers(&self) -> watch::Receiver<bool> {
        self.inner.engine_answers.subscribe()
    }

    /// Waits until the epoch of this manager is over. Returns the reason, in one sentence.
    pub async fn over(&self) -> String {
        self.inner.over().await.to_string()
    }

    /// Ends the job: stores its result, so that no other candidate continues it, and reports it to the agents, which end.
    ///
    /// # Errors
    /// Returns [`LaunchError`] if the result could not be stored.
    pub async fn finish(self, result: &str) -> Result<(), LaunchError> {
        let stored = self.inner.store_result(result).await;
        let ending: Vec<Arc<Host>> = self.inner.lock().values().cloned().collect();
        if let Ok(arguments) = encode(&result) {
            // Not through relays: an agent that ends passes nothing on.
            let end = Request::new(method::JOB_END, arguments);
            let reports = ending.iter().map(|host| {
                let (session, end) = (host.session(), end.clone());
                async move { session.calls.call(end, false).await.is_ok() }
            });
            let _ = timeout(self.inner.settings.silent_after, join_all(reports)).await; // the others lose their lease
        }
        let _ = self.inner.consensus.resign(self.inner.epoch).await; // else the epoch ends by itself
        stored
    }

    /// Ends the epoch, so that another candidate becomes the manager at once.
    ///
    /// # Errors
    /// Returns [`ConsensusError`] if no majority answers: the epoch then ends by itself.
    pub async fn resign(self) -> Result<(), ConsensusError> {
        self.inner.consensus.resign(self.inner.epoch).await
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.service.leave_office(&self.inner);
        self.inner.end("this manager has ended");
    }
}

impl Inner {
    /// Returns an error if the epoch of this manager is over.
    fn in_office(&self) -> Result<(), LaunchError> {
        self.over.borrow().clone().map_or(Ok(()), |why| Err(LaunchError::Superseded(why)))
    }

    /// Waits until the epoch is over, and returns the error of every call after that.
    fn over(&self) -> impl Future<Output = LaunchError> + Send + use<> {
        let mut over = self.over.subscribe();
        async move {
            let why = match over.wait_for(Option::is_some).await {
                Ok(why) => why.clone().unwrap_or_default(),
                Err(_) => "this manager has ended".into(),
            };
            LaunchError::Superseded(why)
        }
    }

    fn anchor(&self) -> Option<Moment> {
        *self.anchor.borrow()
    }

    /// Ends this manager: its calls fail, and its agents look for another one.
    fn end(&self, why: &str) {
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert_with(|| why.to_owned());
            first
        });
        self.anchor.send_replace(None);
        let hosts = std::mem::take(&mut *self.lock());
        hosts.values().for_each(|host| host.session().calls.end(why));
    }

    /// Returns the address of the agent on the host of the rendezvous service, for the agent of `host`; `None` if that is its
    /// own host.
    async fn rendezvous_for(&self, host: &Host) -> Option<String> {
        let service = host.info().rendezvous_service?;
        let at = self.committed.lock().await.record.services.get(&service)?.node.clone()?;
        if at == host.name {
            return None;
        }
        self.lock().get(&at).and_then(|other| other.peer_address())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Arc<Host>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

#[cfg(test)]
mod tests;

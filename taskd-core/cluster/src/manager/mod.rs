//! The manager of a job: admits agents, grants leases to their hosts, and offers the launchers of all hosts as one.
//!
//! It decides nothing about ranks: the runtime that holds its [`ClusterLauncher`] does.

mod arrivals;
mod broadcast;
mod completed;
mod confirmed;
mod copies;
mod facts;
#[cfg(feature = "test-util")]
pub(crate) mod fuzz;
mod host;
mod introduce;
mod launcher;
mod members;
mod proofs;
mod records;
mod remote;
mod service;
mod source;
mod watchdog;
mod world;

pub use broadcast::RelayCounts;
pub use facts::FactCounts;
pub use host::HostStatus;
pub use launcher::ClusterLauncher;
pub use members::{FirstWorld, Membership, Places};
pub use records::{FetchedRecords, RecordsError, RecordsRequest};
pub use service::ManagerService;
pub use source::ClusterSource;

use crate::checks::Check;
use crate::clock::Moment;
use crate::consensus::{Candidate, Consensus, ConsensusError, Epoch};
use crate::session::{Outgoing, Request};
use crate::settings::{ClusterSettings, SettingsError};
use crate::wire::{VERSION, VERSION_MIN, common_version, encode, method};
use broadcast::Broadcasts;
use bytes::Bytes;
use completed::Completed;
use copies::Copies;
use futures::future::join_all;
use host::{Host, Session, Visibility};
use introduce::introduce;
use members::Members;
use proofs::{Proofs, Proven};
use service::Greeting;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use taskd_runtime::job::{NodeId, World};
use taskd_runtime::kernel::Resume;
use taskd_runtime::launch::{LaunchError, MultiHostLauncher};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tonic::Status;
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
    /// Decides which hosts take part, once a policy is set.
    members: OnceLock<Arc<Members>>,
    /// Woken after every change of a host or of the world in force.
    changed: Notify,
    /// Moment at which the epoch was last known to be in force.
    anchor: watch::Sender<Option<Moment>>,
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
        let epoch = tokio::select! {
            biased;
            epoch = consensus.campaign(candidate) => epoch?,
            never = service.follow(&*consensus, candidate) => match never {},
        };
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
            job: job.into(),
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
            members: OnceLock::new(),
            changed: Notify::new(),
            anchor: watch::Sender::new(Some(anchor)),
            over: watch::Sender::new(None),
            sessions: AtomicU64::new(0),
            begun: anchor,
            facts: facts::Facts::default(),
            broadcasts,
            packed: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(broadcast::send(Arc::downgrade(&inner), submissions));
        tasks.spawn(confirm(Arc::clone(&inner)));
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

/// Confirms the epoch again and again: each confirmation is the anchor of the leases that follow.
async fn confirm(manager: Arc<Inner>) {
    let mut ticks = interval(manager.settings.confirm_interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let anchor = Moment::now();
        match manager.consensus.confirm(manager.epoch).await {
            Ok(()) => _ = manager.anchor.send_replace(Some(anchor)),
            Err(error @ ConsensusError::Superseded { .. }) => return manager.end(&error.to_string()),
            Err(error) => tracing::warn!(%error, "the manager is not confirmed: it makes no decision meanwhile"),
        }
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

    /// Admits an agent: continues its session, or begins one. Returns its host, its session and the number of its connection.
    fn admit(
        self: &Arc<Self>,
        greeting: Greeting,
        sender: UnboundedSender<Outgoing>,
    ) -> Result<(Arc<Host>, Arc<Session>, u64), Status> {
        let Greeting { hello, host: name, introduction } = greeting;
        let version = common_version(hello.version_min, hello.version_max).ok_or_else(|| {
            Status::invalid_argument(format!(
                "the agent speaks versions {} to {} of the protocol, and this manager {VERSION_MIN} to {VERSION}: install \
                 the same release of taskd on both",
                hello.version_min, hello.version_max
            ))
        })?;
        if hello.job != self.job {
            let text = format!("this is the manager of job {}, and the agent belongs to job {}", self.job, hello.job);
            return Err(Status::permission_denied(text));
        }
        if hello.epoch > self.epoch.0 && self.settings.checks.has(Check::Epoch) {
            let text = format!("epoch {} is over: the agent has seen epoch {}", self.epoch, hello.epoch);
            self.end(&text);
            return Err(Status::aborted(text));
        }
        if let Some(why) = &*self.over.borrow() {
            return Err(Status::unavailable(why.clone()));
        }
        let mut hosts = self.lock();
        let known = hosts.get(&name).cloned();
        let continued = known
            .as_ref()
            .map(|host| host.session())
            .filter(|session| session.instance == hello.instance && session.id == hello.session);
        if let Some((host, session)) = known.clone().zip(continued) {
            drop(hosts);
            let connection = session.welcome((self.epoch.0, &self.settings), &sender, hello.received)?;
            host.hear(Instant::now());
            return Ok((host, session, connection));
        }
        if let Some(other) = known.as_ref().filter(|host| host.session().instance != hello.instance)
            && *other.sight.borrow() == Visibility::Seen
            && other.session().link.is_attached()
        {
            return Err(Status::invalid_argument(format!(
                "an agent of {name} is connected already, from {}: give this host another name",
                other.peer()
            )));
        }
        if known.is_none() && hosts.len() >= HOSTS_MAX {
            return Err(Status::resource_exhausted(format!("the job has {HOSTS_MAX} hosts, which is the limit")));
        }
        let id = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let session = Session::new(id, hello.instance.clone(), self.epoch.0, version);
        let connection = session.welcome((self.epoch.0, &self.settings), &sender, 0)?;
        let host = match known {
            Some(host) => {
                host.replace(Arc::clone(&session), introduction);
                host.hear(Instant::now());
                self.changed.notify_one();
                host
            }
            None => {
                let host = Arc::new(Host::new(name.clone(), Arc::clone(&session), introduction, Instant::now()));
                hosts.insert(name, Arc::clone(&host));
                tokio::spawn(introduce(Arc::clone(self), Arc::clone(&host)));
                host
            }
        };
        Ok((host, session, connection))
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

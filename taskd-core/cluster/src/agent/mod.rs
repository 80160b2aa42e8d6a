//! The agent of a host: exports a launcher to the job's manager, and stops the host's ranks when no manager reaches it.
//!
//! The agent decides nothing. It dials the manager, so that only managers need an address.

mod connection;
mod lease;
mod managers;
mod running;
mod search;
mod serve;
mod start;

use crate::clock::Moment;
use crate::dial::{Access, Dial};
use crate::rendezvous::Forwarder;
use crate::security::SecurityContext;
use crate::settings::{ClusterSettings, SettingsError};
use lease::Lease;
use managers::Managers;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use taskd_runtime::job::{Name, NodeId};
use taskd_runtime::launch::{Fence, Launcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Shortest and longest time before a manager that did not answer is dialled again; it doubles in between.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Builder of an [`Agent`].
pub struct AgentBuilder {
    job: String,
    host: NodeId,
    launcher: Arc<dyn Launcher>,
    managers: Vec<String>,
    labels: BTreeMap<String, String>,
    settings: ClusterSettings,
    access: Access,
    on_lease_end: OnLeaseEnd,
    fence: Option<Arc<dyn Fence>>,
    forwarder: Option<Forwarder>,
    peer_address: String,
}

/// What a host does when its lease ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLeaseEnd {
    /// The host stops its ranks: others may replace them.
    #[default]
    Stop,
    /// The host keeps its ranks. Only for jobs without replacements: two worlds may train at the same time.
    Keep,
}

impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AgentBuilder { job, host, managers, .. } = self;
        f.debug_struct("AgentBuilder")
            .field("job", job)
            .field("host", host)
            .field("managers", managers)
            .finish_non_exhaustive()
    }
}

impl AgentBuilder {
    /// Adds an address, `HOST:PORT`, at which a manager may answer. One that is not the manager names it.
    #[must_use]
    pub fn manager(mut self, address: impl Into<String>) -> AgentBuilder {
        self.managers.push(address.into());
        self
    }

    /// Adds a label of the host, such as its place in the network.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> AgentBuilder {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Sets the times of connections. Those of leases come from the manager.
    #[must_use]
    pub fn settings(mut self, settings: ClusterSettings) -> AgentBuilder {
        self.settings = settings;
        self
    }

    /// Sets how connections are opened, other than by the agent's security context: in a simulated network.
    #[must_use]
    pub fn dialer(mut self, dialer: impl Dial + 'static) -> AgentBuilder {
        self.access = self.access.with_dialer(dialer);
        self
    }

    /// Sets what connects this host's ranks to a rendezvous service on another host, and the address, `HOST:PORT`, at which
    /// other agents reach this agent's [`PeerService`](crate::PeerService). With an empty `HOST`, they use the address
    /// from which this agent connects to the manager.
    #[must_use]
    pub fn forwarder(mut self, forwarder: Forwarder, peer_address: impl Into<String>) -> AgentBuilder {
        (self.forwarder, self.peer_address) = (Some(forwarder), peer_address.into());
        self
    }

    /// Sets what the host does when its lease ends (default: it stops its ranks).
    #[must_use]
    pub fn on_lease_end(mut self, on_lease_end: OnLeaseEnd) -> AgentBuilder {
        self.on_lease_end = on_lease_end;
        self
    }

    /// Sets what kills the host's processes at the end of its lease if this process cannot: it may be stopped, starved of
    /// processor time, or dead. For the launcher of this machine, pass the same
    /// [`LocalLauncher`](taskd_runtime::launch::LocalLauncher). The fence stays in force when [`Agent::run`] ends, so the
    /// next agent of the host must have a lease before the last one ends. With [`OnLeaseEnd::Keep`] it is not used.
    #[must_use]
    pub fn fence(mut self, fence: Arc<dyn Fence>) -> AgentBuilder {
        self.fence = Some(fence);
        self
    }

    /// Creates the agent.
    ///
    /// # Errors
    /// Returns [`AgentError`] if settings contradict each other, or no address of a manager was added.
    pub fn build(self) -> Result<Agent, AgentError> {
        self.settings.check()?;
        if self.managers.is_empty() {
            return Err(AgentError::Refused("the agent has no address of a manager: add one".into()));
        }
        let AgentBuilder { job, host, launcher, managers, labels, settings, access, .. } = self;
        let AgentBuilder { on_lease_end, fence, forwarder, peer_address, .. } = self;
        let shared = Shared {
            job,
            host,
            instance: instance(),
            begun: Moment::now(),
            launcher,
            managers: Managers::new(managers),
            labels,
            settings,
            access,
            forwarder,
            peer_address,
            epoch: AtomicU64::new(0),
            lease: watch::Sender::new(Lease::default()),
            fence: fence.filter(|_| on_lease_end == OnLeaseEnd::Stop),
            fenced: watch::Sender::new(0),
            connections: AtomicU64::new(0),
            trouble: watch::Sender::new(None),
            ended: watch::Sender::new(None),
        };
        Ok(Agent { shared: Arc::new(shared), on_lease_end })
    }
}

/// The agent of one host.
pub struct Agent {
    shared: Arc<Shared>,
    on_lease_end: OnLeaseEnd,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("host", &self.shared.host).finish_non_exhaustive()
    }
}

/// What the tasks of an agent share.
struct Shared {
    job: String,
    host: NodeId,
    /// Identifier of this process, which distinguishes successive agents of the host.
    instance: Name,
    /// Moment from which the times in requests for leases count.
    begun: Moment,
    launcher: Arc<dyn Launcher>,
    managers: Managers,
    labels: BTreeMap<String, String>,
    settings: ClusterSettings,
    access: Access,
    forwarder: Option<Forwarder>,
    peer_address: String,
    /// Greatest epoch that was seen: commands of an older one are rejected.
    epoch: AtomicU64,
    /// Changed by [`Shared::change_lease`] only.
    lease: watch::Sender<Lease>,
    /// Kills the processes at the end of the lease, whatever becomes of this process.
    fence: Option<Arc<dyn Fence>>,
    /// Number of times that the lease ended and processes were stopped.
    fenced: watch::Sender<u64>,
    /// Number of connections over which a manager has welcomed this agent.
    connections: AtomicU64,
    /// Why the agent has no manager now.
    trouble: watch::Sender<Option<String>>,
    /// Result of the job, once a manager has reported its end.
    ended: watch::Sender<Option<String>>,
}

impl Shared {
    /// Connects this host's ranks to the rendezvous service of the agent at this address, from now on.
    fn rendezvous_is_at(&self, address: Option<String>) {
        if let Some(forwarder) = &self.forwarder {
            forwarder.set_elsewhere(address);
        }
    }
}

/// Error of an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Settings contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The manager refuses this agent, and a retry would not help; contains the reason.
    #[error("{0}")]
    Refused(String),
}

impl Agent {
    /// Begins to build the agent of `host` for a job. `launcher` starts the processes of this host; `security` states how the
    /// agent proves that it belongs to the job.
    pub fn builder(
        job: impl Into<String>,
        host: NodeId,
        launcher: impl Launcher + 'static,
        security: &SecurityContext,
    ) -> AgentBuilder {
        AgentBuilder {
            job: job.into(),
            host,
            launcher: Arc::new(launcher),
            managers: Vec::new(),
            labels: BTreeMap::new(),
            settings: ClusterSettings::default(),
            access: Access::new(security),
            on_lease_end: OnLeaseEnd::default(),
            fence: None,
            forwarder: None,
            peer_address: String::new(),
        }
    }

    /// Serves the job's managers until `stop` is cancelled. Connects again whenever a connection is lost, to whichever manager
    /// answers. Also returns when a manager reports that the job has ended. The end of this call leaves the processes as they
    /// are: stop them, or detach the launcher.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if a manager refuses this agent before it was ever admitted.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), AgentError> {
        let enforce = async {
            match self.on_lease_end {
                OnLeaseEnd::Stop => lease::enforce(&self.shared).await,
                OnLeaseEnd::Keep => std::future::pending().await,
            }
        };
        let mut job = self.shared.ended.subscribe();
        tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            _ = job.wait_for(Option::is_some) => Ok(()),
            () = enforce => Ok(()),
            result = connection::serve_managers(&self.shared) => result,
        }
    }

    /// Returns the result of the job in one sentence, once a manager has reported its end.
    #[must_use]
    pub fn job_result(&self) -> Option<String> {
        self.shared.ended.borrow().clone()
    }

    /// Returns why the agent has no manager now, in one sentence; `None` while it has one, and before its first attempt.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.borrow().clone()
    }

    /// Returns the number of times that the host's lease ended and its processes were stopped.
    #[must_use]
    pub fn fenced(&self) -> u64 {
        *self.shared.fenced.borrow()
    }

    /// Returns the number of connections over which managers have welcomed this agent. It rises by one with each manager, with
    /// each connection that was lost, and each that was silent for
    /// [`reconnect_after`](ClusterSettings::reconnect_after).
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

/// Returns an identifier of this agent: its process id, and its time since the machine's start.
pub(crate) fn instance() -> Name {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let since_start = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Name::from(format!("{}-{}.{:09}-{number}", std::process::id(), since_start.tv_sec, since_start.tv_nsec))
}

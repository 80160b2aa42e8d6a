//! The agent of a host: exports a launcher and trace sources to the job's manager, and stops the host's ranks when no
//! manager reaches it.
//!
//! The agent decides nothing. It dials the manager, so that only managers need an address.

mod connection;
mod lease;
mod leave;
mod managers;
mod once;
mod outbox;
mod records;
mod running;
mod search;
mod serve;
mod sources;
mod start;

use crate::checks::Check;
use crate::clock::Moment;
use crate::clock_offset::Reading;
use crate::dial::{Access, Dial};
use crate::membership::NODE_RANK_LABEL;
use crate::rendezvous::Forwarder;
use crate::security::SecurityContext;
use crate::settings::{ClusterSettings, SettingsError};
use crate::wire::VERSION;
use lease::Lease;
use managers::Managers;
pub(crate) use sources::SOURCES_MAX;
use sources::Sources;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use taskd_runtime::job::{Name, NodeId};
use taskd_runtime::launch::{Fence, LaunchError, Launcher};
use taskd_runtime::trace::TraceSource;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Shortest and longest time before a manager that did not answer is dialled again; it doubles in between.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Builder of an [`Agent`].
pub struct AgentBuilder {
    job: String,
    host: NodeId,
    launcher: Arc<dyn Launcher>,
    sources: Vec<Box<dyn TraceSource>>,
    records: Option<PathBuf>,
    managers: Vec<String>,
    labels: BTreeMap<String, String>,
    settings: ClusterSettings,
    access: Access,
    calendar_ahead_nanos: i64,
    on_lease_end: OnLeaseEnd,
    fence: Option<Arc<dyn Fence>>,
    forwarder: Option<Forwarder>,
    peer_address: String,
    version_max: u32,
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
    /// Adds a trace source of this host, such as the heartbeats of its ranks. The manager's
    /// [`ClusterSource`](crate::ClusterSource) delivers its facts, and answers its probes. It is read from the first
    /// [`Agent::run`] to the end of that call; while no manager takes its facts, they wait in a queue with the bound and
    /// the overflow behaviour that its description states.
    #[must_use]
    pub fn source(mut self, source: impl TraceSource + 'static) -> AgentBuilder {
        self.sources.push(Box::new(source));
        self
    }

    /// Sets the directory in which a [`TraceStore`](taskd_runtime::trace::store::TraceStore) keeps the records of this host's
    /// ranks: `ROOT/TASK`. They stay there; the manager fetches some when it needs them
    /// ([`Manager::fetch_records`](crate::Manager::fetch_records)).
    #[must_use]
    pub fn records(mut self, dir: impl Into<PathBuf>) -> AgentBuilder {
        self.records = Some(dir.into());
        self
    }

    /// Makes the agent state a calendar time that is ahead of the machine's by so many nanoseconds.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn calendar_ahead(mut self, nanos: i64) -> AgentBuilder {
        self.calendar_ahead_nanos = nanos;
        self
    }

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

    /// Sets the node rank that the host states, such as torchrun's `--node-rank`: see
    /// [`Host::node_rank`](crate::membership::Host::node_rank).
    #[must_use]
    pub fn node_rank(self, node_rank: u32) -> AgentBuilder {
        self.label(NODE_RANK_LABEL, node_rank.to_string())
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

    /// Sets the newest version of the protocol that the agent speaks: for tests of an older agent.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn protocol_version_max(mut self, version: u32) -> AgentBuilder {
        self.version_max = version;
        self
    }

    /// Creates the agent.
    ///
    /// # Errors
    /// Returns [`AgentError`] if settings contradict each other, no address of a manager was added, or there are too many
    /// sources.
    pub fn build(self) -> Result<Agent, AgentError> {
        self.settings.check()?;
        if self.managers.is_empty() {
            return Err(AgentError::Refused("the agent has no address of a manager: add one".into()));
        }
        if self.sources.len() > SOURCES_MAX {
            let text = format!("the host has {} trace sources, and {SOURCES_MAX} are the limit", self.sources.len());
            return Err(AgentError::Refused(text));
        }
        let AgentBuilder { job, host, launcher, sources, managers, labels, settings, access, .. } = self;
        let AgentBuilder {
            records,
            calendar_ahead_nanos,
            on_lease_end,
            fence,
            forwarder,
            peer_address,
            version_max,
            ..
        } = self;
        let begun = Moment::now();
        let on_lease_end = if settings.checks.has(Check::LeaseEnd) { on_lease_end } else { OnLeaseEnd::Keep };
        let shared = Shared {
            job,
            host,
            instance: instance(),
            begun,
            launcher,
            sources: Arc::new(Sources::new(sources, begun)),
            records,
            managers: Managers::new(managers),
            labels,
            settings,
            access,
            calendar_ahead_nanos,
            forwarder,
            peer_address,
            version_max,
            epoch: AtomicU64::new(0),
            lease: watch::Sender::new(Lease::default()),
            fence: fence.filter(|_| on_lease_end == OnLeaseEnd::Stop),
            fenced: watch::Sender::new(0),
            connections: AtomicU64::new(0),
            trouble: watch::Sender::new(None),
            ended: watch::Sender::new(None),
            refused: watch::Sender::new(None),
            leaves: watch::Sender::new(Leaving::No),
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
    sources: Arc<Sources>,
    /// Directory of the ranks' records.
    records: Option<PathBuf>,
    managers: Managers,
    labels: BTreeMap<String, String>,
    settings: ClusterSettings,
    access: Access,
    /// Difference of the calendar time that this agent states to the machine's; 0 but in tests.
    calendar_ahead_nanos: i64,
    forwarder: Option<Forwarder>,
    peer_address: String,
    /// Newest version of the protocol that this agent speaks.
    version_max: u32,
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
    /// Reason why the host cannot take part in the job, once a manager has reported one.
    refused: watch::Sender<Option<String>>,
    leaves: watch::Sender<Leaving>,
}

/// How far a host has left the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    /// No process of it runs any more: the manager has to know.
    Stopped,
    /// The manager knows.
    Known,
}

impl Shared {
    /// Reads the clocks of this host. The calendar time is only displayed: no rule depends on it.
    fn clocks(&self) -> Reading {
        let clocks = Reading::now(&self.begun);
        let calendar_nanos = clocks.calendar_nanos.saturating_add_signed(self.calendar_ahead_nanos);
        Reading { calendar_nanos, ..clocks }
    }

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
            sources: Vec::new(),
            records: None,
            managers: Vec::new(),
            labels: BTreeMap::new(),
            settings: ClusterSettings::default(),
            access: Access::new(security),
            calendar_ahead_nanos: 0,
            on_lease_end: OnLeaseEnd::default(),
            fence: None,
            forwarder: None,
            peer_address: String::new(),
            version_max: VERSION,
        }
    }

    /// Serves the job's managers until `stop` is cancelled. Connects again whenever a connection is lost, to whichever manager
    /// answers. Also returns when a manager reports that the job has ended. The end of this call leaves the processes as they
    /// are: stop them, or detach the launcher.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if a manager refuses this agent before it was ever admitted, or the host cannot take
    /// part in the job ([`HostError`](crate::membership::HostError)).
    pub async fn run(&self, stop: CancellationToken) -> Result<(), AgentError> {
        let enforce = async {
            match self.on_lease_end {
                OnLeaseEnd::Stop => lease::enforce(&self.shared).await,
                OnLeaseEnd::Keep => std::future::pending().await,
            }
        };
        let (mut job, mut refused) = (self.shared.ended.subscribe(), self.shared.refused.subscribe());
        let reading = self.shared.sources.read();
        let result = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            _ = job.wait_for(Option::is_some) => Ok(()),
            Ok(why) = refused.wait_for(Option::is_some) => Err(AgentError::Refused(why.clone().unwrap_or_default())),
            () = enforce => Ok(()),
            result = connection::serve_managers(&self.shared) => result,
        };
        reading.close().await;
        result
    }

    /// Leaves the job: stops the processes of this host, with `grace` between SIGTERM and SIGKILL, and reports that to the
    /// manager, so that it need not wait for the end of the host's lease. [`run`](Self::run) must run meanwhile, and ends
    /// then. If no manager is connected, the host is lost at the end of its lease.
    ///
    /// # Errors
    /// Returns the launcher's error if the processes cannot be stopped, or do not end: the host is then not reported as
    /// having left.
    pub async fn leave(&self, grace: Duration) -> Result<(), LaunchError> {
        leave::stop_all(&*self.shared.launcher, grace).await?;
        self.shared.leaves.send_replace(Leaving::Stopped);
        let mut leaves = self.shared.leaves.subscribe();
        let known = leaves.wait_for(|leaving| *leaving == Leaving::Known);
        let _ = timeout(self.shared.settings.silent_after, known).await; // else the lease ends
        Ok(())
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

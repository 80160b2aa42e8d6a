//! Builds the agent of a host.

use super::lease::Lease;
use super::managers::Managers;
use super::sources::{SOURCES_MAX, Sources};
use super::warm::Warm;
use super::{Agent, AgentError, Leaving, OnLeaseEnd, Shared, instance};
use crate::checks::Check;
use crate::clock::Moment;
use crate::dial::{Access, Dial};
use crate::membership::NODE_RANK_LABEL;
use crate::rendezvous::Forwarder;
use crate::security::SecurityContext;
use crate::settings::ClusterSettings;
use crate::wire::VERSION;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use taskd_runtime::job::NodeId;
use taskd_runtime::launch::{Fence, Launcher};
use taskd_runtime::trace::TraceSource;
use tokio::sync::watch;

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
    pub(super) fn new(
        job: String,
        host: NodeId,
        launcher: Arc<dyn Launcher>,
        security: &SecurityContext,
    ) -> AgentBuilder {
        AgentBuilder {
            job,
            host,
            launcher,
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

    /// Sets by how many nanoseconds the calendar time that the agent states is ahead of the machine's.
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
            warm: Warm::default(),
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

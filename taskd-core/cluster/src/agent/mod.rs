//! The agent of a host: exports a launcher and trace sources to the job's manager, and stops the host's ranks when no
//! manager reaches it.
//!
//! The agent decides nothing. It dials the manager, so that only managers need an address.

mod builder;
mod connection;
mod lease;
mod leave;
mod links;
mod managers;
mod once;
mod outbox;
mod records;
mod running;
mod search;
mod serve;
mod sources;
mod start;
mod warm;

use crate::clock::Moment;
use crate::clock_offset::Reading;
use crate::dial::Access;
use crate::rendezvous::Forwarder;
use crate::security::SecurityContext;
use crate::settings::{ClusterSettings, SettingsError};
pub use builder::AgentBuilder;
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
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use warm::Warm;

/// Shortest and longest time before a manager that did not answer is dialled again; it doubles in between.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

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
    /// Connections to the other processes that can become manager.
    warm: Warm,
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
        AgentBuilder::new(job.into(), host, Arc::new(launcher), security)
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
            () = warm::keep_open(&self.shared) => Ok(()),
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

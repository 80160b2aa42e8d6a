//! Jobs on many hosts. An *agent* on every host exports its launcher and its trace sources; the *manager* uses them through
//! the same traits, so the decision kernel is the one of a job on a single host.
//!
//! - [`consensus`]: an existing engine stores which process is manager, under which epoch, and which world is in force.
//! - [`security`]: agents, managers and voters prove that they belong to the job.
//! - [`membership`]: which hosts form the next world, and which of them vote. Pure.
//! - [`topology`]: the fault and network domains of hosts, and the choices that depend on them. Pure.

mod agent;
#[cfg_attr(not(feature = "test-util"), allow(dead_code, unreachable_pub, reason = "only a simulation names them"))]
mod checks;
mod clock;
mod clock_offset;
pub mod consensus;
mod dial;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub mod fuzz;
mod manager;
pub mod membership;
mod relay;
mod rendezvous;
pub mod security;
mod session;
mod settings;
pub mod topology;
mod wire;
mod witness;

pub use agent::{Agent, AgentBuilder, AgentError, OnLeaseEnd};
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use checks::{Check, Checks};
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use clock::simulate_boot_time;
pub use clock_offset::ClockOffset;
pub use dial::Dial;
pub use manager::{
    ClusterLauncher, ClusterSource, FactCounts, FetchedRecords, FirstWorld, HostStatus, Manager, ManagerError,
    ManagerService, Membership, Places, RecordsError, RecordsRequest, RelayCounts, VOTER_LABEL, VOTER_LOST_AFTER,
};
pub use rendezvous::{Forwarder, PeerService};
pub use settings::{ClusterSettings, SettingsError};
pub use wire::VERSION as PROTOCOL_VERSION;
pub use witness::Witness;

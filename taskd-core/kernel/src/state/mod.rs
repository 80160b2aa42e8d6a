//! The job as it is observed: processes, hosts, guards, control links, replicas, and where ranks are placed.
//!
//! Plain data and queries over it. It decides nothing; detectors, strategies and the kernel read it.

mod change;
mod checkpoint;
mod control_link;
mod directive;
mod host_history;
#[doc(hidden)]
pub mod placement;
mod replicas;
mod start;
mod view;

pub use change::{
    Change, GuardEnd, GuardState, GuardStatus, Listing, NodeState, NodeStatus, Phase, ProcStatus, Revision,
};
pub use checkpoint::{CheckpointManifest, CheckpointShard, InMemoryCheckpoint, InMemoryCheckpointId};
pub use control_link::{
    ControlLink, DirectiveReply, FIGURES_MAX, FailureKind, LinkStatus, LoopPosition, StateDigest, StepFailure, Window,
    WorkerEvent, WorkerMessage, WorkerState,
};
#[doc(hidden)]
pub use directive::current_name;
pub(crate) use directive::current_names;
pub use directive::{
    CHECKPOINT_DIR_VARIABLE, DISABLED_DIRECTIVES_VARIABLE, Directive, DirectiveBatch, Endpoint,
    IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, IN_MEMORY_CHECKPOINT_LATE_VARIABLE, JOIN_VARIABLE, Peer,
};
pub use host_history::{HOSTS_MAX, HostHistory, HostIncident, INCIDENTS_MAX, INCIDENTS_TOTAL_MAX};
pub(crate) use host_history::{PERIOD_DAYS as HOST_PERIOD_DAYS, classes as host_incident_classes};
pub use replicas::{ReplicaFigures, ReplicaProof, Replicas};
pub use start::{Place, StartBatch, StartOrder};
pub use view::{Proc, View};

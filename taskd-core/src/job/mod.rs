//! The vocabulary of the runtime: who trains, where, since which restart, and where a fault can be.
//!
//! Plain data without behaviour beyond arithmetic and printing. It never decides, awaits or reads a clock, and it knows
//! neither a framework nor a vendor.

pub(crate) mod document;
mod domain;
mod ids;
mod memory;
mod name;
mod permissions;
mod policy;
mod printable;
mod process;
pub(crate) mod seconds;
mod spec;
mod text;
mod time;
mod wall;
mod world;

pub use document::{SPEC_VERSION, SpecError};
pub use domain::Domain;
pub use ids::{
    CommandId, Generation, GroupId, GroupKind, Incarnation, IncidentId, NoGroup, NodeId, OrderId, Rank, Seq,
};
pub use memory::{LateCopy, MemoryCheckpoints};
pub use name::Name;
pub use policy::{BudgetSpec, Mode, Permission, Policy, REASON_BYTES_MAX, RemovalCap};
pub use printable::printable;
pub use process::{ErrorReport, Exit, ProcId, Role, Termination};
pub(crate) use spec::ConfigProblems;
pub use spec::{Affinity, ConfigError, InheritEnv, JobSpec, RANKS_MAX, Ready, WorkerSpec};
pub use text::{NotText, document_text};
pub use time::JobTime;
pub use wall::{NoWallTime, WallTime};
pub use world::{Counted, Member, World};

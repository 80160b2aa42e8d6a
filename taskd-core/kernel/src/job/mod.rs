//! The vocabulary of the runtime: jobs, ranks, nodes, incarnations, worlds and fault domains.
//!
//! Plain data without behaviour beyond arithmetic and printing. This module makes no decisions, never awaits or reads a
//! clock, and depends on no framework or vendor.

#[doc(hidden)]
pub mod document;
mod domain;
mod ids;
mod in_memory_checkpoints;
mod name;
mod parse;
mod permissions;
mod policy;
mod printable;
mod process;
#[cfg(feature = "schema")]
mod schema;
#[doc(hidden)]
pub mod seconds;
mod spec;
pub mod strategy;
mod text;
mod time;
mod wall;
mod world;

pub use document::{SPEC_VERSION, SpecError};
pub use domain::Domain;
pub use ids::{
    CommandId, Generation, GroupId, GroupKind, Incarnation, IncidentId, NodeId, OrderId, ParseGroupIdError, Rank, Seq,
};
pub use in_memory_checkpoints::{InMemoryCheckpoints, LateCopyPolicy};
pub use name::Name;
pub use parse::ParseIdError;
pub use policy::{BudgetSpec, Mode, Permission, Policy, REASON_BYTES_MAX, RemovalCap};
pub use printable::printable;
pub use process::{ErrorReport, Exit, ProcId, Role, Termination};
#[doc(hidden)]
pub use spec::ConfigProblems;
pub use spec::{Affinity, ConfigError, InheritEnv, JobSpec, RANKS_MAX, Ready, WorkerSpec};
pub use text::{NotText, document_text};
pub use time::JobTime;
pub use wall::{ParseWallTimeError, WallTime};
pub use world::{Counted, Member, World};

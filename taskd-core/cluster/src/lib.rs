//! Jobs on many hosts. An *agent* on every host exports its launcher and its trace sources; the *manager* uses them through
//! the same traits, so the decision kernel is the one of a job on a single host.
//!
//! - [`consensus`]: an existing engine stores which process is manager, under which epoch, and which world is in force.
//! - [`membership`]: which hosts form the next world, and which of them vote. Pure.
//! - [`topology`]: the fault and network domains of hosts, and the choices that depend on them. Pure.

pub mod consensus;
pub mod membership;
pub mod topology;
mod wire;

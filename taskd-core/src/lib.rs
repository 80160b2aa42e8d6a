//! Embeddable fault-tolerant training runtime: traits, a deterministic kernel, a local launcher with a guard.

pub mod detect;
pub mod job;
pub mod journal;
pub mod kernel;
pub mod launch;
pub mod recover;
pub mod runtime;
#[cfg(feature = "schema")]
pub mod schema;
#[cfg(feature = "test-util")]
pub mod sim;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod trace;
pub mod worker;

/// The README's example is compiled like all others.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

//! Observe mode: a job that plain torchrun runs is watched by a supervisor that acts on nothing, while faults are
//! injected from outside.
//!
//! Three parties, and none knows of the next: torchrun with its ranks, the supervisor ([`watch`]), and the experimenter
//! that starts both and injects ([`story`]).

pub mod account;
pub mod inject;
pub mod job;
pub mod overhead;
pub mod sealed;
pub mod story;
pub mod watch;

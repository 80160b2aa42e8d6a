//! Observe mode: a supervisor watches a job that plain torchrun runs and takes no action, while faults are injected
//! from outside.
//!
//! There are three independent parties: torchrun with its ranks, the supervisor ([`watch`]), and the experimenter that
//! starts both and injects ([`story`]).

pub mod account;
pub mod inject;
pub mod job;
pub mod overhead;
pub mod sealed;
pub mod story;
pub mod watch;

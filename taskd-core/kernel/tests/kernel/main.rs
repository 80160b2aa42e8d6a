//! The kernel through its public edge: inputs in, commands out.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod bench;
mod hosts;
mod incidents;
mod job;
mod launches;
mod links;
mod memory;
mod recoveries;

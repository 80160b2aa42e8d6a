//! Stored records through their public edge.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod batches;
mod compatible;
#[path = "../journal_logs/elsewhere.rs"]
mod elsewhere;
mod fuzz;
mod native;
mod trace_store;

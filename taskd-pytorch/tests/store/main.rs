//! The store's process, and torch's own client library in real Python processes; clients that mean harm; a dead name
//! service. What each request does to keys is in `src/store/space/tests.rs`.
//!
//! The programs beside this file say what they do. Those that need torch run its own server, too: what both answer is
//! compared.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod calls;
mod control;
mod generations;
mod groups;
mod hostile;
mod names;
mod other_host;
mod raw;
mod service;
#[path = "../support/mod.rs"]
mod support;

//! Warm standbys of Python ranks: real interpreters, a real guard, and a framework of the tests' own.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may fail where it stands")]

mod ahead;
mod as_new;
mod contract;
mod ends;
mod failures;
mod gives_way;
mod job;
mod seated;
#[path = "../local_launcher/support.rs"]
mod support;

//! `libtaskd.so`: what ranks record through it, read by another process.
//!
//! The ranks are real ones, which a guard has started, and not written in Rust.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may fail where it stands")]

/// The library's source, compiled into this program: here it is in a process that no launcher has started.
#[allow(unsafe_code, unreachable_pub, dead_code, unused_imports, reason = "a C ABI, and all of the recorder's source")]
#[path = "../../runtime/src/worker/abi/lib.rs"]
mod library;

mod beats;
mod execs;
mod faults;
mod forks;
mod languages;
mod nothing;
mod ranks;
mod support;

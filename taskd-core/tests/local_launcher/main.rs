//! The local launcher with its guard, over real processes.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may fail where it stands")]

mod conformance;
mod exits;
mod job;
mod output;
mod starts;
mod stops;
mod support;

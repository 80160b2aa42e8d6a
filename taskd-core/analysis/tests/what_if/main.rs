//! Attribution on simulated hybrid-parallel jobs with planted stragglers, on ordinary traces, and on a recorded one.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(clippy::cast_possible_truncation, reason = "recorded times are 32-bit floats, and the numbers are small")]

mod job;
mod planted;
#[cfg(feature = "parquet")]
mod recorded;
mod records;
mod senseless;
mod trace;

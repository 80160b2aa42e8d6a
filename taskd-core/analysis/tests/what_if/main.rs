//! Attribution on simulated hybrid-parallel jobs with planted stragglers, on ordinary traces, and on a recorded one.

mod job;
mod planted;
#[cfg(feature = "parquet")]
mod recorded;
mod trace;

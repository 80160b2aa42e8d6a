//! Attribution on simulated hybrid-parallel jobs with planted stragglers, and on a recorded one.

mod job;
mod planted;
#[cfg(feature = "parquet")]
mod recorded;

//! Finds components that have become slow: ranks, hosts and links, without blaming those that only wait for them.
//!
//! [`FailSlow`] is the engine, for recorded and live jobs. It has two inputs: the [`Layout`] of the job, and the figures
//! of all ranks for each step. [`FailSlowDetector`] feeds it in a running job.

mod channel;
mod detector;
mod engine;
mod explain;
mod layout;
mod stats;
mod track;
mod uneven_stage;
mod verdict;

pub use detector::FailSlowDetector;
pub use engine::{FailSlow, Row, SERIES, Series, VERDICTS_MAX, WARM_UP_STEPS};
pub use layout::{Grid, Layout, Members, Place};
pub use verdict::{Cause, Change, Component, Verdict};

#[cfg(test)]
mod tests;

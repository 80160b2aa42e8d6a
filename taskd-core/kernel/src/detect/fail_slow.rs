//! Finds components that have become slow: ranks, hosts and links, without blaming those that only wait for them.
//!
//! [`FailSlow`] is the engine, for recorded and live jobs. It has two inputs: the [`Layout`] of the job, and the figures
//! of all ranks for each step. [`FailSlowDetector`] feeds it in a running job.

mod channel;
mod detector;
mod engine;
mod evidence;
mod explain;
mod figures;
mod from_start;
mod layout;
mod second_look;
mod stages;
mod stats;
mod track;
mod transfers;
mod verdict;

pub use super::device_steps::{Bases, Basis, Choice};
pub use detector::FailSlowDetector;
pub use engine::{FailSlow, LEARN_STEPS, Row, SERIES, Series, VERDICTS_MAX, WARM_UP_STEPS};
pub use figures::{StepFigures, is_judged, ms, row_of, rows_by};
pub use layout::{Grid, Layout, Members, Place};
pub use transfers::add_transfers;
pub use verdict::{Cause, Change, Component, Verdict};

#[cfg(test)]
mod tests;

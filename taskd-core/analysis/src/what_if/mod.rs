//! Attribution: how much faster a job would run without one cause, and which workers are at fault.
//!
//! ```text
//! operations ──▶ Model: what each operation waits for, and its time without waiting
//!                  ├──▶ replay with other times ──▶ scenarios, and the published figures S, S_w, M_W, M_S
//!                  └──▶ comparison with peers   ──▶ workers at fault, with the onset and the evidence
//! ```
//!
//! A model comes from the operations of a hybrid-parallel job ([`Model::new`]), or from an ordinary trace
//! ([`Model::from_trace`]). The former does not contain the host's activity: the gap between an operation and the last
//! one that it waits for is left out. The difference between the modelled and the measured time shows how much that is.
//!
//! What durations alone cannot tell apart: without data-parallel replicas, a slow worker from an uneven stage; with one
//! stage, a slow worker from a replica of lastingly longer data; with more, a host that runs all stages of a replica from
//! such data. In the first and the last case no worker is at fault.

mod blame;
mod delays;
mod excess;
mod findings;
mod hybrid;
mod model;
mod operation;
#[cfg(feature = "parquet")]
mod pages;
#[cfg(feature = "parquet")]
mod parquet;
mod published;
mod replay;
mod scenarios;
mod statistics;
#[cfg(test)]
mod tests;
mod trace;

pub use blame::{
    EFFECT_MIN, EXCESS_MIN, REPLICA_SHARE_MAX, SIGNIFICANCE_MIN, SPREAD_MIN, STEPS_MIN, Straggler, WORKERS_MAX,
};
pub use findings::{Findings, GAIN_NAMED_MIN, attribute};
pub use model::{Model, ModelCounts, ModelError};
pub use operation::{Operation, OperationKind, Worker};
#[cfg(feature = "parquet")]
pub use pages::PAGE_BYTES_MAX;
#[cfg(feature = "parquet")]
pub use parquet::{BATCH_ROWS, OperationTrace, ParquetTraceError, UNKNOWN_MAX, read_parquet};
pub use published::{DIMENSION_MAX, Published};
pub use trace::PAUSE_MIN_NS;

//! The state of every rank: facts, the trait [`TraceSource`] that delivers them, and evidence on demand.
//!
//! This module does not interpret facts and knows no vendor: the detectors in [`detect`](crate::detect) judge.

mod batch;
pub(crate) mod drain;
pub mod export;
#[doc(hidden)]
pub mod probe_reader;
pub(crate) mod rank_drain;
#[allow(unsafe_code)] // maps memory shared between processes, and reads the processor's clock
pub mod recorder;
pub mod reduce;
mod sink;
mod source;
pub mod store;
mod stored;
pub mod switches;
#[cfg(any(test, feature = "test-util"))]
pub mod synthetic;

pub use batch::{NameTable, Origin, RecordBatch, TimedRecord};
pub use drain::{Drain, Drained, THREAD_RECORDS_MAX};
pub use sink::TraceSink;
#[cfg(any(test, feature = "test-util"))]
pub use source::MockTraceSource;
pub use source::{Named, SourceError, SourceInfo, TraceBatch, TraceSource, TraceSourceExt, WhenFull};
pub use stored::{Pace, StoredSource};
pub use taskd_kernel::trace::{
    CHANNELS_MAX, COLLECTIVES, Call, Channel, DecodeError, DeviceTimes, Ext, Extension, Fact, GRAD_NORM, GroupPosition,
    LINKS, LOSS, METRIC_STEP, Observation, PROCESS_STATE, Probe, ProbeReply, ProbeResult, RECENT_CALLS,
    REPLICA_CHECKSUM, ReplicaChecksum, SKIPPED_STEPS, STACKS, Signal, StepTimes, StepTransfers, TRANSFERS_MAX,
    TransferTime, is_replica_checksum, point_to_point_name, read_links, write_links,
};

//! What every rank is doing: facts, the trait [`TraceSource`] that delivers them, evidence on demand.
//!
//! It never interprets a fact and knows no vendor: judging is the work of [`detect`](crate::detect).

mod batch;
pub(crate) mod drain;
pub mod export;
mod fact;
pub(crate) mod following;
#[allow(unsafe_code)] // maps memory that processes share, and reads the processor's clock
pub mod recorder;
pub mod reduce;
mod sink;
mod source;
pub mod store;
mod stored;
pub mod switches;
#[cfg(any(test, feature = "test-util"))]
pub mod synthetic;
mod training;

pub use batch::{NameTable, Origin, RecordBatch, TimedRecord};
pub use drain::{Drain, Drained, THREAD_RECORDS_MAX};
pub use fact::{
    Ask, COLLECTIVES, Evidence, Exhibit, Ext, Extension, Fact, Malformed, Observation, PROCESS_STATE, Signal,
};
pub use sink::TraceSink;
#[cfg(any(test, feature = "test-util"))]
pub use source::MockTraceSource;
pub use source::{SourceError, SourceInfo, Tagged, TraceBatch, TraceSource, TraceSourceExt, WhenFull};
pub use stored::{Pace, StoredSource};
pub use training::{Call, GroupPosition, RECENT_CALLS, StepTimes};

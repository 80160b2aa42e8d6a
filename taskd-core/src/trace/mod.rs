//! What every rank is doing: facts, the trait [`TraceSource`] that delivers them, evidence on demand.
//!
//! It never interprets a fact and knows no vendor: judging is the work of [`detect`](crate::detect).

mod batch;
pub mod export;
mod fact;
#[allow(unsafe_code)] // maps memory that processes share, and reads the processor's clock
pub mod recorder;
pub mod reduce;
mod source;
pub mod store;
pub mod switches;
#[cfg(any(test, feature = "test-util"))]
pub mod synthetic;
mod training;

pub use batch::{NameTable, Origin, RecordBatch, TimedRecord};
pub use fact::{
    Ask, COLLECTIVES, Evidence, Exhibit, Ext, Extension, Fact, Malformed, Observation, PROCESS_STATE, Signal,
};
#[cfg(any(test, feature = "test-util"))]
pub use source::MockTraceSource;
pub use source::{SourceError, SourceInfo, Tagged, TraceBatch, TraceSource, TraceSourceExt, WhenFull};
pub use training::{Call, GroupPosition, RECENT_CALLS, StepTimes};

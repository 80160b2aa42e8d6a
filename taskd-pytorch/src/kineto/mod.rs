//! Traces of PyTorch's profiler (Kineto, in Chrome's trace format): one file per rank, plain or gzip, of any size.
//!
//! ```text
//! window ──▶ document ──▶ event ──┬──▶ breakdown   busy, idle, overlap: memory does not grow with the file
//!  (chunks)    (header)    (slices) ├──▶ operators   which kernels each operator launches
//!                                   └──▶ reader      all events in the common model
//! ```
//!
//! Members of an object may be in any order; files may be minified or indented. A file that ends early or is damaged is
//! used up to the damage, and the result lists the missing part. No input makes a function of this module panic.

mod breakdown;
mod classify;
mod decimal;
mod document;
mod event;
mod files;
#[cfg(feature = "test-util")]
pub mod generate;
mod operators;
mod reader;
mod scan;
mod window;

pub use breakdown::{
    AnnotationRow, Breakdown, COPIES_MAX, COPY_KINDS_MAX, Class, CopyBandwidth, HTA_KERNELS_MAX, IDLE_MAX,
    KERNEL_NAMES_MAX, KERNEL_WAIT_NS, KernelRow, LATE_KERNEL_NS, LAUNCHES_MAX, Label, LaunchTimes, Mode, QUEUE_MAX,
    QueueLengths, RankBreakdown, SLOW_CALL_NS, STREAMS_MAX, Statistics, StepRow, StreamIdle,
    of_directory as breakdown_of_directory, of_files as breakdown_of_files, of_reader as breakdown_of_reader,
};
pub use files::KinetoError;
pub use operators::{
    DEPTH_MAX, Level, OPERATORS_MAX, Operators, RankOperators, SEQUENCE_MAX, SequenceRow,
    of_files as operators_of_files, of_reader as operators_of_reader,
};
pub use reader::{EVENTS_MAX, read, read_directory, read_files};

//! Records in files: written while training runs, read by others, within a quota.
//!
//! It never makes whoever records or drains wait, and judges nothing.
//!
//! [`TraceStore`] writes; [`RankFiles`] lists what a rank's directory holds, and [`StoredFile::read`] reads it back. Two formats
//! hold the same records: [`native`], a few bytes each, and [`compatible`], lines that existing tools read.

pub mod compatible;
mod config;
mod files;
mod lane;
pub mod native;
mod queue;
mod quota;
mod read;
mod skipped;
mod status;
mod trace_store;
mod writer;

pub use config::StoreConfig;
pub use files::{Format, OTHERS_MAX, PATH_BYTES_MAX, RankFiles, StoredFile, TASK_VARIABLE, task_of};
pub use read::StoredReader;
pub use skipped::{PROBLEMS_MAX, Problem, Skipped};
pub use status::{StoreCounts, StoreError, StoreStatus};
pub use trace_store::TraceStore;

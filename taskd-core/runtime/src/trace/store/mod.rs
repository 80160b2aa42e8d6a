//! Records in files: written while training runs, readable by other programs, within a quota.
//!
//! The store never makes a recording or draining thread wait.
//!
//! [`TraceStore`] writes files; [`RankFiles`] lists the files of a rank's directory, and [`StoredFile::read`] reads
//! one. Two formats hold the same records: [`native`], a few bytes per record, and [`compatible`], lines that existing
//! tools read.

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
pub use files::{Format, OTHERS_MAX, PATH_BYTES_MAX, RankFiles, StoredFile};
pub use read::StoredReader;
pub use skipped::{PROBLEMS_MAX, Problem, Skipped};
pub use status::{StoreCounts, StoreError, StoreStatus};
pub use trace_store::TraceStore;

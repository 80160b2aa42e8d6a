//! Reads dumps of PyTorch's flight recorder, and finds the ranks that cause a hang.
//!
//! With `TORCH_FR_BUFFER_SIZE` set, every process of a PyTorch job records its latest collective calls. It writes them
//! to a file when a collective times out, or on request. [`read_directory`] reads the files of all ranks, in their
//! pickle or JSON form, and [`evaluate`] derives the verdict with the rules of the hang detector
//! ([`judge`](taskd_core::detect::hang::judge)).
//!
//! The pickle reader is no general one: it accepts plain values only, and neither creates objects nor calls functions.
//! Format: `torch/csrc/distributed/c10d/FlightRecorder.hpp`, dump version 2.x.

mod directory;
mod dump;
mod json;
mod pickle;
mod translate;
mod value;
mod verdict;

pub use directory::{DirectoryProblem, Dumps, read_directories, read_directory};
pub use dump::{Dump, Entry, Frame, GroupConfig, GroupStatus};
pub use verdict::{FlightVerdict, evaluate};

/// Maximum size of one dump in bytes. A larger file is refused.
pub const DUMP_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of values (numbers, texts, lists and the like) in one dump. A dump with more is refused.
pub const VALUES_MAX: usize = 8 << 20;
/// Maximum number of entries that are read from one dump: the latest. [`Dump::left_out`] counts the others.
pub const ENTRIES_MAX: usize = 131_072;
/// Maximum number of stack frames that are read for one entry, the innermost ones. [`Dump::left_out`] counts the others.
pub const FRAMES_MAX: usize = 32;
/// Maximum number of stack frames and tensor dimensions that are read from one dump. [`Dump::left_out`] counts the
/// others.
pub const DETAILS_MAX: usize = 4 << 20;

/// Reason why a dump cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The file cannot be read.
    #[error("the dump cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The dump has more bytes or values than are read.
    #[error("the dump has more than {limit} {what}")]
    TooLarge {
        /// The things that are limited.
        what: &'static str,
        /// Their maximum number.
        limit: u64,
    },
    /// The bytes are neither a pickle of plain values nor JSON.
    #[error("byte {at} of the dump is not readable: {why}")]
    Syntax {
        /// Position of the first byte that cannot be read, from 0; of JSON, position in its line.
        at: u64,
        /// Reason.
        why: String,
    },
    /// The values are not those of a flight-recorder dump of a known version.
    #[error("this is no flight-recorder dump of version 2: {0}")]
    Content(String),
}

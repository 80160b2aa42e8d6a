//! Parts of a stored file that a reader skipped, and their positions.
//!
//! A reader skips as little as possible: everything that is readable without the skipped part was read.

use std::fmt;

/// Maximum number of problems of one file that its reader describes: the first ones. Further problems are only
/// counted.
pub const PROBLEMS_MAX: usize = 64;

/// Parts of one stored file that its reader skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Descriptions of the file's problems, in the order of their positions; at most [`PROBLEMS_MAX`], the first ones.
    pub problems: Vec<Problem>,
    /// Number of all problems of the file, including those that `problems` does not describe.
    pub count: u64,
    /// Number of bytes skipped.
    pub bytes: u64,
    /// Number of skipped markers that devices recorded. They are not needed, because the host's markers describe the
    /// same ranges.
    pub device_records: u64,
    /// Number of valid records of a type that this program does not use, such as Ascend's records of kernels and of calls
    /// into its runtime.
    pub other_records: u64,
    /// Number of skipped ends of ranges. The file lacks the beginnings of these ranges, so the kind of the ranges is
    /// unknown.
    pub unpaired_records: u64,
}

impl Skipped {
    /// Returns true if no part of the file is damaged or missing. Records skipped for their type do not count.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn push(&mut self, problem: Problem) {
        self.count += 1;
        self.bytes += problem.bytes();
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// The reason why a reader skipped a part of a file. Positions are byte offsets from the file's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The file is not in the format that the reader expects.
    Foreign {
        /// The file's length in bytes.
        bytes: u64,
    },
    /// The file has a format version that this program does not read.
    Version {
        /// Format version that the file states.
        version: u32,
        /// The file's length in bytes.
        bytes: u64,
    },
    /// The file ends in the middle of a block or line: its writer was interrupted.
    Torn {
        /// Position at which the complete part of the file ends.
        at: u64,
        /// Number of bytes after the complete part.
        bytes: u64,
    },
    /// A part of the file was changed after it was written, or cannot be decoded without a part that was changed.
    /// Reading continues after the damaged part.
    Damaged {
        /// Position at which the damaged part begins.
        at: u64,
        /// Length of the damaged part in bytes.
        bytes: u64,
    },
    /// The system returned an error when the file was read.
    Unreadable {
        /// Position from which on the file is unreadable.
        at: u64,
        /// The system's error.
        reason: String,
    },
}

impl Problem {
    const fn bytes(&self) -> u64 {
        match self {
            Problem::Foreign { bytes }
            | Problem::Version { bytes, .. }
            | Problem::Torn { bytes, .. }
            | Problem::Damaged { bytes, .. } => *bytes,
            Problem::Unreadable { .. } => 0,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Foreign { bytes } => write!(f, "not a file of records, {bytes} bytes"),
            Problem::Version { version, .. } => {
                write!(f, "format version {version}, which this program does not read: use the version that wrote it")
            }
            Problem::Torn { at, bytes } => write!(f, "cut off at byte {at}: {bytes} bytes are skipped"),
            Problem::Damaged { at, bytes } => write!(f, "damaged at byte {at}: {bytes} bytes are skipped"),
            Problem::Unreadable { at, reason } => write!(f, "cannot be read from byte {at} on: {reason}"),
        }
    }
}

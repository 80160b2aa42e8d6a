//! What a reader of stored files left out, and where.
//!
//! It decides nothing: what can be read without it was read.

use std::fmt;

/// So many problems of a file are kept, the first ones; more are counted.
pub const PROBLEMS_MAX: usize = 64;

/// What was left out of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// The first problems, in the order of the file.
    pub problems: Vec<Problem>,
    /// How many there were.
    pub count: u64,
    /// Bytes that were left out.
    pub bytes: u64,
    /// Markers of devices, which this program does not use: those of the host tell of the same ranges.
    pub device_records: u64,
    /// Whole records of another sort than this program knows, such as those of kernels and interfaces.
    pub other_records: u64,
    /// Ends of ranges whose beginning is not in the file and whose kind is therefore not known.
    pub unpaired_records: u64,
}

impl Skipped {
    /// Whether the file is whole. Records that are left out for what they are do not count.
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

/// A part of a file that was left out, at so many bytes from its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The file is none of this format.
    Foreign {
        /// Its length.
        bytes: u64,
    },
    /// The file is of a version that this program does not read.
    Version {
        /// Which.
        version: u32,
        /// The file's length.
        bytes: u64,
    },
    /// The file ends in the middle of something: its writer was cut off.
    Torn {
        /// Where what is whole ends.
        at: u64,
        /// How much follows.
        bytes: u64,
    },
    /// Bytes are not as they were written, and what follows builds on them. Behind it goes on what can be read.
    Damaged {
        /// Where.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// The system did not let us read on.
    Unreadable {
        /// From where.
        at: u64,
        /// The system's reason.
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
            Problem::Foreign { bytes } => write!(f, "no file of records, {bytes} bytes"),
            Problem::Version { version, .. } => {
                write!(f, "format version {version}, which this program does not read: use a newer one")
            }
            Problem::Torn { at, bytes } => write!(f, "cut off at byte {at}: {bytes} bytes are left out"),
            Problem::Damaged { at, bytes } => write!(f, "damaged at byte {at}: {bytes} bytes are left out"),
            Problem::Unreadable { at, reason } => write!(f, "cannot be read from byte {at} on: {reason}"),
        }
    }
}

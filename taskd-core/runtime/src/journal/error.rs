//! Errors of a journal, and problems found in old files.

use super::{FORMAT_VERSION, Holder};
use crate::job::Seq;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Error that makes a journal unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The directory cannot be created, or its files cannot be listed.
    #[error("the log directory {} cannot be used: {source}; make it accessible or name another", .dir.display())]
    Directory {
        /// Path of the journal's directory.
        dir: PathBuf,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// Another supervisor writes its logs to the directory.
    #[error(
        "the log directory {} is in use by {}: stop that one first, or give this job a directory of its own",
        .dir.display(), .holder.as_ref().map_or("another supervisor".into(), ToString::to_string)
    )]
    Held {
        /// Path of the journal's directory, which another supervisor uses.
        dir: PathBuf,
        /// The supervisor that uses the directory, if the lock file names it.
        holder: Option<Holder>,
    },
    /// The plugins' names and settings do not fit into a file header.
    #[error(
        "the plugins' names and settings take more than {bytes_max} bytes in the log's header: shorten their config()"
    )]
    Header {
        /// Space in a file header for the plugins' names and settings, in bytes.
        bytes_max: usize,
    },
    /// A thread of the journal cannot be started.
    #[error("the log's thread cannot be started: {source}; raise the limit on threads")]
    Thread {
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// The directory contains no log.
    #[error("there is no log in {}: name the directory that holds files like decisions-000001-….log", .dir.display())]
    NoLog {
        /// Path of the directory that contains no log.
        dir: PathBuf,
    },
    /// The directory contains logs, but the newest ones cannot be read.
    #[error("the log in {} cannot be used: {problem}", .dir.display())]
    Unusable {
        /// Path of the directory with the logs.
        dir: PathBuf,
        /// Problem of the newest log files.
        problem: Problem,
    },
    /// The text of a dump cannot be written to its output.
    #[error("the output cannot be written: {source}")]
    Output {
        /// Error that the output returned.
        source: io::Error,
    },
}

impl JournalError {
    pub(super) fn directory(dir: &Path, source: io::Error) -> JournalError {
        JournalError::Directory { dir: dir.to_owned(), source }
    }
}

/// A problem of a log file. The parts of the file that can be read are read nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The file has the name of a log file, but does not contain a log.
    NotALog {
        /// Path of the file that does not contain a log.
        file: PathBuf,
    },
    /// The file has a version of the log format that this program does not support.
    Version {
        /// Path of the file with the unsupported version.
        file: PathBuf,
        /// Version of the log format in the file.
        version: u32,
    },
    /// The operating system refuses to read the file.
    Unreadable {
        /// Path of the file that cannot be read.
        file: PathBuf,
        /// Reason that the operating system gave.
        reason: String,
    },
    /// The file ends within a record, because its writer was cut off. The incomplete record is ignored.
    Torn {
        /// Path of the file that ends within a record.
        file: PathBuf,
        /// Offset in the file at which the ignored part begins, in bytes.
        at: u64,
        /// Length of the ignored part, in bytes.
        bytes: u64,
    },
    /// A part of the file is damaged. Valid records follow it.
    Damaged {
        /// Path of the damaged file.
        file: PathBuf,
        /// Offset in the file at which the damaged part begins, in bytes.
        at: u64,
        /// Length of the damaged part, in bytes.
        bytes: u64,
        /// Number of the input of the last valid record before the damaged part.
        after: Seq,
    },
    /// A valid record contains a value that this program does not know.
    Unknown {
        /// Path of the file that contains the record.
        file: PathBuf,
        /// Number of the input to which the record belongs.
        seq: Seq,
        /// Description of the unknown value.
        what: String,
    },
    /// A record follows a record with a higher input number. The misplaced record is skipped.
    Disordered {
        /// Path of the file with the misplaced record.
        file: PathBuf,
        /// Number of the input of the misplaced record.
        seq: Seq,
    },
    /// Further problems of log files, beyond those that are listed one by one. They are only counted.
    More {
        /// Number of further problems.
        count: u64,
    },
}

impl Problem {
    /// Returns true if the whole file cannot be used.
    #[must_use]
    pub const fn spoils_the_file(&self) -> bool {
        matches!(self, Problem::NotALog { .. } | Problem::Version { .. } | Problem::Unreadable { .. })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NotALog { file } => {
                write!(f, "{} is not a log of this program, or its header is damaged: move it away", file.display())
            }
            Problem::Version { file, version } if *version > FORMAT_VERSION => write!(
                f,
                "{} has version {version} of the log format, this program reads up to {FORMAT_VERSION}: use the version of \
                 this program that wrote it or a newer one, or move it away",
                file.display()
            ),
            Problem::Version { file, version } => write!(
                f,
                "{} has version {version} of the log format, which was never released: move it away",
                file.display()
            ),
            Problem::Unreadable { file, reason } => {
                write!(f, "{} cannot be read: {reason}; make it readable, or move it away", file.display())
            }
            Problem::Torn { file, at: 0, .. } => {
                write!(f, "{} was cut off within its header: it has no records", file.display())
            }
            Problem::Torn { file, at, bytes } => {
                write!(
                    f,
                    "{} was cut off while it was written: its last {bytes} bytes, from byte {at} on, are skipped",
                    file.display()
                )
            }
            Problem::Damaged { file, at, bytes, after } => {
                write!(f, "{} is damaged at byte {at}, after {after}: {bytes} bytes are skipped", file.display())
            }
            Problem::Unknown { file, seq, what } => write!(
                f,
                "{}: {seq} is unknown to this program ({what}) and is skipped: read it with the program that wrote it",
                file.display()
            ),
            Problem::Disordered { file, seq } => {
                write!(f, "{}: {seq} follows a later one and is skipped", file.display())
            }
            Problem::More { count } => write!(f, "and {count} more problems"),
        }
    }
}

/// Problems in the order of discovery, without duplicates. At most [`PROBLEMS_MAX`] are kept; the rest is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

/// Most problems that are listed individually.
const PROBLEMS_MAX: usize = 100;

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        if self.0.contains(&problem) {
            return;
        }
        if self.0.len() < PROBLEMS_MAX {
            return self.0.push(problem);
        }
        match self.0.last_mut() {
            Some(Problem::More { count }) => *count += 1,
            _ => self.0.push(Problem::More { count: 1 }),
        }
    }

    pub(super) fn as_slice(&self) -> &[Problem] {
        &self.0
    }

    pub(super) fn extend(&mut self, others: &Problems) {
        others.0.iter().cloned().for_each(|p| self.push(p));
    }
}

/// A range of the decision kernel's inputs for which the log has no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingInputs {
    /// Number of the first input without a record.
    pub from: Seq,
    /// Number of the last input without a record.
    pub to: Seq,
    /// Reason why the records are missing, as far as the log shows it.
    pub why: String,
}

impl fmt::Display for MissingInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingInputs { from, to, why } = self;
        if from == to { write!(f, "{from} is missing: {why}") } else { write!(f, "{from} to {to} are missing: {why}") }
    }
}

//! What can be wrong with a journal: what stops it from being opened, and what is found in old files.

use super::{FORMAT_VERSION, Holder};
use crate::job::Seq;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a journal cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The directory cannot be made, or what is in it cannot be listed.
    #[error("the log directory {} cannot be used: {source}; make it accessible or name another", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another supervisor writes its logs there.
    #[error(
        "the log directory {} is in use by {}: stop that one first, or give this job a directory of its own",
        .dir.display(), .holder.as_ref().map_or("another supervisor".into(), ToString::to_string)
    )]
    Held {
        /// The directory.
        dir: PathBuf,
        /// Who that is, if it could say so.
        holder: Option<Holder>,
    },
    /// What the plugins say of themselves is too long for the head of a file.
    #[error(
        "the plugins' names and settings take more than {bytes_max} bytes in the log's head: shorten their config()"
    )]
    Header {
        /// Room there is, in bytes.
        bytes_max: usize,
    },
    /// A thread of the journal's own cannot be started.
    #[error("the log's thread cannot be started: {source}; raise the limit on threads")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// There is no log to read.
    #[error("there is no log in {}: name the directory that holds files like decisions-000001-….log", .dir.display())]
    NoLog {
        /// The directory.
        dir: PathBuf,
    },
    /// There is a log, but how it went on last cannot be read.
    #[error("the log in {} cannot be used: {problem}", .dir.display())]
    Unusable {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with its newest files.
        problem: Problem,
    },
    /// What was read cannot be written out.
    #[error("the output cannot be written: {source}")]
    Output {
        /// The system's reason.
        source: io::Error,
    },
}

impl JournalError {
    pub(super) fn directory(dir: &Path, source: io::Error) -> JournalError {
        JournalError::Directory { dir: dir.to_owned(), source }
    }
}

/// Something that is wrong with a file of a log. What can be read without it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The file has the name of a log but is none.
    NotALog {
        /// Which file.
        file: PathBuf,
    },
    /// The file has another version of the format.
    Version {
        /// Which file.
        file: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The system does not let us read the file.
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The file ends within a record: its writer was cut off. The rest is left out.
    Torn {
        /// Which file.
        file: PathBuf,
        /// Where the sound part ends, in bytes from its beginning.
        at: u64,
        /// How much is left out.
        bytes: u64,
    },
    /// A part of the file is damaged, with sound records behind it.
    Damaged {
        /// Which file.
        file: PathBuf,
        /// Where, in bytes from its beginning.
        at: u64,
        /// How much is skipped.
        bytes: u64,
        /// The last sound record before it.
        after: Seq,
    },
    /// A sound record holds something that this program does not know.
    Unknown {
        /// Which file.
        file: PathBuf,
        /// The record's input.
        seq: Seq,
        /// What is unknown in it.
        what: String,
    },
    /// Numbers of inputs do not rise.
    Disordered {
        /// Which file.
        file: PathBuf,
        /// The record that came too late.
        seq: Seq,
    },
    /// So many problems more, each of which would be one of these.
    More {
        /// How many.
        count: u64,
    },
}

impl Problem {
    /// Whether the file as a whole could not be used.
    #[must_use]
    pub const fn spoils_the_file(&self) -> bool {
        matches!(self, Problem::NotALog { .. } | Problem::Version { .. } | Problem::Unreadable { .. })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NotALog { file } => {
                write!(f, "{} is not a log of this program, or its head is damaged: move it away", file.display())
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
                write!(f, "{} was cut off within its head: it holds no record", file.display())
            }
            Problem::Torn { file, at, bytes } => {
                write!(
                    f,
                    "{} was cut off while it was written: its last {bytes} bytes, from byte {at} on, are left out",
                    file.display()
                )
            }
            Problem::Damaged { file, at, bytes, after } => {
                write!(f, "{} is damaged at byte {at}, behind {after}: {bytes} bytes are skipped", file.display())
            }
            Problem::Unknown { file, seq, what } => write!(
                f,
                "{}: {seq} holds what this program does not know ({what}) and is left out: read it with the program that \
                 wrote it",
                file.display()
            ),
            Problem::Disordered { file, seq } => {
                write!(f, "{}: {seq} stands behind a later one and is left out", file.display())
            }
            Problem::More { count } => write!(f, "and {count} problems more"),
        }
    }
}

/// Problems in the order in which they were found, each once, at most [`PROBLEMS_MAX`]; the rest is counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

/// Most problems that are told one by one.
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

/// Inputs of which a log holds no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The first.
    pub from: Seq,
    /// The last.
    pub to: Seq,
    /// Why, as far as the log can tell.
    pub why: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { from, to, why } = self;
        if from == to { write!(f, "{from} is missing: {why}") } else { write!(f, "{from} to {to} are missing: {why}") }
    }
}

//! Names of the journal's files, and the list of files in its directory.
//!
//! This module opens no file. The content of a file is determined by its header, not by its name.

use crate::job::Seq;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Kind of a journal's file: a log, or a snapshot. The variants are in the order in which the journal writes the
/// files.
///
/// Observations are written first, so that a decision on disk never depends on observations that are not on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// Log of the observations from trace sources.
    Observations,
    /// Snapshots of the decision kernel's whole state, taken from time to time.
    Snapshots,
    /// Log of all inputs of the decision kernel except observations, and of all commands that it returned.
    Decisions,
}

impl Log {
    /// All kinds of a journal's files, in the order in which the journal writes them.
    pub const ALL: [Log; 3] = [Log::Observations, Log::Snapshots, Log::Decisions];

    /// Returns the prefix that the names of files of this kind have, such as `decisions`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Log::Observations => "observations",
            Log::Snapshots => "snapshot",
            Log::Decisions => "decisions",
        }
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A file of a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment {
    pub(super) log: Log,
    /// Number of the supervisor start that wrote the file.
    pub(super) start: u64,
    /// Number of the first input; for a snapshot, number of the last input in it.
    pub(super) first: Seq,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Returns a path such as `decisions-000002-00000000000000000117.log`, so that names sort like inputs.
pub(super) fn path(dir: &Path, log: Log, start: u64, first: Seq) -> PathBuf {
    dir.join(format!("{log}-{start:06}-{:020}.log", first.0))
}

/// Lists the journal's files in a directory, in order for each log. Ignores other files.
pub(super) fn list(dir: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((log, start, first)) = name.to_str().and_then(parse) else { continue };
        let bytes = match entry.metadata() {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => continue,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // removed meanwhile: its log reached a limit
            Err(e) => return Err(e),
        };
        segments.push(Segment { log, start, first, path: entry.path(), bytes });
    }
    segments.sort();
    Ok(segments)
}

fn parse(name: &str) -> Option<(Log, u64, Seq)> {
    let mut parts = name.strip_suffix(".log")?.split('-');
    let (log, start, first) = (parts.next()?, parts.next()?, parts.next()?);
    let log = Log::ALL.into_iter().find(|l| l.as_str() == log)?;
    if parts.next().is_some() {
        return None;
    }
    Some((log, start.parse().ok()?, Seq(first.parse().ok()?)))
}

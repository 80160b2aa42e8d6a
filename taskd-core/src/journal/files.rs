//! Names of the journal's files, and what lies in its directory.
//!
//! It never opens a file: what one holds is told by its head, not by its name.

use crate::job::Seq;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The journal's three kinds of files, in the order in which they are written.
///
/// Observations first: a decision on disk never rests on observations that are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// What sources saw.
    Observations,
    /// The kernel's whole state, now and then.
    Snapshots,
    /// All other inputs, and all commands.
    Decisions,
}

impl Log {
    /// All of them, in order.
    pub const ALL: [Log; 3] = [Log::Observations, Log::Snapshots, Log::Decisions];

    /// The log's name, with which its files begin.
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

/// One file of a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment {
    pub(super) log: Log,
    /// Which start of the supervisor wrote it.
    pub(super) start: u64,
    /// Number of its first input; of a snapshot, the last input in it.
    pub(super) first: Seq,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// `decisions-000002-00000000000000000117.log`: names sort as inputs do.
pub(super) fn path(dir: &Path, log: Log, start: u64, first: Seq) -> PathBuf {
    dir.join(format!("{log}-{start:06}-{:020}.log", first.0))
}

/// The journal's files in a directory, each log's in order. Other files are none of our business.
pub(super) fn list(dir: &Path) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((log, start, first)) = name.to_str().and_then(parse) else { continue };
        let bytes = match entry.metadata() {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => continue,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue, // removed since: its bound was reached
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

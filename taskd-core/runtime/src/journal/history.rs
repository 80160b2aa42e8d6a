//! Content of a directory of logs: the starts of the supervisor, and which of them continued from which.
//!
//! Reads only. The caller decides if an old state is used.

use super::cursor::{Cursor, Piece, load, no_head_problem, read_head};
use super::error::Problems;
use super::files::{self, Segment};
use super::form;
use super::header::{FileHead, Header};
use super::record::{self, Found, Kind};
use super::steps::Steps;
use super::{JournalError, Log, Problem};
use crate::job::Seq;
use crate::kernel::Snapshot;
use std::collections::BTreeMap;
use std::path::Path;

/// The logs in a journal's directory, opened for reading.
#[derive(Clone, Debug)]
pub struct History {
    lives: Vec<Life>,
    problems: Problems,
    /// True if the newest start's files cannot be read, so that the older files do not contain the latest state.
    outdated: bool,
}

/// A chain of supervisor starts in a journal. Each start continued from the decision kernel's state that the previous
/// start left in the logs; the first start began with an empty state.
#[derive(Clone, Debug)]
pub struct Life {
    eras: Vec<Era>,
    files: [Vec<Segment>; 3],
}

/// One start of the supervisor.
#[derive(Clone, Debug)]
struct Era {
    head: FileHead,
    /// Number of the last input of this start that took effect. The next start continued from here.
    upto: Seq,
}

impl History {
    /// Opens the logs in the journal's directory `dir` and reads the headers of the log files.
    ///
    /// # Errors
    /// Returns [`JournalError::Directory`] if the directory cannot be listed, and [`JournalError::NoLog`] if no file in
    /// the directory has the name of a log.
    pub fn open(dir: &Path) -> Result<History, JournalError> {
        let found = files::list(dir).map_err(|e| JournalError::directory(dir, e))?;
        if found.is_empty() {
            return Err(JournalError::NoLog { dir: dir.to_owned() });
        }
        Ok(History::of(found))
    }

    pub(super) fn of(mut found: Vec<Segment>) -> History {
        found.sort_by_key(|s| s.start);
        let mut history = History { lives: Vec::new(), problems: Problems::default(), outdated: false };
        for files in found.chunk_by(|a, b| a.start == b.start) {
            let mut spoiled = false;
            let head = files.iter().find_map(|file| match read_head(&file.path) {
                Ok(head) if head.start == file.start => Some(head),
                Ok(_) => {
                    history.problems.push(Problem::NotALog { file: file.path.clone() });
                    None
                }
                Err(problem) => {
                    spoiled |= problem.spoils_the_file();
                    history.problems.push(problem);
                    None
                }
            });
            match head {
                Some(head) => {
                    history.outdated = false;
                    history.take(head, files);
                }
                None => history.outdated |= spoiled,
            }
        }
        history
    }

    fn take(&mut self, head: FileHead, files: &[Segment]) {
        if head.after == Seq(0) || self.lives.is_empty() {
            self.lives.push(Life { eras: Vec::new(), files: Default::default() });
        }
        let Some(life) = self.lives.last_mut() else { return };
        for era in &mut life.eras {
            era.upto = era.upto.min(head.after);
        }
        life.eras.push(Era { head, upto: Seq(u64::MAX) });
        files.iter().for_each(|file| life.files[file.log as usize].push(file.clone()));
    }

    /// Returns the lives in the logs, oldest first. A life is a chain of supervisor starts, each of which continued
    /// from the state of the previous one.
    #[must_use]
    pub fn lives(&self) -> &[Life] {
        &self.lives
    }

    /// Returns the newest life (chain of supervisor starts), from which the next supervisor would continue. `None` if
    /// the directory contains no life, or if the newest files cannot be read, so that the latest state is unknown.
    #[must_use]
    pub fn latest(&self) -> Option<&Life> {
        self.lives.last().filter(|_| !self.outdated)
    }

    /// Same as [`latest`](History::latest), with an error instead of `None`.
    pub(super) fn latest_in(&self, dir: &Path) -> Result<&Life, JournalError> {
        let dir = dir.to_owned();
        self.latest().ok_or_else(|| match self.problems().last() {
            Some(problem) => JournalError::Unusable { dir, problem: problem.clone() },
            None => JournalError::NoLog { dir },
        })
    }

    /// Returns the problems that were found in the headers of the log files.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        self.problems.as_slice()
    }
}

impl Life {
    /// Returns the log header of the latest supervisor start in this life (chain of supervisor starts).
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        self.eras.last().map(|era| &era.head.header)
    }

    /// Returns an iterator over the decision kernel's steps (one per input) after the input number `after`, to the end
    /// of the logs.
    #[must_use]
    pub fn steps(&self, after: Seq) -> Steps {
        Steps::new(after, self.cursor(Log::Decisions, after), self.cursor(Log::Observations, after))
    }

    /// Returns, for each snapshot of the decision kernel's state, the number of the last input that the snapshot
    /// includes, in ascending order. A listed snapshot may be damaged.
    pub fn snapshots(&self) -> impl DoubleEndedIterator<Item = Seq> + '_ {
        self.snapshot_files().map(|s| s.first)
    }

    /// Reads the snapshot of the decision kernel's state after the input number `seq`; `None` if no file contains it.
    ///
    /// # Errors
    /// Returns the [`Problem`] that makes the snapshot unreadable.
    pub fn snapshot(&self, seq: Seq) -> Result<Option<Snapshot>, Problem> {
        let Some(segment) = self.snapshot_files().rfind(|s| s.first == seq) else { return Ok(None) };
        let file = segment.path.clone();
        let mut bytes = Vec::new();
        load(&file, &mut bytes)?;
        let (_, at) = FileHead::decode(&bytes).map_err(|no| no_head_problem(&file, no, bytes.len() as u64))?;
        match record::find(&bytes, at) {
            Found::Record(saved) if saved.kind == Kind::Snapshot => {
                form::read_named(saved.payload).map(Some).map_err(|what| Problem::Unknown { file, seq, what })
            }
            _ => Err(Problem::Torn { file, at: at as u64, bytes: (bytes.len() - at) as u64 }),
        }
    }

    /// Returns all supervisor starts of this life, oldest first. Each item contains the number of the start, the number
    /// of the last input in the state from which the start continued, and the log header of the start.
    pub fn starts(&self) -> impl Iterator<Item = (u64, Seq, &Header)> {
        self.eras.iter().map(|era| (era.head.start, era.head.after, &era.head.header))
    }

    /// Returns where later starts took over: the input after which, and the snapshot from which they rebuilt the state.
    pub(super) fn takeovers(&self) -> BTreeMap<Seq, Option<Seq>> {
        let in_force = self.eras.iter().skip(1).filter(|era| era.head.after <= era.upto);
        in_force.map(|era| (era.head.after, era.head.base)).collect()
    }

    fn era(&self, start: u64) -> Option<&Era> {
        self.eras.iter().find(|era| era.head.start == start)
    }

    fn snapshot_files(&self) -> impl DoubleEndedIterator<Item = &Segment> {
        let files = self.files[Log::Snapshots as usize].iter();
        files.filter(|s| self.era(s.start).is_some_and(|era| s.first <= era.upto))
    }

    fn cursor(&self, log: Log, after: Seq) -> Cursor {
        let files = &self.files[log as usize];
        let pieces = files.iter().enumerate().filter_map(|(i, segment)| {
            let era = self.era(segment.start)?;
            let next = files.get(i + 1).filter(|next| next.start == segment.start);
            let last = next.map_or(era.upto, |next| Seq(next.first.0.saturating_sub(1)).min(era.upto));
            let segment = segment.clone();
            (last > after).then_some(Piece { segment, after: era.head.after.max(after), upto: era.upto })
        });
        Cursor::new(pieces)
    }
}

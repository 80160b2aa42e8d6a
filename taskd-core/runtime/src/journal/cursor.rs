//! Reads the records of one log in order, across its files.
//!
//! Holds one file in memory at a time. A damaged file does not stop the reading: the skipped part is reported.

use super::config::FILE_BYTES_MAX;
use super::error::Problems;
use super::files::Segment;
use super::form;
use super::header::{FileHead, NoHead};
use super::record::{self, Found, Kind, Record};
use super::{Gap, Problem};
use crate::job::{JobTime, Seq};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Most gaps kept to explain missing records.
const GAPS_MAX: usize = 1000;

/// A file and the range of its records that count: after `after`, up to `upto`. Later records do not count if a later
/// start of the supervisor continued from an earlier state.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) segment: Segment,
    pub(super) after: Seq,
    pub(super) upto: Seq,
}

/// The next record of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) kind: Kind,
    pub(super) seq: Seq,
    pub(super) now: JobTime,
}

/// A position in a log.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    pieces: VecDeque<Piece>,
    piece: Option<Piece>,
    /// Content of the file; `at` is the offset up to which it has been read.
    bytes: Vec<u8>,
    at: usize,
    ahead: Option<(Ahead, Range<usize>)>,
    /// Number of the input of the last record that was passed.
    last: Seq,
    gaps: Vec<Gap>,
    problems: Problems,
}

impl Cursor {
    pub(super) fn new(pieces: impl IntoIterator<Item = Piece>) -> Cursor {
        Cursor { pieces: pieces.into_iter().collect(), ..Cursor::default() }
    }

    /// Returns the next record without passing it.
    pub(super) fn peek(&mut self) -> Option<Ahead> {
        while self.ahead.is_none() {
            if self.piece.is_none() && !self.next_file()? {
                continue;
            }
            self.look_further();
        }
        self.ahead.as_ref().map(|(ahead, _)| *ahead)
    }

    /// Returns the payload of the record that [`peek`](Cursor::peek) returned.
    pub(super) fn payload(&self) -> &[u8] {
        self.ahead.as_ref().and_then(|(_, range)| self.bytes.get(range.clone())).unwrap_or_default()
    }

    /// Passes the record that [`peek`](Cursor::peek) returned.
    pub(super) fn pass(&mut self) {
        if let Some((ahead, _)) = self.ahead.take() {
            self.last = ahead.seq;
        }
    }

    /// Returns the number of the last record that was passed; 0 before the first.
    pub(super) const fn last(&self) -> Seq {
        self.last
    }

    pub(super) fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    pub(super) const fn problems(&self) -> &Problems {
        &self.problems
    }

    /// Records that the next record contains an unknown value.
    pub(super) fn not_understood(&mut self, seq: Seq, what: String) {
        let file = self.path();
        self.problems.push(Problem::Unknown { file, seq, what });
    }

    fn path(&self) -> PathBuf {
        self.piece.as_ref().map(|p| p.segment.path.clone()).unwrap_or_default()
    }

    /// Opens the next file. Returns `None` if there is none, and false if the file cannot be used.
    fn next_file(&mut self) -> Option<bool> {
        let piece = self.pieces.pop_front()?;
        let path = &piece.segment.path;
        if let Err(problem) = load(path, &mut self.bytes) {
            self.problems.push(problem);
            return Some(false);
        }
        match FileHead::decode(&self.bytes) {
            Ok((head, at)) if head.start == piece.segment.start => {
                self.at = at;
                self.piece = Some(piece);
                Some(true)
            }
            Ok(_) => {
                self.problems.push(Problem::NotALog { file: path.clone() });
                Some(false)
            }
            Err(no_head) => {
                self.problems.push(no_head_problem(path, no_head, self.bytes.len() as u64));
                Some(false)
            }
        }
    }

    fn look_further(&mut self) {
        let Some(Piece { after, upto, .. }) = self.piece else { return };
        let at = self.at;
        let found = record::find(&self.bytes, at);
        self.at += found.len();
        match found {
            Found::End => self.piece = None,
            Found::Bad { bytes, at_end } => {
                let (file, at, bytes) = (self.path(), at as u64, bytes as u64);
                self.problems.push(match at_end {
                    true => Problem::Torn { file, at, bytes },
                    false => Problem::Damaged { file, at, bytes, after: self.last },
                });
            }
            Found::Record(Record { kind: Kind::Gap, payload, .. }) => {
                if let Ok(gap) = form::read_named(payload)
                    && self.gaps.len() < GAPS_MAX
                {
                    self.gaps.push(gap);
                }
            }
            Found::Record(Record { kind: Kind::Head, .. }) => {}
            Found::Record(Record { seq, .. }) if seq <= after || seq > upto => {}
            Found::Record(Record { seq, .. }) if seq <= self.last => {
                let file = self.path();
                self.problems.push(Problem::Disordered { file, seq });
            }
            Found::Record(Record { kind, seq, now, payload }) => {
                let end = self.at;
                self.ahead = Some((Ahead { kind, seq, now }, end - payload.len()..end));
            }
        }
    }
}

/// Reads the header of a file.
pub(super) fn read_head(path: &Path) -> Result<FileHead, Problem> {
    let mut bytes = Vec::new();
    let mut no_head = NoHead::Cut;
    for limit in [64 << 10, super::header::HEAD_BYTES_MAX as u64] {
        bytes.clear();
        let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
        read.map_err(|e| unreadable(path, &e))?;
        match FileHead::decode(&bytes) {
            Ok((head, _)) => return Ok(head),
            Err(NoHead::Cut) if bytes.len() as u64 == limit => {}
            Err(other) => {
                no_head = other;
                break;
            }
        }
    }
    Err(no_head_problem(path, no_head, bytes.len() as u64))
}

/// Reads a whole file into `bytes`, replacing the content.
pub(super) fn load(path: &Path, bytes: &mut Vec<u8>) -> Result<(), Problem> {
    bytes.clear();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(bytes));
    match read {
        Ok(read) if read as u64 > FILE_BYTES_MAX => {
            bytes.clear();
            Err(Problem::NotALog { file: path.to_owned() })
        }
        Ok(_) => Ok(()),
        Err(e) => Err(unreadable(path, &e)),
    }
}

pub(super) fn no_head_problem(path: &Path, no_head: NoHead, bytes: u64) -> Problem {
    let file = path.to_owned();
    match no_head {
        NoHead::NotALog => Problem::NotALog { file },
        NoHead::Version(version) => Problem::Version { file, version },
        NoHead::Cut => Problem::Torn { file, at: 0, bytes },
    }
}

fn unreadable(path: &Path, e: &io::Error) -> Problem {
    Problem::Unreadable { file: path.to_owned(), reason: e.to_string() }
}

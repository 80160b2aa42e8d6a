//! The supervisor's reports to the soak run: one JSON line for each relevant event, in a file that outlives the
//! process.
//!
//! It makes no decisions.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use taskd_core::detect::Fault;
use taskd_core::job::{Domain, Role};
use taskd_core::kernel::Event;
use taskd_examples::clock::monotonic;

/// Name of the file in a job's directory.
pub(crate) const FILE: &str = "notes.jsonl";

/// One process of a rank: the rank and its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Victim {
    pub(crate) rank: u32,
    pub(crate) incarnation: u64,
}

/// The subject of blame: a rank's process, a host's guard, or another one that `what` names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Blamed {
    pub(crate) victim: Option<Victim>,
    pub(crate) guard: bool,
    pub(crate) what: String,
}

/// An event of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    /// The supervisor has attached, or has started a guard, and continues the job.
    Up,
    /// A fault was found that is not a mere consequence.
    Found(Blamed),
    /// A decision on an incident, and the processes that it blames.
    Decided { blamed: Vec<Blamed>, reason: String },
    /// Another world is in force.
    Entered { generation: u64 },
    /// An incident is over.
    Closed { how: String },
    /// Any other event, as text.
    Told(String),
    /// The job is over.
    Over { ok: bool, reason: String },
}

/// A note, the process that wrote it and its time in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at_ns: u64,
    pub(crate) pid: u32,
    pub(crate) note: Note,
}

impl Note {
    /// Returns the note of an event.
    pub(crate) fn of(event: &Event) -> Note {
        match event {
            Event::Found { fault, .. } if fault.primary_suspect().is_cause() => Note::Found(blamed(fault)),
            Event::Decided(decision) => {
                let blamed = decision.incident.causes().into_iter().map(blamed).collect();
                Note::Decided { blamed, reason: decision.reason.clone() }
            }
            Event::Closed { how, .. } => Note::Closed { how: how.clone() },
            Event::Entered { generation, .. } => Note::Entered { generation: generation.0 },
            other => Note::Told(format!("{other:?}").chars().take(500).collect()),
        }
    }
}

fn blamed(fault: &Fault) -> Blamed {
    let suspect = fault.primary_suspect();
    let clues: Vec<&str> = fault.evidence.iter().map(|clue| clue.text.as_str()).collect();
    let what = format!("{} in {}: {}", suspect.class, suspect.domain, clues.join("; "));
    let victim = match (&suspect.domain, fault.incarnation()) {
        (Domain::Process(Role::Rank(rank)), Some(of)) => Some(Victim { rank: rank.0, incarnation: of.0.into() }),
        _ => None,
    };
    Blamed { victim, guard: matches!(suspect.domain, Domain::Guard(_)), what }
}

/// Appends notes to the file.
#[derive(Debug)]
pub(crate) struct Writer(fs::File);

impl Writer {
    pub(crate) fn open(dir: &Path) -> io::Result<Writer> {
        Ok(Writer(fs::File::options().create(true).append(true).open(dir.join(FILE))?))
    }

    /// Writes one line at once: a supervisor that is killed leaves only complete lines.
    pub(crate) fn add(&mut self, note: Note) -> io::Result<()> {
        let line = Line { at_ns: now_ns(), pid: std::process::id(), note };
        let text = serde_json::to_string(&line)? + "\n";
        self.0.write_all(text.as_bytes())
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
pub(crate) fn now_ns() -> u64 {
    u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a file of lines incrementally while other processes append to it. A missing file has no lines.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    offset: u64,
    part: Vec<u8>,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Tail {
        Tail { path, offset: 0, part: Vec::new() }
    }

    /// Returns the lines that have been completed since the last call.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        let mut new = Vec::new();
        let read = fs::File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.offset))?;
            file.read_to_end(&mut new)
        });
        self.offset += read.unwrap_or(0) as u64;
        self.part.extend_from_slice(&new);
        let Some(end) = self.part.iter().rposition(|b| *b == b'\n') else { return Vec::new() };
        let rest = self.part.split_off(end + 1);
        let whole = std::mem::replace(&mut self.part, rest);
        String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_returns_only_whole_lines_of_all_writers() {
        let dir = tempfile::tempdir().unwrap();
        let mut tail = Tail::new(dir.path().join(FILE));
        assert!(tail.lines().is_empty());
        Writer::open(dir.path()).unwrap().add(Note::Entered { generation: 4 }).unwrap();
        let mut again = Writer::open(dir.path()).unwrap();
        again.add(Note::Up).unwrap();
        again.0.write_all(b"half a").unwrap();
        let lines: Vec<Line> = tail.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let notes: Vec<Note> = lines.into_iter().map(|line| line.note).collect();
        assert_eq!(notes, [Note::Entered { generation: 4 }, Note::Up]);
        again.0.write_all(b" line\n").unwrap();
        assert_eq!(tail.lines(), ["half a line"]);
    }
}

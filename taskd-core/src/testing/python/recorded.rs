//! A rank whose recorder the test reads.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;

use super::start::{finished, helper_in, page, start};
use crate::launch::python::{PythonFile, write_helper};
use crate::trace::recorder::{Detail, Event, Kind, NameId, RecorderConfig, Recording, Switches, Taken};

/// The recorder's library, as a launcher unpacks it.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| crate::worker::library::unpack().unwrap());

/// As many as a thread of these programs ever makes.
const RECORDS: usize = 16_384;

/// A page with a recorder's memory behind it, and the process that is named in it: a rank whose recorder the test reads.
#[derive(Debug)]
pub struct Recorded {
    memory: File,
    helper: TempDir,
}

/// What a process has recorded.
#[derive(Debug)]
pub struct Seen {
    /// Every record, in order.
    pub records: Vec<Record>,
    /// All names, the reasons of exceptions that were taken back included.
    pub names: Vec<String>,
    /// Why kinds are not recorded at the end.
    pub exceptions: Vec<(Kind, String)>,
    /// The kinds that have a hook.
    pub hooked: Vec<Kind>,
}

/// A record, with its name as text.
#[derive(Debug)]
pub struct Record {
    /// Of what.
    pub kind: Kind,
    /// What happened.
    pub event: Event,
    /// Its name; empty where it has none.
    pub name: String,
    /// What else is known.
    pub detail: Detail,
}

impl Recorded {
    /// One with the helper of a framework with these files.
    ///
    /// # Panics
    /// Where files cannot be written.
    #[must_use]
    pub fn new(framework: &[PythonFile]) -> Recorded {
        let helper = tempfile::tempdir().unwrap();
        write_helper(&helper_in(&helper), framework).unwrap();
        let config = RecorderConfig { records_per_thread: RECORDS, ..RecorderConfig::default() };
        let memory = config.memory().unwrap();
        memory.write_all_at(&page(), 0).unwrap();
        Recorded { memory, helper }
    }

    /// The directory with the helper.
    #[must_use]
    pub fn helper(&self) -> PathBuf {
        helper_in(&self.helper)
    }

    /// A program in a file as the rank, its output captured.
    #[must_use]
    pub fn command(&self, python: &Path, program: &str, arguments: &[&str]) -> Command {
        self.start(&[&[python.to_str().unwrap(), program], arguments].concat())
    }

    /// `argv` as the rank.
    #[must_use]
    pub fn start(&self, argv: &[&str]) -> Command {
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd());
        let mut command = start(memory.as_ref(), &self.helper(), argv);
        command.env("TASKD_TRACE_RECORDS", RECORDS.to_string());
        command.env("TASKD_LIB", &*LIBRARY).env("OMP_NUM_THREADS", "1");
        command
    }

    /// Runs a program to its end, which has to be a good one.
    ///
    /// # Panics
    /// If it does not.
    pub fn run(&self, python: &Path, program: &str, arguments: &[&str]) -> (String, String) {
        finished(self.command(python, program, arguments).output().unwrap())
    }

    /// Whether the process has written its heartbeat.
    #[must_use]
    pub fn has_beaten(&self) -> bool {
        let mut beat = [0; 8];
        self.memory.read_exact_at(&mut beat, 64).unwrap();
        beat != [0; 8]
    }

    /// Whether a recorder was ever opened in the memory.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        Recording::look(self.memory.try_clone().unwrap()).is_err()
    }

    /// Chooses what is recorded from now on.
    ///
    /// # Panics
    /// Where there is no recorder.
    pub fn switch(&self, kinds: Switches) {
        Recording::open(self.memory.try_clone().unwrap()).unwrap().switch(kinds);
    }

    /// Everything that was recorded so far.
    ///
    /// # Panics
    /// If a record was lost.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let mut recording = Recording::open(self.memory.try_clone().unwrap()).unwrap();
        let mut taken = Vec::new();
        recording.take(|record| taken.push(record)).unwrap();
        assert_eq!(recording.losses().records(), 0);
        let name = |Taken { record, .. }: &Taken| recording.name(record.name).unwrap_or_default().to_owned();
        let of = |taken: &Taken| {
            let record = taken.record;
            Record { kind: record.kind, event: record.event, name: name(taken), detail: record.detail }
        };
        let records = taken.iter().map(of).collect();
        let names = (1..).map_while(|id| recording.name(NameId(id)).map(str::to_owned)).collect();
        let kinds = (0..64).filter_map(Kind::of_number);
        let hooked = recording.hooked();
        Seen {
            records,
            names,
            exceptions: recording.exceptions(),
            hooked: kinds.filter(|kind| hooked.has(*kind)).collect(),
        }
    }
}

impl Seen {
    /// The names of a kind's ranges that have both a beginning and an end, in the order of their beginnings.
    #[must_use]
    pub fn ranges(&self, kind: Kind) -> Vec<&str> {
        let of_kind = || self.records.iter().filter(|record| record.kind == kind);
        let ends = |range| of_kind().filter(|record| record.event == Event::End { range }).count();
        let begun = of_kind().filter_map(|record| match record.event {
            Event::Begin { range } if ends(range) == 1 => Some(record.name.as_str()),
            _ => None,
        });
        begun.collect()
    }

    /// The numbers of steps that have begun and ended, as their ends say.
    #[must_use]
    pub fn steps(&self) -> Vec<u64> {
        let of = |record: &Record| match (record.event, record.detail) {
            (Event::End { .. }, Detail::Step { number, cpu_nanos }) if cpu_nanos > 0 => Some(number),
            _ => None,
        };
        self.records.iter().filter_map(of).collect()
    }
}

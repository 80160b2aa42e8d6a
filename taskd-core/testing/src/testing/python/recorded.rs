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
use crate::trace::recorder::{Detail, DrainedRecord, Event, Kind, NameId, RecorderConfig, RecorderReader, Switches};

/// The recorder's library, unpacked as a launcher unpacks it.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| crate::worker::library::unpack().unwrap());

/// Capacity of a ring, larger than the number of records of a thread in these programs.
const RECORDS: usize = 16_384;

/// A rank whose trace records the test reads: a lifeline page, the recorder's memory behind the page, and the Python
/// helper of the process that the page names.
#[derive(Debug)]
pub struct Recorded {
    memory: File,
    helper: TempDir,
}

/// Everything that the recorder of a process contains.
#[derive(Debug)]
pub struct Seen {
    /// All trace records of the process, in order.
    pub records: Vec<Record>,
    /// All names that the process has registered, including the reasons of exceptions that were withdrawn.
    pub names: Vec<String>,
    /// Kinds that are not recorded at the end although they are on, each with the reason.
    pub exceptions: Vec<(Kind, String)>,
    /// Kinds of records for which the process has a hook; no other kind is ever recorded.
    pub hooked: Vec<Kind>,
}

/// A trace record, with its name as text.
#[derive(Debug)]
pub struct Record {
    /// The kind of the record, such as a training step.
    pub kind: Kind,
    /// The recorded event, for example the begin or the end of a range.
    pub event: Event,
    /// The name of the record; empty if the record has none.
    pub name: String,
    /// Further details of the record, such as the number of a step.
    pub detail: Detail,
}

impl Recorded {
    /// Creates a rank whose Python helper contains these files of a framework.
    ///
    /// # Panics
    /// Panics if files cannot be written.
    #[must_use]
    pub fn new(framework: &[PythonFile]) -> Recorded {
        let helper = tempfile::tempdir().unwrap();
        write_helper(&helper_in(&helper), framework).unwrap();
        let config = RecorderConfig { records_per_thread: RECORDS, ..RecorderConfig::default() };
        let memory = config.memory().unwrap();
        memory.write_all_at(&page(), 0).unwrap();
        Recorded { memory, helper }
    }

    /// Returns the directory with the Python helper, which is the rank's `PYTHONPATH`.
    #[must_use]
    pub fn helper(&self) -> PathBuf {
        helper_in(&self.helper)
    }

    /// Returns a command that runs the Python program in a file as the rank, with its output captured.
    #[must_use]
    pub fn command(&self, python: &Path, program: &str, arguments: &[&str]) -> Command {
        self.start(&[&[python.to_str().unwrap(), program], arguments].concat())
    }

    /// Returns a command that runs `argv` as the rank.
    #[must_use]
    pub fn start(&self, argv: &[&str]) -> Command {
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd());
        let mut command = start(memory.as_ref(), &self.helper(), argv);
        command.env("TASKD_TRACE_RECORDS", RECORDS.to_string());
        command.env("TASKD_LIB", &*LIBRARY).env("OMP_NUM_THREADS", "1");
        command
    }

    /// Runs the Python program in a file as the rank, and returns its stdout and stderr.
    ///
    /// # Panics
    /// Panics if the program does not end successfully.
    pub fn run(&self, python: &Path, program: &str, arguments: &[&str]) -> (String, String) {
        finished(self.command(python, program, arguments).output().unwrap())
    }

    /// Returns true if the process has written a heartbeat to its lifeline page.
    #[must_use]
    pub fn has_beaten(&self) -> bool {
        let mut beat = [0; 8];
        self.memory.read_exact_at(&mut beat, 64).unwrap();
        beat != [0; 8]
    }

    /// Returns true if no recorder was ever opened in the rank's memory.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        RecorderReader::look(self.memory.try_clone().unwrap()).is_err()
    }

    /// Sets the kinds of trace records that the rank records from now on.
    ///
    /// # Panics
    /// Panics if the process has not opened a recorder.
    pub fn switch(&self, kinds: Switches) {
        RecorderReader::open(self.memory.try_clone().unwrap()).unwrap().switch(kinds);
    }

    /// Returns everything that was recorded so far.
    ///
    /// # Panics
    /// Panics if the recorder has lost a record.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let mut recording = RecorderReader::open(self.memory.try_clone().unwrap()).unwrap();
        let mut taken = Vec::new();
        recording.take(|record| taken.push(record)).unwrap();
        assert_eq!(recording.losses().records(), 0);
        let name =
            |DrainedRecord { record, .. }: &DrainedRecord| recording.name(record.name).unwrap_or_default().to_owned();
        let of = |taken: &DrainedRecord| {
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
    /// Returns the names of a kind's ranges that have both a beginning and an end, in the order of their beginnings.
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

    /// Returns the numbers of the steps that have begun and ended, taken from their end records.
    #[must_use]
    pub fn steps(&self) -> Vec<u64> {
        let of = |record: &Record| match (record.event, record.detail) {
            (Event::End { .. }, Detail::Step { number, cpu_nanos }) if cpu_nanos > 0 => Some(number),
            _ => None,
        };
        self.records.iter().filter_map(of).collect()
    }
}

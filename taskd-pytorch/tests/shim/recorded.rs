//! A rank whose recorder the test reads.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::LazyLock;

use taskd_core::trace::recorder::{Detail, Event, Kind, NameId, RecorderConfig, Recording, Switches, Taken};

use super::start::{page, start, text};

/// The recorder's library, as a launcher unpacks it.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| taskd_core::worker::library::unpack().unwrap());

/// As many as a thread of these programs ever makes.
const RECORDS: usize = 16_384;

/// A page with a recorder's memory behind it, and the process that is named in it.
#[derive(Debug)]
pub(crate) struct Recorded {
    memory: File,
}

/// What a process has recorded.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) records: Vec<Record>,
    /// All names, the reasons of exceptions that were taken back included.
    pub(crate) names: Vec<String>,
    /// Why kinds are not recorded at the end.
    pub(crate) exceptions: Vec<(Kind, String)>,
    pub(crate) hooked: Vec<Kind>,
}

#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) event: Event,
    pub(crate) name: String,
    pub(crate) detail: Detail,
}

impl Recorded {
    pub(crate) fn new() -> Recorded {
        let config = RecorderConfig { records_per_thread: RECORDS, ..RecorderConfig::default() };
        let memory = config.memory().unwrap();
        memory.write_all_at(&page(), 0).unwrap();
        Recorded { memory }
    }

    /// A program of this directory as the rank, its output captured.
    pub(crate) fn command(&self, python: &Path, name: &str, arguments: &[&str]) -> Command {
        self.start(&[&[python.to_str().unwrap(), &program(name)], arguments].concat())
    }

    /// `argv` as the rank.
    pub(crate) fn start(&self, argv: &[&str]) -> Command {
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd());
        let mut command = start(memory.as_ref(), argv);
        command.env("TASKD_TRACE_RECORDS", RECORDS.to_string());
        command.env("TASKD_LIB", &*LIBRARY).env("OMP_NUM_THREADS", "1");
        command
    }

    /// Runs a program to its end, which has to be a good one.
    pub(crate) fn run(&self, python: &Path, program: &str, arguments: &[&str]) -> (String, String) {
        finished(self.command(python, program, arguments).output().unwrap())
    }

    /// Whether the process has written its heartbeat.
    pub(crate) fn has_beaten(&self) -> bool {
        let mut beat = [0; 8];
        self.memory.read_exact_at(&mut beat, 64).unwrap();
        beat != [0; 8]
    }

    /// Whether a recorder was ever opened in the memory.
    pub(crate) fn is_untouched(&self) -> bool {
        Recording::look(self.memory.try_clone().unwrap()).is_err()
    }

    /// Chooses what is recorded from now on.
    pub(crate) fn switch(&self, kinds: Switches) {
        Recording::open(self.memory.try_clone().unwrap()).unwrap().switch(kinds);
    }

    /// Everything that was recorded so far.
    pub(crate) fn seen(&self) -> Seen {
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

/// The path of a program of this directory.
pub(crate) fn program(name: &str) -> String {
    format!("{}/tests/shim/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The output of a program that has ended well.
pub(crate) fn finished(out: Output) -> (String, String) {
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    (text(&out.stdout), text(&out.stderr))
}

/// As [`finished`], of a program that was started.
pub(crate) fn waited(child: Child) -> (String, String) {
    finished(child.wait_with_output().unwrap())
}

impl Seen {
    /// The names of a kind's ranges that have both a beginning and an end, in the order of their beginnings.
    pub(crate) fn ranges(&self, kind: Kind) -> Vec<&str> {
        let of_kind = || self.records.iter().filter(|record| record.kind == kind);
        let ends = |range| of_kind().filter(|record| record.event == Event::End { range }).count();
        let begun = of_kind().filter_map(|record| match record.event {
            Event::Begin { range } if ends(range) == 1 => Some(record.name.as_str()),
            _ => None,
        });
        begun.collect()
    }

    /// The numbers of steps that have begun and ended, as their ends say.
    pub(crate) fn steps(&self) -> Vec<u64> {
        let of = |record: &Record| match (record.event, record.detail) {
            (Event::End { .. }, Detail::Step { number, cpu_nanos }) if cpu_nanos > 0 => Some(number),
            _ => None,
        };
        self.records.iter().filter_map(of).collect()
    }
}

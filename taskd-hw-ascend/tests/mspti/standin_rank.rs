//! A rank: a Python program in a process that has memory to record into, with the stand-in and the probe preloaded as the launch
//! profile says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use taskd_core::job::{Incarnation, Rank, WorkerSpec};
use taskd_core::trace::recorder::{Event, Kind, RecorderConfig, RecorderReader, Switches};
use taskd_core::trace::{Drain, NameTable, Origin, TimedRecord};
use taskd_core::worker::library;
use taskd_hw_ascend::mspti::MsptiProfile;

/// Everything that is waited for comes in far less, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Stands for the guard's child between fork and exec: names itself in the page, then becomes the program.
const BEFORE_EXEC: &str = r"
import os, struct, sys
start = open('/proc/self/stat', 'rb').read().rsplit(b')', 1)[1].split()[19]
with open(os.environ['TASKD_LIFELINE'], 'r+b') as page:
    page.seek(16)
    page.write(struct.pack('=I', os.getpid()))
    page.seek(24)
    page.write(struct.pack('=Q', int(start)))
os.environ.update(name.split('=', 1) for name in os.environ.pop('AFTER_EXEC').split('\n') if name)
os.execvp(sys.argv[1], sys.argv[1:])
";

/// Beginning of every rank's program: the stand-in's functions with their types, and a wait for the test's signal to
/// continue.
const PRELUDE: &str = r#"
import ctypes, os, sys, time
S = ctypes.CDLL(os.environ["TASKD_MSPTI_LIB"])
u32, u64, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p
def function(name, result, *arguments):
    f = getattr(S, "standin_" + name)
    f.restype, f.argtypes = result, arguments
    return f
start, start_on = function("start", u64, text, text), function("start_on", u64, text, text, u32, u32)
end, end_on = function("end", None, u64), function("end_on", None, u64, u32, u32)
mark, mark_on = function("mark", None, text, text), function("mark_on", None, text, text, u32, u32)
kernel = function("kernel", None, text, u32, u32, u64, u64)
api = function("api", None, text, u64, u64)
hccl = function("hccl", None, text, text, u32, u32, u64, u64)
communication = function("communication", None, text, text, ctypes.c_int, u64, u32, u32, u64)
copy = function("copy", None, ctypes.c_int, u64, u32, u32, u64, u64)
unknown = function("unknown", None)
ranges = function("ranges", None, text, text, u64, u64)
dropped, recorded = function("dropped", u64), function("recorded", u64)
from_callbacks = function("calls_from_callbacks", u64)
is_enabled, is_subscribed = function("is_enabled", ctypes.c_int, ctypes.c_int), function("is_subscribed", ctypes.c_int)
domain_is_on = function("domain_is_on", ctypes.c_int, text)
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()
def wait():
    return sys.stdin.readline().strip()
def until(what):
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)
"#;

fn compiled(name: &str, defines: &[&str]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("standin-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let library = dir.join("libmspti.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mspti/standin.c");
    let mut cc = Command::new("cc"); // what cargo links with
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared", "-pthread", "-o"]);
    assert!(cc.arg(&library).args(defines).arg(source).status().unwrap().success());
    library
}

/// The stand-in, compiled.
pub(crate) static STAND_IN: LazyLock<PathBuf> = LazyLock::new(|| compiled("whole", &[]));
/// One of an older version, without the functions that are newer.
pub(crate) static OLDER: LazyLock<PathBuf> = LazyLock::new(|| compiled("older", &["-DWITHOUT_OPTIONAL"]));

/// A process, and what it records.
pub(crate) struct StandInRank {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    memory: File,
    drain: Option<Drain>,
    /// Everything that was taken so far.
    pub(crate) records: Vec<TimedRecord>,
    pub(crate) names: NameTable,
    pub(crate) lost: u64,
}

impl StandInRank {
    /// With everything switched on.
    pub(crate) fn start(program: &str) -> StandInRank {
        StandInRank::with(program, "all", &STAND_IN, &[])
    }

    /// With these kinds on, this library, and more environment; an empty value takes a variable away.
    pub(crate) fn with(program: &str, kinds: &str, mspti: &Path, env: &[(&str, &str)]) -> StandInRank {
        let config = RecorderConfig { records_per_thread: 1 << 14, ..RecorderConfig::default() };
        let memory = config.memory().unwrap();
        let mut page = vec![0; 4096];
        page[..8].copy_from_slice(b"TASKDPG1");
        page[8..12].copy_from_slice(&1u32.to_ne_bytes());
        page[12..16].copy_from_slice(&4096u32.to_ne_bytes());
        memory.write_all_at(&page, 0).unwrap();
        let mut spec = WorkerSpec::new(["python3"]);
        if let Ok(profile) = MsptiProfile::of(mspti) {
            profile.complete(&mut spec, |_| None);
        }
        let mut after: BTreeMap<String, String> = spec.env;
        after.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let after: Vec<String> = after.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut command = Command::new("python3");
        command.args(["-I", "-S", "-c", BEFORE_EXEC, "python3", "-u", "-c", &format!("{PRELUDE}{program}")]);
        command.env("TASKD_LIFELINE", format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()));
        command.env("TASKD_LIB", library::unpack().unwrap()).env("AFTER_EXEC", after.join("\n"));
        command.env("TASKD_TRACE", kinds).env("TASKD_TRACE_RECORDS", (1 << 14).to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (records, names) = (Vec::new(), NameTable::default());
        StandInRank { child, stdin, stdout, memory, drain: None, records, names, lost: 0 }
    }

    /// The next line that it prints.
    pub(crate) fn said(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Lets it go on.
    pub(crate) fn go_on(&mut self) {
        self.stdin.write_all(b"\n").unwrap();
    }

    pub(crate) fn recording(&self) -> RecorderReader {
        RecorderReader::look(self.memory.try_clone().unwrap()).unwrap()
    }

    pub(crate) fn switch(&self, kinds: Switches) {
        RecorderReader::open(self.memory.try_clone().unwrap()).unwrap().switch(kinds);
    }

    /// Takes what is there.
    pub(crate) fn take(&mut self) {
        let drain = self.drain.get_or_insert_with(|| {
            let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: self.child.id() };
            Drain::new(RecorderReader::open(self.memory.try_clone().unwrap()).unwrap(), origin).unwrap()
        });
        loop {
            let drained = drain.take().unwrap();
            drain.commit().unwrap();
            self.records.extend(drained.batch.records);
            self.names = (*drained.batch.names).clone();
            self.lost += drained.batch.lost;
            if drained.settled.is_some() {
                return;
            }
        }
    }

    /// Takes until something is there.
    pub(crate) fn take_until(&mut self, what: &str, is_there: impl Fn(&StandInRank) -> bool) {
        let begun = Instant::now();
        loop {
            self.take();
            if is_there(self) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: not among {:?}", self.told());
            std::thread::yield_now();
        }
    }

    /// Waits for its end, and takes what is left.
    pub(crate) fn end(&mut self) {
        let begun = Instant::now();
        let status = loop {
            if self.drain.is_some() {
                self.take();
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "it ends");
            std::thread::yield_now();
        };
        assert!(status.success(), "{status}");
        self.take();
    }

    /// The last value of a figure of the probe's.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.records.iter().rev().find_map(|record| match record.event {
            Event::Counter { value } if self.names.get(record.name) == name => Some(value),
            _ => None,
        })
    }

    /// Records in words, without figures.
    pub(crate) fn told(&self) -> Vec<String> {
        let shown = self.records.iter().filter(|record| !matches!(record.event, Event::Counter { .. }));
        shown.map(|record| self.in_words(record)).collect()
    }

    fn in_words(&self, record: &TimedRecord) -> String {
        use taskd_core::trace::recorder::Detail;
        let event = match record.event {
            Event::Span { .. } => "span",
            Event::Instant => "mark",
            _ => "other",
        };
        let thread = if record.thread == 0 { "" } else { " of a thread" };
        let detail = match record.detail {
            Detail::None => String::new(),
            Detail::Step { number, .. } => format!(" step {number}"),
            Detail::Communication(c) => format!(
                " {} of {} {} in {} bytes in {:?} peer {:?}",
                c.op.name(),
                c.elements,
                c.data_type.name(),
                c.bytes,
                self.names.get(c.group),
                c.peer
            ),
            Detail::Device(work) => self.place(work),
            Detail::DeviceCommunication(c) => format!(
                " {} of {} in {:?}{}",
                c.op.name(),
                c.data_type.name(),
                self.names.get(c.group),
                self.place(c.work)
            ),
        };
        format!("{event} {:?} {:?}{detail}{thread}", record.kind, self.names.get(record.name))
    }

    fn place(&self, work: taskd_core::trace::recorder::DeviceWork) -> String {
        let number = |number: u32| if number == u32::MAX { "-".to_owned() } else { number.to_string() };
        let (device, stream) = (number(work.device), number(work.stream));
        format!(" on {device}/{stream} for {} with {} bytes", work.correlation, work.bytes)
    }

    pub(crate) fn exceptions(&self) -> Vec<(Kind, String)> {
        self.recording().exceptions()
    }
}

impl Drop for StandInRank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

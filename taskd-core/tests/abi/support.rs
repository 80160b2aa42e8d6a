//! A rank that loads the library as programs in C and Python do, and what it has recorded.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{self, Incarnation, Member, ProcId, Termination, WorkerSpec, World};
use taskd_core::launch::*;
use taskd_core::trace::recorder::*;

/// Everything that is waited for comes in far less, or the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What every rank here begins with: the library, its functions with their types, and a way to report how far it is.
pub(crate) const PRELUDE: &str = r#"
import ctypes, os, signal, sys, threading, time
T = ctypes.CDLL(os.environ["TASKD_LIB"])
u32, u64 = ctypes.c_uint32, ctypes.c_uint64
class Communication(ctypes.Structure):
    _fields_ = [(n, u32) for n in ("op", "data_type", "group", "peer")] + [(n, u64) for n in ("elements", "bytes", "sequence")]
T.taskd_why.restype = ctypes.c_char_p
T.taskd_switches.restype = ctypes.POINTER(u64)
T.taskd_name.argtypes, T.taskd_name.restype = [ctypes.c_char_p, ctypes.c_size_t], u32
for name in ("begin", "begin_step"):
    f = getattr(T, "taskd_" + name)
    f.argtypes, f.restype = [u64], u64
for name in ("end", "mark"):
    f = getattr(T, "taskd_" + name)
    f.argtypes, f.restype = [u64], None
T.taskd_begin_communication.argtypes, T.taskd_begin_communication.restype = [u32, ctypes.c_void_p], u64
T.taskd_counter.argtypes = [u64, ctypes.c_double]
T.taskd_except.argtypes = [u32, ctypes.c_char_p, ctypes.c_size_t]
STEP, DATALOADER, SAVE, FORWARD, COMMUNICATION, USER = 1, 2, 3, 4, 5, 16
def named(kind, text):
    return kind | T.taskd_name(text, len(text)) << 32
def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()
say("memory", os.environ["TASKD_LIFELINE"])
"#;

/// For what no event reports.
pub(crate) async fn eventually<T>(what: impl Fn() -> String, mut look: impl FnMut() -> Option<T>) -> T {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < until, "not within {PATIENCE:?}: {}", what());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A rank that runs a Python program.
pub(crate) struct Rank {
    dir: tempfile::TempDir,
    launcher: LocalLauncher,
    proc: ProcId,
}

impl Rank {
    /// Starts a program that begins with [`PRELUDE`].
    pub(crate) async fn python(program: &str, env: &[(&str, &str)]) -> Rank {
        Rank::start(&["python3", "-c", &format!("{PRELUDE}{program}")], env).await
    }

    /// Starts any program.
    pub(crate) async fn start(argv: &[&str], env: &[(&str, &str)]) -> Rank {
        let dir = tempfile::tempdir().unwrap();
        let guard = GuardProgram::Path(env!("CARGO_BIN_EXE_taskd-guard").into());
        let launcher = LocalLauncher::builder(dir.path()).guard(guard).build().await.unwrap();
        let spec = WorkerSpec::new(argv.iter().copied());
        let spec = env.iter().fold(spec, |spec, (name, value)| spec.with_env(*name, *value));
        let member = Member { incarnation: Incarnation(1), node: None, device: None };
        let world = Arc::new(World::first(BTreeMap::from([(job::Rank(0), member)])));
        let proc = ProcId::rank(0, 1);
        let order = StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(spec));
        launcher.start(&StartBatch::new(world, vec![order])).await.unwrap();
        Rank { dir, launcher, proc }
    }

    /// A line of what it has printed that begins with this word, without it; waits for it.
    pub(crate) async fn printed(&self, word: &str) -> String {
        let path = self.dir.path().join("procs/rank-0.1");
        let read = |log| std::fs::read_to_string(path.join(log)).unwrap_or_default();
        let look = || {
            let out = read("stdout.log");
            let line = out.split_inclusive('\n').find_map(|line| line.strip_prefix(word)?.strip_suffix('\n'));
            line.map(|line| line.trim().to_owned())
        };
        let shown = || format!("it prints {word:?}, and not only:\n{}{}", read("stdout.log"), read("stderr.log"));
        eventually(shown, look).await
    }

    /// The memory that the guard holds for it.
    pub(crate) async fn memory(&self) -> File {
        let path = self.printed("memory").await;
        File::options().read(true).write(true).open(Path::new(&path)).unwrap()
    }

    /// What it records.
    pub(crate) async fn recording(&self) -> RecorderReader {
        RecorderReader::open(self.memory().await).unwrap()
    }

    pub(crate) async fn pid(&self) -> i32 {
        let listing = self.launcher.list().await.unwrap();
        listing.procs.iter().find(|status| status.proc == self.proc).and_then(|status| status.pid).unwrap() as i32
    }

    /// Sends it a signal.
    pub(crate) async fn send(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_raw(self.pid().await).unwrap(), signal).unwrap();
    }

    /// Waits for its exit.
    pub(crate) async fn exit(&self) -> Termination {
        let waiting = async {
            let listing = self.launcher.list().await.unwrap();
            let mut from = listing.revision;
            let mut changes: Vec<Change> = listing.procs.into_iter().map(Change::Proc).collect();
            loop {
                for change in changes {
                    if let Change::Proc(ProcStatus { phase: Phase::Exited(exit), .. }) = change {
                        return exit.how;
                    }
                }
                (changes, from) = self.launcher.watch(from).await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap()
    }

    /// Ends it and its guard.
    pub(crate) async fn end(self) {
        self.launcher.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// What was recorded since the last time, in words, as `begin 0 Forward "layer 1"`; ranges are counted in the order in
/// which they are met. Nothing is committed: another recording gets the same.
pub(crate) fn records_of(recording: &mut RecorderReader, ranges: &mut Vec<u64>) -> Vec<String> {
    let mut records = Vec::new();
    recording.take(|one| records.push(one.record)).unwrap();
    records.sort_by_key(|record| record.ticks);
    records.iter().map(|record| in_words(recording, record, ranges)).collect()
}

fn in_words(recording: &RecorderReader, record: &Record, ranges: &mut Vec<u64>) -> String {
    let mut number = |range: u64| {
        ranges.iter().position(|known| *known == range).unwrap_or_else(|| {
            ranges.push(range);
            ranges.len() - 1
        })
    };
    let event = match record.event {
        Event::Begin { range } => format!("begin {}", number(range)),
        Event::End { range } => format!("end {}", number(range)),
        Event::Instant => "mark".to_owned(),
        Event::Counter { value } => format!("counter {value}"),
        Event::Span { nanos } => format!("span of {nanos} ns"),
    };
    let name = recording.name(record.name).map(|name| format!(" {name:?}")).unwrap_or_default();
    let detail = match record.detail {
        Detail::None => String::new(),
        Detail::Step { number, cpu_nanos: 0 } => format!(" number {number}"),
        Detail::Step { number, .. } => format!(" number {number} with its time"),
        Detail::Communication(c) => {
            let group = recording.name(c.group).unwrap_or("none");
            format!(
                " {:?} of {} {:?} in {} bytes in {group}, peer {:?}, {:?}",
                c.op, c.elements, c.data_type, c.bytes, c.peer, c.sequence
            )
        }
        Detail::Device(work) => format!(" {work:?}"),
        Detail::DeviceCommunication(c) => {
            let group = recording.name(c.group).unwrap_or("none");
            format!(" {:?} {:?} in {group}, peer {:?}, {:?}", c.op, c.data_type, c.peer, c.work)
        }
    };
    let by = match record.by {
        RecordedBy::Itself => String::new(),
        RecordedBy::Import { thread } => format!(" of thread {thread}"),
    };
    format!("{event} {:?}{name}{detail}{by}", record.kind)
}

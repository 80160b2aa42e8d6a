//! A rank that "uses CUDA", and what is known of it afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use taskd_core::job::{
    Domain, Incarnation, Member, Name, ProcId, Rank as Number, Role, Termination, WorkerSpec, World,
};
use taskd_core::launch::*;
use taskd_core::trace::recorder::{Detail, Event, Kind, NameId};
use taskd_core::trace::switches::TraceControl;
use taskd_core::trace::{Fact, NameTable, Origin, RecordBatch, Signal, TimedRecord, TraceSink, TraceSource};
use taskd_hw_cuda::cupti::{self, CuptiProfile, CuptiSink};
use tokio::task::JoinHandle;

/// Everything that is waited for comes in far less, or the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Rank {
    dir: tempfile::TempDir,
    launcher: LocalLauncher,
    proc: ProcId,
    batches: Arc<Mutex<Vec<Arc<RecordBatch>>>>,
    facts: Arc<Mutex<Vec<Fact>>>,
    readers: [JoinHandle<()>; 2],
    profile_is_stand_in: bool,
}

/// What is known of a rank that has ended.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) records: Vec<(String, TimedRecord)>,
    pub(crate) facts: Vec<Fact>,
    pub(crate) profile_is_stand_in: bool,
    output: String,
}

impl Rank {
    /// Starts the program with the probe.
    pub(crate) async fn start(arguments: &[&str], env: &[(&str, &str)], control: Option<TraceControl>) -> Rank {
        let dir = tempfile::tempdir().unwrap();
        let launcher = LocalLauncher::builder(dir.path()).build().await.unwrap();
        let profile = CuptiProfile::new().with_library(library());
        let argv = [trainer().to_str().unwrap()].into_iter().chain(arguments.iter().copied());
        let spec = profile.apply(WorkerSpec::new(argv)).unwrap();
        let spec = env.iter().fold(spec, |spec, (name, value)| spec.with_env(*name, *value));
        let member = Member { incarnation: Incarnation(1), node: None, device: None };
        let world = Arc::new(World::first(BTreeMap::from([(Number(0), member)])));
        let proc = ProcId::rank(0, 1);
        let order = StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(spec));
        let (batches, facts) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (sink, source) = cupti::reader();
        let kept = Arc::clone(&batches);
        let keep = move |batch: &Arc<RecordBatch>| kept.lock().unwrap().push(Arc::clone(batch));
        let mut recordings = launcher.recordings().every(Duration::from_millis(10)).sink(sink).sink(keep);
        if let Some(control) = control {
            recordings = recordings.control(control);
        }
        let readers = [read(recordings, None), read(source, Some(Arc::clone(&facts)))];
        launcher.start(&StartBatch::new(world, vec![order])).await.unwrap();
        Rank { dir, launcher, proc, batches, facts, readers, profile_is_stand_in: profile.is_stand_in() }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("procs/rank-0.1/stdout.log")).unwrap_or_default()
    }

    /// Waits until it has printed a line that begins with this word.
    pub(crate) async fn said(&self, word: &str) {
        let waiting = async {
            while !self.output().lines().any(|line| line.starts_with(word)) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("it says {}", self.output()));
    }

    /// Waits for its exit.
    pub(crate) async fn exit(&self) -> Termination {
        let waiting = async {
            let listing = self.launcher.list().await.unwrap();
            let mut from = listing.revision;
            let mut changes: Vec<Change> = listing.procs.into_iter().map(Change::Proc).collect();
            loop {
                for change in changes {
                    if let Change::Proc(ProcStatus { proc, phase: Phase::Exited(exit), .. }) = change
                        && proc == self.proc
                    {
                        return exit.how;
                    }
                }
                (changes, from) = self.launcher.watch(from).await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap()
    }

    /// Ends it and its guard; what it has said and recorded.
    pub(crate) async fn end(self) -> Told {
        // The memory is read until nothing new comes.
        let mut before = usize::MAX;
        loop {
            let now = self.batches.lock().unwrap().len() + self.facts.lock().unwrap().len();
            if now == before {
                break;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let output = self.output();
        self.launcher.shutdown(Duration::ZERO).await.unwrap();
        self.readers.iter().for_each(JoinHandle::abort);
        let batches = std::mem::take(&mut *self.batches.lock().unwrap());
        let named = |batch: &Arc<RecordBatch>| {
            let records = batch.records.iter().map(|record| (batch.names.get(record.name).to_owned(), *record));
            records.collect::<Vec<_>>()
        };
        let records = batches.iter().flat_map(named).collect();
        let facts = std::mem::take(&mut *self.facts.lock().unwrap());
        Told { records, facts, output, profile_is_stand_in: self.profile_is_stand_in }
    }
}

impl Told {
    /// What it has printed behind this word.
    pub(crate) fn said(&self, word: &str) -> &str {
        let line = self.output.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("it does not say {word:?}: {}", self.output))
    }

    /// The latest figure of this name.
    pub(crate) fn figure(&self, wanted: &str) -> Option<f64> {
        self.facts.iter().rev().find_map(|fact| match &fact.signal {
            Signal::Metric { name, value } if name == wanted => Some(*value),
            _ => None,
        })
    }
}

fn read(mut source: impl TraceSource + 'static, kept: Option<Arc<Mutex<Vec<Fact>>>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(told) = source.next().await {
            if let (Ok(batch), Some(kept)) = (told, &kept) {
                kept.lock().unwrap().extend(batch.facts);
            }
        }
    })
}

fn origin() -> Origin {
    Origin { rank: Number(0), incarnation: Incarnation(1), pid: 7 }
}

/// Shows a sink a record with a figure.
pub(crate) fn tell(sink: &mut CuptiSink, name: &str, value: f64) {
    let names: NameTable = [name].into_iter().collect();
    let record = TimedRecord {
        unix_nanos: 1,
        thread: 0,
        kind: Kind::Marker,
        event: Event::Counter { value },
        name: NameId(1),
        detail: Detail::None,
    };
    sink.batch(&Arc::new(RecordBatch { origin: origin(), names: Arc::new(names), lost: 0, records: vec![record] }));
}

/// What the source makes of it.
pub(crate) fn fact(name: &'static str, value: f64) -> Fact {
    let signal = Signal::Metric { name: Name::new(name), value };
    Fact::new(Domain::Process(Role::Rank(Number(0))), signal).with_incarnation(Incarnation(1))
}

/// The calendar.
pub(crate) fn unix_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// The library that stands in for CUPTI.
pub(crate) fn library() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| compile("cupti.c", "cupti.so", &["-shared", "-fPIC", "-lpthread"]))
}

/// The program.
pub(crate) fn trainer() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| compile("trainer.c", "trainer", &["-ldl"]))
}

fn compile(source: &str, name: &str, options: &[&str]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (new, made) = (dir.join(format!("{name}-{}", std::process::id())), dir.join(name));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin").join(source);
    let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&new).arg(&source).args(options);
    assert!(cc.status().expect("a C compiler").success(), "{} does not compile", source.display());
    std::fs::rename(new, &made).unwrap();
    made
}

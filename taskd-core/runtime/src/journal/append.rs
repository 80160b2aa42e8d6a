//! The shell's side of writing: appends records and waits until they are written.

use super::files::{self, Segment};
use super::form;
use super::header::{FileHead, HEAD_BYTES_MAX};
use super::lock::{DirLock, NotLocked};
use super::queue::{Chunk, Place, Queue};
use super::record::{self, EncodeError, Kind};
use super::recover::Recovered;
use super::steps::InputRecordRef;
use super::writer::{Birth, Writer};
use super::{Gap, Header, Health, JournalConfig, JournalCounts, JournalError, JournalMonitor, Log, Written};
use crate::job::{JobTime, Seq};
use crate::kernel::Effect;
use crate::kernel::{Command, Input, Snapshot};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// Capacity of the encoding buffer that is kept between records, in bytes.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

/// Journal of one supervisor, open for writing: logs of the decision kernel's inputs and commands, and snapshots of the
/// kernel's state.
///
/// No method waits for a disk unless its documentation states it. Records are encoded and put into a bounded queue;
/// one thread of the journal writes them, and another one syncs them. Records that cannot be written are counted
/// and described by a [`Gap`]; they block nothing.
///
/// Dropping a journal lets its threads finish on their own; [`close`](Journal::close) waits for them.
pub struct Journal {
    config: JournalConfig,
    header: Header,
    start: u64,
    /// Number of the last input in the snapshot that this supervisor start found.
    base: Option<Seq>,
    queue: Arc<Queue>,
    birth: Arc<OnceLock<Birth>>,
    scratch: Vec<u8>,
    lanes: [Lane; 3],
    since_snapshot: SinceSnapshot,
}

/// The shell's side of one log, before the queue.
#[derive(Debug, Default)]
struct Lane {
    /// Size of the current file, tracked here so that files end at the same records no matter how fast the disk is.
    bytes: u64,
    /// Description of the records that did not fit into the queue; it is written together with the next record that
    /// does.
    gap: Option<Gap>,
}

/// Inputs since the last snapshot, which a restart would have to replay.
#[derive(Debug, Default)]
struct SinceSnapshot {
    decisions: u64,
    observations: u64,
    /// True if a detector's state cannot be saved. A replay could then differ, so every decision needs a snapshot.
    incomplete: bool,
    due: bool,
}

impl Journal {
    /// Opens the journal in `dir`, which is created if it is missing, and reads the logs that earlier supervisor starts
    /// left there.
    ///
    /// New files never overwrite old ones. The directory is locked for this journal until its last record is written.
    /// If the file system supports no locks, or the lock file cannot be created, a warning is logged and the journal
    /// works without a lock.
    ///
    /// # Errors
    /// Returns [`JournalError`] if the directory cannot be created or read, if another supervisor holds it, or if a
    /// thread cannot be started. If the directory is held, this call blocks for about one second, because that
    /// supervisor may be about to end. Problems of *old* files are not errors: [`Recovered`] lists them.
    pub fn open(
        dir: impl Into<PathBuf>,
        header: Header,
        config: JournalConfig,
    ) -> Result<(Journal, Recovered), JournalError> {
        let dir = dir.into();
        crate::private::make_dir(&dir).map_err(|e| JournalError::directory(&dir, e))?;
        let lock = lock(&dir)?;
        let found = files::list(&dir).map_err(|e| JournalError::directory(&dir, e))?;
        let head = FileHead { header: header.clone(), start: next_start(&found), after: Seq(0), base: None }.encode();
        if head.map_or(true, |bytes| bytes.len() > HEAD_BYTES_MAX / 2) {
            return Err(JournalError::Header { bytes_max: HEAD_BYTES_MAX / 2 });
        }
        let recovered = Recovered::read(found.clone(), &header);
        let (mut journal, mut writer) = Journal::assemble(dir, header, config, found);
        writer.lock = lock;
        journal.base = recovered.snapshot.as_ref().map(Snapshot::seq);
        let (syncs, queue, every) = (Arc::clone(&writer.syncs), Arc::clone(&writer.queue), journal.config.sync_every);
        spawn("taskd-journal", move || writer.run())?;
        spawn("taskd-sync", move || syncs.run(&queue, every))?;
        Ok((journal, recovered))
    }

    fn assemble(dir: PathBuf, header: Header, config: JournalConfig, found: Vec<Segment>) -> (Journal, Writer) {
        let start = next_start(&found);
        let queue = Arc::new(Queue::new(config.queue_bytes_max));
        let birth = Arc::new(OnceLock::new());
        let mut segments = [const { Vec::new() }; 3];
        found.into_iter().for_each(|segment| segments[segment.log as usize].push(segment));
        let writer = Writer {
            dir,
            config: config.clone(),
            queue: Arc::clone(&queue),
            syncs: Arc::default(),
            birth: Arc::clone(&birth),
            segments,
            lanes: Default::default(),
            lock: None,
        };
        let journal = Journal {
            config,
            header,
            start,
            base: None,
            queue,
            birth,
            scratch: Vec::new(),
            lanes: Default::default(),
            since_snapshot: SinceSnapshot { due: true, ..SinceSnapshot::default() },
        };
        (journal, writer)
    }

    /// Returns the number of this supervisor start among all starts in the directory, from 1.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Appends one step of the decision kernel: its input, which has the number `seq`, and all commands that it
    /// returned.
    ///
    /// The numbers of appended inputs must be consecutive. The first number determines the state from which this
    /// supervisor start continues: 1 means an empty state; any other number means the state after all inputs before it.
    /// Records of earlier supervisor starts that have this number or a higher one never took effect.
    pub fn append(&mut self, seq: Seq, now: JobTime, input: &Input, commands: &[Command]) {
        self.begin_after(Seq(seq.0.saturating_sub(1)));
        let since = &mut self.since_snapshot;
        since.due |= since.incomplete && commands.iter().any(|c| acts(&c.effect));
        if let Input::Observed(facts) = input {
            since.observations += facts.len() as u64;
            let kind = if commands.is_empty() { Kind::Quiet } else { Kind::Led };
            self.record(Log::Observations, kind, seq, now, |out| form::write_compact(out, facts));
            if !commands.is_empty() {
                self.since_snapshot.decisions += 1;
                self.record(Log::Decisions, Kind::Commands, seq, now, |out| form::write_named(out, commands));
            }
        } else {
            since.decisions += 1;
            let record = InputRecordRef { input, commands };
            self.record(Log::Decisions, Kind::Step, seq, now, |out| form::write_named(out, &record));
        }
    }

    /// Returns true if a snapshot of the decision kernel's state should be saved now with
    /// [`snapshot`](Journal::snapshot).
    ///
    /// Call this after every step of the decision kernel. Snapshots keep a restart of the supervisor short and exact.
    pub fn snapshot_due(&mut self) -> bool {
        let since = &mut self.since_snapshot;
        since.due |= since.decisions >= self.config.snapshot_every_decisions
            || since.observations >= self.config.snapshot_every_observations
            || self.queue.take_owed_snapshot();
        since.due
    }

    /// Appends a snapshot of the decision kernel's state to the journal.
    pub fn snapshot(&mut self, snapshot: &Snapshot) {
        self.begin_after(snapshot.seq());
        self.since_snapshot = SinceSnapshot { incomplete: !snapshot.is_complete(), ..SinceSnapshot::default() };
        let (seq, now) = (snapshot.seq(), snapshot.now());
        self.record(Log::Snapshots, Kind::Snapshot, seq, now, |out| form::write_named(out, snapshot));
    }

    /// Waits until the record of the input `seq` is written, so that the commands that the decision kernel returned for
    /// this input may be sent.
    ///
    /// Waits for at most [`JournalConfig::write_wait_max`], and not at all if an earlier wait timed out and the
    /// journal's writing thread has not made progress since.
    ///
    /// Cancel-safe. Paused tokio time advances while the writing thread works, so tests with paused time must wait with
    /// [`flush`](Journal::flush) instead.
    pub fn written(&self, seq: Seq) -> impl Future<Output = Written> + Send + use<> {
        let (queue, limit) = (Arc::clone(&self.queue), self.config.write_wait_max);
        async move { queue.written(seq, limit).await }
    }

    /// Returns a receiver of the health of the journal's logs. The receiver is notified when the health changes; of
    /// several changes in quick succession, it sees only the last one.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.queue.health()
    }

    /// Returns the journal's counters.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        self.queue.counts()
    }

    /// Returns a monitor of the journal's health and counters, usable without the journal and after its end.
    #[must_use]
    pub fn monitor(&self) -> JournalMonitor {
        JournalMonitor::of(&self.queue)
    }

    /// Blocks until everything appended is written, or lost and counted. Returns false if `limit` elapses first.
    pub fn flush(&self, limit: Duration) -> bool {
        self.queue.wait_settled(limit)
    }

    /// Writes and syncs the remaining records, and blocks until that is done. Returns false if `limit` elapses first;
    /// the threads then continue for as long as the process lives.
    pub fn close(self, limit: Duration) -> bool {
        self.queue.close(limit)
    }

    fn begin_after(&self, after: Seq) {
        self.birth.get_or_init(|| {
            let base = self.base.filter(|base| *base <= after);
            let head = FileHead { header: self.header.clone(), start: self.start, after, base };
            Birth { start: self.start, head: head.encode().unwrap_or_default() } // checked in `open`
        });
    }

    fn record(
        &mut self,
        log: Log,
        kind: Kind,
        seq: Seq,
        now: JobTime,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let lane = &mut self.lanes[log as usize];
        let gap = lane.gap.as_ref().filter(|_| log != Log::Snapshots);
        let reported = gap.map_or(Ok(()), |gap| gap.encode(&mut bytes, now));
        match reported.and_then(|()| record::encode(&mut bytes, kind, seq, now, fill)) {
            Ok(()) => self.enqueue(log, seq, &bytes),
            Err(e) => self.lose(log, seq, &unencodable(seq, &e)),
        }
        if bytes.capacity() <= SCRATCH_BYTES_KEPT {
            self.scratch = bytes;
        }
    }

    fn enqueue(&mut self, log: Log, seq: Seq, bytes: &[u8]) {
        let segment_bytes = match log {
            Log::Observations => self.config.observations_segment_bytes,
            Log::Snapshots => 0, // one file each
            Log::Decisions => self.config.decisions_segment_bytes,
        };
        let size = bytes.len() as u64;
        let lane = &mut self.lanes[log as usize];
        let fresh = lane.bytes + size > segment_bytes;
        if !self.queue.push(log, &Chunk { fresh, first: seq, last: seq, records: 1, bytes }) {
            self.queue.count(|c| c.overflows += 1);
            return self.lose(log, seq, "the disk was too slow and the queue of the log was full");
        }
        lane.bytes = if fresh { size } else { lane.bytes + size };
        if lane.gap.take().is_some() {
            self.queue.report(log, Place::Queue, None);
        }
    }

    fn lose(&mut self, log: Log, seq: Seq, reason: &str) {
        Gap::extend(&mut self.lanes[log as usize].gap, log, seq, seq, 1, reason);
        self.queue.count(|c| c.lost += 1);
        self.queue.report(log, Place::Queue, Some(reason.to_owned()));
        self.queue.skip(seq);
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("start", &self.start).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.queue.ask_to_end();
    }
}

/// Locks the directory. Returns no lock if locking is impossible, because logs without a lock are better than none.
fn lock(dir: &Path) -> Result<Option<DirLock>, JournalError> {
    match DirLock::take(dir) {
        Ok(lock) => Ok(Some(lock)),
        Err(NotLocked::Held(holder)) => Err(JournalError::Held { dir: dir.to_owned(), holder }),
        Err(NotLocked::Impossible(error)) => {
            let dir = dir.display();
            tracing::warn!(
                "the log directory {dir} cannot be locked: {error}; make sure that no other supervisor runs this job"
            );
            Ok(None)
        }
    }
}

/// Returns one more than the highest start number of all files, readable or not.
fn next_start(found: &[Segment]) -> u64 {
    found.iter().map(|s| s.start).max().unwrap_or(0).saturating_add(1)
}

/// Returns true if a command has an effect outside the kernel.
///
/// A replay of its input must then give the same command.
const fn acts(effect: &Effect) -> bool {
    !matches!(effect, Effect::Publish(_) | Effect::Acknowledge(_))
}

fn unencodable(seq: Seq, e: &EncodeError) -> String {
    format!("{seq} cannot be recorded: {e}")
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), JournalError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map(drop).map_err(|source| JournalError::Thread { source })
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, History, PluginInfo, PluginKind};
    use super::*;
    use crate::job::Name;
    use crate::kernel::Request;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn header() -> Header {
        let plugin = |name| PluginInfo {
            kind: PluginKind::Detector,
            name: Name::new(name),
            version: Name::new("1"),
            config: String::new(),
        };
        Header { job: Name::new("j"), job_id: "1".into(), ranks: 1, started_unix_ms: 0, plugins: vec![plugin("exits")] }
    }

    fn stop(reason: &str) -> Input {
        Input::Requested(Request::Stop { reason: reason.into(), grace: None })
    }

    /// Returns a journal whose disk does not respond until the test runs the writer.
    fn stalled(dir: &std::path::Path, queue_bytes_max: usize) -> (Journal, Writer) {
        let config = JournalConfig { queue_bytes_max, ..JournalConfig::default() };
        Journal::assemble(dir.to_owned(), header(), config, Vec::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_disk_delays_one_command_and_reports_lost_records() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut journal, writer) = stalled(dir.path(), 1000);
        let began = tokio::time::Instant::now();
        for n in 1..=100 {
            journal.append(Seq(n), JobTime::from_nanos(n), &stop("a record of some thirty bytes"), &[]);
            assert_eq!(journal.written(Seq(n)).await, Written::Late);
        }
        assert_eq!(began.elapsed(), JournalConfig::default().write_wait_max, "only the first one waits");
        let counts = journal.counts();
        assert_eq!((counts.late, counts.overflows), (100, counts.lost));
        assert!(counts.lost > 80, "{counts:?}");
        assert!(journal.health().borrow().trouble().is_some());

        let queue = Arc::clone(&journal.queue);
        let writing = std::thread::spawn(move || writer.run());
        assert!(queue.wait_settled(PATIENCE));
        journal.append(Seq(101), JobTime::from_nanos(101), &stop("the disk works again"), &[]);
        assert!(journal.flush(PATIENCE)); // paused time does not wait for other threads
        assert_eq!(journal.written(Seq(101)).await, Written::Yes);
        assert!(journal.snapshot_due(), "what was lost must not be needed any more");
        drop(journal);
        writing.join().expect("the writer ends");
        let history = History::open(dir.path()).expect("a log");
        let life = history.latest().expect("a life");
        let entries: Vec<Entry> = life.steps(Seq(0)).collect();
        let missing = entries.iter().find_map(|e| match e {
            Entry::Missing(missing) => Some(missing),
            Entry::Step(_) => None,
        });
        let missing = missing.expect("something is missing");
        assert_eq!(missing.to.0 - missing.from.0 + 1, counts.lost);
        assert!(missing.why.contains("full"), "{missing}");
        assert!(matches!(entries.last(), Some(Entry::Step(step)) if step.seq == Seq(101)));
    }

    #[test]
    fn an_input_that_cannot_be_encoded_is_lost_and_logged_as_missing() {
        use std::os::unix::ffi::OsStringExt;
        let dir = tempfile::tempdir().expect("a directory");
        let (mut journal, _) = Journal::open(dir.path(), header(), JournalConfig::default()).expect("a journal");
        let path = std::ffi::OsString::from_vec(vec![0xff]);
        let worker = crate::job::WorkerSpec::new(["train"]).with_cwd(path);
        let spec = Arc::new(crate::job::JobSpec::new("j", 1, worker));
        journal.append(
            Seq(1),
            JobTime::START,
            &Input::Start(Box::new(crate::kernel::Start { spec, trace: None, rendezvous_service: None, resume: None })),
            &[],
        );
        journal.append(Seq(2), JobTime::START, &Input::Deadline, &[]);
        assert!(journal.flush(PATIENCE));
        assert_eq!(journal.counts().lost, 1);
        assert!(journal.close(PATIENCE));
        let history = History::open(dir.path()).expect("a log");
        let first = history.latest().and_then(|life| life.steps(Seq(0)).next());
        assert!(matches!(first, Some(Entry::Missing(m)) if m.why.contains("cannot be recorded")));
    }

    #[test]
    fn a_head_that_cannot_be_read_again_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut header = header();
        header.plugins[0].config = "x".repeat(HEAD_BYTES_MAX);
        let error = Journal::open(dir.path(), header, JournalConfig::default()).expect_err("too long");
        assert!(error.to_string().contains("shorten"), "{error}");
    }
}

//! The writing side that a shell holds: records go in, and their being written can be waited for.

use super::files;
use super::header::{FileHead, HEAD_BYTES_MAX};
use super::queue::{Chunk, Place, Queue};
use super::record::{self, EncodeError, Kind};
use super::recover::Recovered;
use super::sync::SyncQueue;
use super::writer::{Birth, Writer};
use super::{Gap, Header, Health, JournalConfig, JournalCounts, JournalError, Log, Written};
use crate::job::{JobTime, Seq};
use crate::kernel::{Command, Input, Snapshot};
use crate::recover::Action;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// Room for encoding that is kept between records, in bytes.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

/// The two logs of one supervisor, being written.
///
/// Nothing here waits for a disk: records are encoded, put into a bounded queue, written by a thread of the journal's
/// own, and synced by another. What cannot be written is counted and named by a [`Gap`]; it stops nobody.
///
/// Dropping it lets the threads end in their own time; [`close`](Journal::close) waits for them.
#[derive(Debug)]
pub struct Journal {
    config: JournalConfig,
    header: Header,
    start: u64,
    queue: Arc<Queue>,
    birth: Arc<OnceLock<Birth>>,
    scratch: Vec<u8>,
    lanes: [Lane; 3],
    since_snapshot: SinceSnapshot,
}

/// One log on its way into the queue.
#[derive(Debug, Default)]
struct Lane {
    /// Size of the file that is being filled, so that files end at the same records whatever the disk does.
    bytes: u64,
    /// Records that found no room, told with the next one that does.
    gap: Option<Gap>,
}

/// What a restart would have to take again.
#[derive(Debug, Default)]
struct SinceSnapshot {
    decisions: u64,
    observations: u64,
    /// A detector cannot be saved: taking inputs again might decide otherwise, so every decision wants a snapshot.
    incomplete: bool,
    due: bool,
}

impl Journal {
    /// Opens the journal in `dir` (which is made if it is not there) and reads what an earlier start has left in it.
    ///
    /// Whatever the old files hold, the new ones stand beside them: nothing is written over.
    ///
    /// # Errors
    /// [`JournalError`] when the directory cannot be made or read, or a thread cannot be started. What is wrong with
    /// *old* files is no error: it stands in [`Recovered`].
    pub fn open(
        dir: impl Into<PathBuf>,
        header: Header,
        config: JournalConfig,
    ) -> Result<(Journal, Recovered), JournalError> {
        let dir = dir.into();
        std::fs::create_dir_all(&dir).map_err(|e| JournalError::directory(&dir, e))?;
        let found = files::list(&dir).map_err(|e| JournalError::directory(&dir, e))?;
        let start = found.iter().map(|s| s.start).max().unwrap_or(0).saturating_add(1);
        let head = FileHead { header: header.clone(), start, after: Seq(0) }.encode();
        if head.map_or(true, |bytes| bytes.len() > HEAD_BYTES_MAX / 2) {
            return Err(JournalError::Header { bytes_max: HEAD_BYTES_MAX / 2 });
        }
        let recovered = Recovered::read(found.clone(), &header);
        let queue = Arc::new(Queue::new(config.queue_bytes_max));
        let birth = Arc::new(OnceLock::new());
        let syncs = Arc::new(SyncQueue::default());
        let mut segments = [const { Vec::new() }; 3];
        found.into_iter().for_each(|segment| segments[segment.log as usize].push(segment));
        let writer = Writer {
            dir,
            config: config.clone(),
            queue: Arc::clone(&queue),
            syncs: Arc::clone(&syncs),
            birth: Arc::clone(&birth),
            segments,
            lanes: Default::default(),
        };
        spawn("taskd-journal", move || writer.run())?;
        let (sync_every, results) = (config.sync_every, Arc::clone(&queue));
        spawn("taskd-sync", move || syncs.run(&results, sync_every))?;
        let journal = Journal {
            config,
            header,
            start,
            queue,
            birth,
            scratch: Vec::new(),
            lanes: Default::default(),
            since_snapshot: SinceSnapshot { due: true, ..SinceSnapshot::default() },
        };
        Ok((journal, recovered))
    }

    /// Which start of the supervisor this is in this directory, from 1.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Takes one step of the kernel: its input, as number `seq`, and all its commands.
    ///
    /// Numbers must follow each other. The first one says what this start goes on from: 1, from nothing; else from the
    /// state that holds all inputs before it, and whatever earlier starts wrote from there on never took effect.
    pub fn append(&mut self, seq: Seq, now: JobTime, input: &Input, commands: &[Command]) {
        self.begin_after(Seq(seq.0.saturating_sub(1)));
        let since = &mut self.since_snapshot;
        since.due |= since.incomplete && commands.iter().any(|c| acts(&c.action));
        if let Input::Observed(facts) = input {
            since.observations += facts.len() as u64;
            let kind = if commands.is_empty() { Kind::Quiet } else { Kind::Led };
            self.record(Log::Observations, kind, seq, now, facts);
            if !commands.is_empty() {
                self.since_snapshot.decisions += 1;
                self.record(Log::Decisions, Kind::Commands, seq, now, commands);
            }
        } else {
            since.decisions += 1;
            self.record(Log::Decisions, Kind::Step, seq, now, &(input, commands));
        }
    }

    /// Whether the kernel's state should be saved now, with [`snapshot`](Journal::snapshot), so that a restart stays
    /// short and exact. Asked after every step.
    pub fn snapshot_due(&mut self) -> bool {
        let since = &mut self.since_snapshot;
        since.due |= since.decisions >= self.config.snapshot_every_decisions
            || since.observations >= self.config.snapshot_every_observations
            || self.queue.take_owed_snapshot();
        since.due
    }

    /// Takes the kernel's whole state.
    pub fn snapshot(&mut self, snapshot: &Snapshot) {
        self.begin_after(snapshot.seq());
        self.since_snapshot = SinceSnapshot { incomplete: !snapshot.is_complete(), ..SinceSnapshot::default() };
        self.record(Log::Snapshots, Kind::Snapshot, snapshot.seq(), snapshot.now(), snapshot);
    }

    /// Waits until the record of this input is written, so that its commands may leave: at most for
    /// [`JournalConfig::write_wait_max`], and not at all while the disk has just kept somebody else waiting in vain.
    ///
    /// Cancel-safe.
    pub fn written(&self, seq: Seq) -> impl Future<Output = Written> + Send + use<> {
        let (queue, limit) = (Arc::clone(&self.queue), self.config.write_wait_max);
        async move { queue.written(seq, limit).await }
    }

    /// Whether the logs are being written. The receiver sees each change once.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.queue.health()
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> JournalCounts {
        self.queue.counts()
    }

    /// Blocks until everything that was appended is written, or lost and counted. False: not within `limit`.
    pub fn flush(&self, limit: Duration) -> bool {
        self.queue.wait_settled(limit)
    }

    /// Writes and syncs what is left, and blocks until that is done. False: not within `limit`; it then goes on by
    /// itself as long as the process lives.
    pub fn close(self, limit: Duration) -> bool {
        self.queue.close(limit)
    }

    fn begin_after(&self, after: Seq) {
        self.birth.get_or_init(|| {
            let head = FileHead { header: self.header.clone(), start: self.start, after };
            Birth { start: self.start, head: head.encode().unwrap_or_default() } // `open` has seen that it has a form
        });
    }

    fn record<T: Serialize + ?Sized>(&mut self, log: Log, kind: Kind, seq: Seq, now: JobTime, payload: &T) {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let lane = &mut self.lanes[log as usize];
        let gap = lane.gap.as_ref().filter(|_| log != Log::Snapshots);
        let told = gap.map_or(Ok(()), |gap| record::encode(&mut bytes, Kind::Gap, gap.to, now, gap));
        match told.and_then(|()| record::encode(&mut bytes, kind, seq, now, payload)) {
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
            Log::Snapshots => 0, // each has a file of its own
            Log::Decisions => self.config.decisions_segment_bytes,
        };
        let size = bytes.len() as u64;
        let lane = &mut self.lanes[log as usize];
        let fresh = lane.bytes + size > segment_bytes;
        if !self.queue.push(log, &Chunk { fresh, first: seq, last: seq, records: 1, bytes }) {
            self.queue.count(|c| c.overflows += 1);
            return self.lose(log, seq, "the disk did not keep up and the queue before it was full");
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

impl Drop for Journal {
    fn drop(&mut self) {
        self.queue.ask_to_end();
    }
}

/// Whether a command changes something outside, so that taking its input again must not give another one.
const fn acts(action: &Action) -> bool {
    !matches!(action, Action::Announce(_) | Action::Acknowledge(_))
}

fn unencodable(seq: Seq, e: &EncodeError) -> String {
    format!("{seq} cannot be recorded: {e}")
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), JournalError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map(drop).map_err(|source| JournalError::Thread { source })
}

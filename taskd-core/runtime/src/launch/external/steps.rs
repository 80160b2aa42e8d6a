//! Completed steps of external processes, taken from their logs.
//!
//! This module reads a bounded part of each file per scan, outside the async runtime's threads. It detects no faults.

use super::registry::{Process, Shared, Watching};
use super::tail::{StepPattern, Tail};
use crate::job::{Domain, Incarnation, ProcId, Rank, Role};
use crate::launch::interval::Ticks;
use crate::trace::{Fact, Signal, SourceError, SourceInfo, TraceBatch, TraceSource};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Trace source that reports the training steps which external ranks have completed. Created by
/// [`ExternalProcs::steps`](super::ExternalProcs::steps).
///
/// It reads the step numbers in the ranks' standard output and standard error, if they are files, and the files
/// that are added with [`also_in`](Self::also_in). If several ranks write to one file, the steps in this file are
/// attributed to the lowest rank. Per scan, only the newest step of each rank is reported, since it implies the
/// earlier ones.
#[derive(Debug)]
pub struct LogSteps {
    every: Duration,
    /// Reader of the files; present until the source is first read.
    reader: Option<Reader>,
    batches: Option<mpsc::Receiver<(Instant, Vec<Fact>)>>,
    /// The task that reads the files; it ends when this value is dropped.
    running: JoinSet<()>,
}

/// Reader of all logs of a job.
#[derive(Debug)]
struct Reader {
    shared: Arc<Shared>,
    pattern: StepPattern,
    streams: BTreeMap<ProcId, Vec<Tail>>,
    named: Vec<(Rank, Tail)>,
}

impl LogSteps {
    pub(super) fn new(shared: Arc<Shared>, pattern: StepPattern, every: Duration) -> LogSteps {
        let reader = Reader { shared, pattern, streams: BTreeMap::new(), named: Vec::new() };
        LogSteps { every, reader: Some(reader), batches: None, running: JoinSet::new() }
    }

    /// Also reads the training steps of `rank` from the file `path`, which need not exist yet.
    #[must_use]
    pub fn also_in(mut self, rank: Rank, path: impl Into<PathBuf>) -> LogSteps {
        if let Some(reader) = &mut self.reader {
            reader.named.push((rank, Tail::at(path.into())));
        }
        self
    }
}

impl Reader {
    /// Returns the newest steps in the text written since the last scan.
    fn look(&mut self) -> Vec<Fact> {
        let running = self.shared.running();
        self.streams.retain(|proc, _| running.iter().any(|process| process.proc == *proc));
        let mut read = BTreeSet::new();
        let mut facts = Vec::new();
        for process in &running {
            let tails = self.streams.entry(process.proc.clone()).or_insert_with(|| tails(process));
            for tail in tails.iter_mut().filter_map(|tail| tail.id().filter(|id| read.insert(*id)).map(|_| tail)) {
                let step = newest(tail, &self.pattern);
                facts
                    .extend(step.map(|step| progress(process.proc.role.clone(), Some(process.proc.incarnation), step)));
            }
        }
        for (rank, tail) in &mut self.named {
            if tail.id().is_some_and(|id| read.insert(id)) {
                facts.extend(newest(tail, &self.pattern).map(|step| progress(Role::Rank(*rank), None, step)));
            }
        }
        facts
    }
}

fn tails(process: &Arc<Process>) -> Vec<Tail> {
    process.streams.iter().flatten().filter_map(|stream| Tail::of(stream).ok()).collect()
}

/// Returns the newest step of a file. A file that cannot be read now is read in the next scan.
fn newest(tail: &mut Tail, pattern: &StepPattern) -> Option<u64> {
    tail.newest(pattern).unwrap_or_default()
}

fn progress(role: Role, incarnation: Option<Incarnation>, step: u64) -> Fact {
    let mut fact = Fact::new(Domain::Process(role), Signal::Progress { step });
    fact.incarnation = incarnation;
    fact
}

/// Scans periodically until the receiver is dropped. A batch that was not taken yet delays the next scan.
async fn read(mut reader: Reader, mut ticks: Ticks, batches: mpsc::Sender<(Instant, Vec<Fact>)>) {
    loop {
        ticks.next().await;
        if *reader.shared.watching.borrow() == Watching::Dropped {
            return;
        }
        let looked = tokio::task::spawn_blocking(move || (reader.look(), reader)).await;
        let Ok((facts, again)) = looked else { return }; // the runtime ends
        reader = again;
        if !facts.is_empty() && batches.send((Instant::now(), facts)).await.is_err() {
            return;
        }
    }
}

#[async_trait]
impl TraceSource for LogSteps {
    fn info(&self) -> SourceInfo {
        SourceInfo::new("log-steps")
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        if let Some(reader) = self.reader.take() {
            let (sender, receiver) = mpsc::channel(1);
            self.running.spawn(read(reader, Ticks::new(self.every), sender));
            self.batches = Some(receiver);
        }
        let (at, facts) = self.batches.as_mut()?.recv().await?; // cancel-safe
        let age = at.elapsed();
        Some(Ok(TraceBatch::of(facts.into_iter().map(|fact| fact.with_age(age)).collect())))
    }
}

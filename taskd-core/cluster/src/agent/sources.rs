//! The trace sources of a host: each is read in a task of its own, whatever becomes of connections, and answers the
//! manager's probes between two batches.

use super::outbox::Outbox;
use crate::clock::Moment;
use crate::wire::{FactsItem, SourceFailure};
use bytes::Bytes;
use futures::future::join_all;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taskd_runtime::job::Domain;
use taskd_runtime::trace::{Probe, ProbeResult, SourceError, SourceInfo, TraceSource};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Maximum number of sources of a host.
pub(crate) const SOURCES_MAX: usize = 64;
/// Consecutive errors after which a source is ended as broken, because it would only flood the log.
const ERRORS_IN_ROW_MAX: u32 = 16;
/// Probes that may wait for one source. Further ones are answered as unavailable.
const QUESTIONS_MAX: usize = 4096;
/// Time that sources may take to forward what they hold when the agent ends.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

/// The sources of a host, and what they have reported.
pub(super) struct Sources {
    infos: Vec<SourceInfo>,
    outbox: Arc<Outbox>,
    questions: Vec<mpsc::Sender<Question>>,
    /// The sources until they are read.
    idle: Mutex<Vec<Idle>>,
}

/// A source that is not read yet.
struct Idle {
    source: Box<dyn TraceSource>,
    asked: mpsc::Receiver<Question>,
}

/// A probe on its way to a source.
struct Question {
    probe: Probe,
    about: Domain,
    reply: oneshot::Sender<Result<ProbeResult, SourceError>>,
}

/// The tasks that read the sources; they end when this value is dropped.
#[derive(Debug)]
pub(super) struct Reading {
    tasks: JoinSet<()>,
    closing: CancellationToken,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.infos.iter().map(|info| &info.name)).finish()
    }
}

impl Sources {
    /// `begun` is the moment from which the times in messages count.
    pub(super) fn new(sources: Vec<Box<dyn TraceSource>>, begun: Moment) -> Sources {
        let infos: Vec<SourceInfo> = sources.iter().map(|source| source.info()).collect();
        let (mut questions, mut idle) = (Vec::new(), Vec::new());
        for source in sources {
            let (sender, asked) = mpsc::channel(QUESTIONS_MAX);
            questions.push(sender);
            idle.push(Idle { source, asked });
        }
        Sources {
            outbox: Arc::new(Outbox::new(begun, infos.iter().cloned())),
            infos,
            questions,
            idle: Mutex::new(idle),
        }
    }

    /// Returns the descriptions of the sources, in the order of their numbers.
    pub(super) fn infos(&self) -> &[SourceInfo] {
        &self.infos
    }

    /// Begins to read the sources. Only the first call does.
    pub(super) fn read(&self) -> Reading {
        let (mut tasks, closing) = (JoinSet::new(), CancellationToken::new());
        let idle = std::mem::take(&mut *self.idle());
        for (number, (info, idle)) in self.infos.iter().zip(idle).enumerate() {
            let (outbox, closing, name) = (Arc::clone(&self.outbox), closing.clone(), info.name.clone());
            tasks.spawn(async move {
                let mut inner = JoinSet::new(); // so that a panic of the source is caught
                inner.spawn(watch(idle, number, Arc::clone(&outbox), closing));
                let why = match inner.join_next().await {
                    Some(Ok(Some(why))) => why,
                    Some(Err(error)) if error.is_panic() => "it panicked".to_owned(),
                    Some(Ok(None) | Err(_)) | None => return,
                };
                tracing::error!(source = %name, %why, "a trace source has ended: its facts are missing from now on");
                outbox.push(number, FactsItem::Ended(Some(why))).await;
            });
        }
        Reading { tasks, closing }
    }

    /// Waits for facts that the manager, which has taken the entries up to `after`, does not have. See [`Outbox::next`].
    pub(super) async fn next(&self, after: u64) -> Bytes {
        self.outbox.next(after).await
    }

    /// Sends a probe about each of these domains to the sources that answer it. Returns the replies that came within the
    /// probe's time, and the reason where there is none.
    pub(super) async fn collect(
        &self,
        probe: &Probe,
        about: Vec<Domain>,
    ) -> Vec<(Domain, Result<ProbeResult, SourceFailure>)> {
        let replies = about.into_iter().map(|domain| async move {
            let reply = timeout(probe.timeout, self.inquire(probe, &domain)).await;
            let late = |_| Err(SourceError::Unavailable(format!("no source replied within {:?}", probe.timeout)));
            (domain, reply.unwrap_or_else(late).map_err(SourceFailure::from))
        });
        join_all(replies).await
    }

    /// Returns the first reply of a source to a probe, or the last error.
    async fn inquire(&self, probe: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        let mut last = SourceError::Unsupported;
        let answer = |info: &SourceInfo| info.probes.contains(&probe.what);
        for (_, questions) in self.infos.iter().zip(&self.questions).filter(|(info, _)| answer(info)) {
            let (reply, answer) = oneshot::channel();
            let question = Question { probe: probe.clone(), about: about.clone(), reply };
            if questions.try_send(question).is_err() {
                let text = format!("the source has ended, or {QUESTIONS_MAX} probes wait for it already");
                last = SourceError::Unavailable(text);
                continue;
            }
            match answer.await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(error)) => last = error,
                Err(_) => last = SourceError::Unavailable("the source ended before it answered".into()),
            }
        }
        Err(last)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

impl Reading {
    /// Lets the sources forward what they hold, within a time limit, and ends them.
    pub(super) async fn close(mut self) {
        self.closing.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(CLOSED_WITHIN, all).await.is_err() {
            tracing::warn!("a trace source did not end within {CLOSED_WITHIN:?}: what it still held is lost");
        }
    }
}

/// Reads a source until the agent ends. Returns the reason if the source is broken.
async fn watch(idle: Idle, number: usize, outbox: Arc<Outbox>, closing: CancellationToken) -> Option<String> {
    let Idle { mut source, mut asked } = idle;
    let ended = closing.run_until_cancelled(drain(&mut *source, number, &mut asked, &outbox)).await;
    if let Some(Some(why)) = ended {
        return Some(why);
    }
    if ended.is_some() {
        outbox.push(number, FactsItem::Ended(None)).await; // its facts have ended; it still answers probes
        let answering = async {
            while let Some(question) = asked.recv().await {
                reply(&mut *source, question).await;
            }
        };
        closing.run_until_cancelled(answering).await;
    }
    source.close().await;
    None
}

/// Reads a source. Returns `None` when it has ended, and the reason if it is broken.
async fn drain(
    source: &mut dyn TraceSource,
    number: usize,
    asked: &mut mpsc::Receiver<Question>,
    outbox: &Outbox,
) -> Option<String> {
    let mut errors_in_row = 0;
    loop {
        let batch = tokio::select! {
            biased;
            Some(question) = asked.recv() => {
                reply(source, question).await;
                continue;
            }
            batch = source.next() => batch,
        };
        let item = match batch {
            None => return None,
            Some(Ok(batch)) => {
                errors_in_row = 0;
                if batch.facts.is_empty() {
                    continue;
                }
                FactsItem::Facts(batch.facts)
            }
            Some(Err(error)) => {
                errors_in_row += 1;
                if errors_in_row >= ERRORS_IN_ROW_MAX {
                    return Some(format!("{errors_in_row} errors in a row, the last: {error}"));
                }
                FactsItem::Failed(error.into())
            }
        };
        // Probes are answered also while the source waits for room.
        let mut pushing = std::pin::pin!(outbox.push(number, item));
        loop {
            tokio::select! {
                biased;
                () = &mut pushing => break,
                Some(question) = asked.recv() => reply(source, question).await,
            }
        }
    }
}

async fn reply(source: &mut dyn TraceSource, question: Question) {
    let Question { probe, about, reply } = question;
    let _ = reply.send(source.collect(&probe, &about).await); // the manager may not wait for it any more
}

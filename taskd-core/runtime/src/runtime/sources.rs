//! One task per trace source: polls for batches, forwards probes, and survives failures and panics of the source.

use super::queues::FactQueues;
use crate::job::{CommandId, Domain, Name};
use crate::kernel::{Input, Request};
use crate::recover::{Failure, TargetReply};
use crate::trace::{Probe, ProbeResult, SourceError, TraceSource};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Consecutive errors after which a source is ended as broken, because it would only flood the log.
const ERRORS_IN_ROW_MAX: u32 = 16;

/// Probes that may wait for one source. Further ones are answered as unreachable immediately.
const QUESTIONS_MAX: usize = 64;

/// Time that sources may take at the end of the job to deliver their remaining facts.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

/// A probe on its way to a source.
struct Question {
    ask: Probe,
    about: Domain,
    reply: oneshot::Sender<Result<ProbeResult, SourceError>>,
}

/// A running source.
struct Running {
    answers: Vec<Name>,
    questions: mpsc::Sender<Question>,
}

/// All running sources.
pub(super) struct Sources {
    running: Arc<Vec<Running>>,
    urgent: mpsc::Sender<Input>,
    tasks: JoinSet<()>,
    inquiries: JoinSet<()>,
    closing: CancellationToken,
}

impl Sources {
    /// Starts a task for each source. Closing or dropping the returned value ends the tasks.
    pub(super) fn spawn(
        sources: Vec<Box<dyn TraceSource>>,
        queues: &Arc<FactQueues>,
        urgent: &mpsc::Sender<Input>,
    ) -> Sources {
        let mut tasks = JoinSet::new();
        let mut running = Vec::new();
        let closing = CancellationToken::new();
        for mut source in sources {
            let info = source.info();
            let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
            let queue = queues.add(info.name.clone(), info.queue_max, info.when_full);
            running.push(Running { answers: info.probes, questions });
            let (queues, closing) = (Arc::clone(queues), closing.clone());
            tasks.spawn(watch_over(info.name, urgent.clone(), async move {
                let work = drain(&mut *source, asked, &queues, queue);
                let ended = closing.run_until_cancelled(work).await;
                if ended.is_none() {
                    source.close().await;
                }
                ended.unwrap_or(Ok(()))
            }));
        }
        let (running, urgent, inquiries) = (Arc::new(running), urgent.clone(), JoinSet::new());
        Sources { running, urgent, tasks, inquiries, closing }
    }

    /// Lets all sources deliver their remaining facts, within a time limit, and ends them.
    pub(super) async fn close(mut self) {
        self.closing.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(CLOSED_WITHIN, all).await.is_err() {
            tracing::warn!("a trace source did not end within {CLOSED_WITHIN:?}; its remaining facts are lost");
        }
    }

    /// Sends the probe for each of its domains to the sources that support it. Passes the first result to the kernel.
    pub(super) fn collect(&mut self, id: CommandId, ask: &Probe) {
        while self.inquiries.try_join_next().is_some() {}
        for about in ask.about.clone() {
            let (running, urgent, ask) = (Arc::clone(&self.running), self.urgent.clone(), ask.clone());
            self.inquiries.spawn(async move {
                let result = inquire(&running, &ask, &about).await;
                let _ = urgent.send(Input::Answered { id, results: vec![(about, result)] }).await; // closed: job over
            });
        }
    }
}

/// Returns the first result among the sources that support the probe, or the last error if no source has a result.
async fn inquire(running: &[Running], ask: &Probe, about: &Domain) -> Result<TargetReply, Failure> {
    let mut last = Failure::Refused(format!("no source answers the probe {}", ask.what));
    for source in running.iter().filter(|s| s.answers.contains(&ask.what)) {
        let (reply, answer) = oneshot::channel();
        let question = Question { ask: ask.clone(), about: about.clone(), reply };
        if source.questions.try_send(question).is_err() {
            last = Failure::Unreachable("the source has ended, or too many probes wait for it".into());
            continue;
        }
        match answer.await {
            Ok(Ok(exhibit)) => return Ok(TargetReply::ProbeResult(exhibit)),
            Ok(Err(SourceError::Unavailable(why))) => last = Failure::Unreachable(why),
            Ok(Err(other)) => last = Failure::Refused(other.to_string()),
            Err(_) => last = Failure::Unreachable("the source ended before it answered".into()),
        }
    }
    Err(last)
}

/// Runs a source's task. Reports a panic or failure to the kernel as a failure of the plugin.
async fn watch_over(
    plugin: Name,
    urgent: mpsc::Sender<Input>,
    task: impl Future<Output = Result<(), String>> + Send + 'static,
) {
    let mut inner = JoinSet::new(); // dropping this task aborts the source
    inner.spawn(task);
    let what = match inner.join_next().await {
        Some(Ok(Err(what))) => what,
        Some(Err(e)) if e.is_panic() => "it panicked; its facts are missing from now on".to_owned(),
        _ => return,
    };
    let _ = urgent.send(Input::Requested(Request::PluginFailed { plugin, what })).await; // closed: the job is over
}

async fn drain(
    source: &mut dyn TraceSource,
    mut asked: mpsc::Receiver<Question>,
    queues: &FactQueues,
    queue: usize,
) -> Result<(), String> {
    let mut errors_in_row = 0;
    loop {
        let batch = tokio::select! {
            biased;
            Some(Question { ask, about, reply }) = asked.recv() => {
                let _ = reply.send(source.collect(&ask, &about).await); // the kernel may have timed out
                continue;
            }
            batch = source.next() => batch,
        };
        match batch {
            None => return answer_only(source, asked).await,
            Some(Ok(batch)) => {
                errors_in_row = 0;
                if !batch.facts.is_empty() {
                    queues.push(queue, batch.facts).await;
                }
            }
            Some(Err(error)) => {
                errors_in_row += 1;
                tracing::warn!(source = %source.info().name, %error, "a trace source failed to deliver");
                if errors_in_row >= ERRORS_IN_ROW_MAX {
                    return Err(format!("ended after {errors_in_row} errors in a row, last: {error}"));
                }
            }
        }
    }
}

/// Answers probes for a source whose facts have ended.
async fn answer_only(source: &mut dyn TraceSource, mut asked: mpsc::Receiver<Question>) -> Result<(), String> {
    while let Some(Question { ask, about, reply }) = asked.recv().await {
        let _ = reply.send(source.collect(&ask, &about).await);
    }
    Ok(())
}

//! One task per trace source: polls for batches, forwards probes, and survives failures and panics of the source.

use super::queues::FactQueues;
use crate::job::{CommandId, Domain, Name};
use crate::kernel::{Input, Request};
use crate::recover::{Failure, TargetReply};
use crate::trace::{Probe, ProbeResult, SourceError, TraceSource};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Consecutive errors after which a source is ended as broken, because it would only flood the log.
const ERRORS_IN_ROW_MAX: u32 = 16;

/// Requests for the reply to a probe that may wait for one source, per process of the job: one source may stand for all of
/// them. A probe about all of them is one request for each. Further requests are counted, and answered as unreachable.
const QUESTIONS_PER_PROC: usize = 4;
/// The fewest requests that may wait for one source.
const QUESTIONS_MIN: usize = 64;

/// Time that sources may take at the end of the job to deliver their remaining facts.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

/// A probe on its way to a source.
struct Question {
    ask: Arc<Probe>,
    about: Domain,
    reply: oneshot::Sender<Result<ProbeResult, SourceError>>,
}

/// A running source.
struct Running {
    name: Name,
    answers: Vec<Name>,
    questions: mpsc::Sender<Question>,
    /// Number of requests for which there was no room.
    refused: AtomicU64,
}

impl Running {
    /// Passes a request to the source.
    ///
    /// # Errors
    /// The reason why there is no room for it, or no source any more.
    fn pass(&self, question: Question) -> Result<(), String> {
        match self.questions.try_send(question) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err("the source has ended".into()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                let (number, max) = (self.refused.fetch_add(1, Relaxed) + 1, self.questions.max_capacity());
                if number.is_power_of_two() {
                    tracing::warn!(source = %self.name, number, max, "probes were not passed on: too many wait for this source");
                }
                Err(format!("{max} probes wait for the source {} already ({number} were refused so far)", self.name))
            }
        }
    }
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
    /// Starts a task for each source of a job of so many processes. Closing or dropping the returned value ends the tasks.
    pub(super) fn spawn(
        sources: Vec<Box<dyn TraceSource>>,
        procs: usize,
        queues: &Arc<FactQueues>,
        urgent: &mpsc::Sender<Input>,
    ) -> Sources {
        let mut tasks = JoinSet::new();
        let mut running = Vec::new();
        let closing = CancellationToken::new();
        for mut source in sources {
            let info = source.info();
            let questions_max = procs.saturating_mul(QUESTIONS_PER_PROC).clamp(QUESTIONS_MIN, Semaphore::MAX_PERMITS);
            let (questions, asked) = mpsc::channel(questions_max);
            let queue = queues.add(info.name.clone(), info.queue_max, info.when_full);
            let (name, answers) = (info.name.clone(), info.probes);
            running.push(Running { name, answers, questions, refused: AtomicU64::new(0) });
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
        let shared = Arc::new(ask.clone()); // it names all its domains
        for about in ask.about.clone() {
            let (running, urgent, ask) = (Arc::clone(&self.running), self.urgent.clone(), Arc::clone(&shared));
            self.inquiries.spawn(async move {
                let result = inquire(&running, &ask, &about).await;
                let _ = urgent.send(Input::Answered { id, results: vec![(about, result)] }).await; // closed: job over
            });
        }
    }
}

/// Returns the first result among the sources that support the probe, or the last error if no source has a result.
async fn inquire(running: &[Running], ask: &Arc<Probe>, about: &Domain) -> Result<TargetReply, Failure> {
    let mut last = Failure::Refused(format!("no source answers the probe {}", ask.what));
    for source in running.iter().filter(|s| s.answers.contains(&ask.what)) {
        let (reply, answer) = oneshot::channel();
        if let Err(why) = source.pass(Question { ask: Arc::clone(ask), about: about.clone(), reply }) {
            last = Failure::Unreachable(why);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobTime, NodeId};
    use crate::runtime::clock::JobClock;
    use crate::trace::{SourceInfo, TraceBatch};
    use async_trait::async_trait;

    /// A source of many hosts, which takes a moment for each reply.
    struct Slow;

    #[async_trait]
    impl TraceSource for Slow {
        fn info(&self) -> SourceInfo {
            SourceInfo::new("slow").with_probe("state")
        }
        async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
            std::future::pending().await
        }
        async fn collect(&mut self, _: &Probe, _: &Domain) -> Result<ProbeResult, SourceError> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(ProbeResult::Text("it runs".into()))
        }
    }

    /// Returns the failures of a probe about so many hosts, in a job of `procs` processes.
    async fn failures(procs: usize, hosts: usize) -> Vec<String> {
        let queues = Arc::new(FactQueues::new(JobClock::from(JobTime::START)));
        let (urgent, mut answers) = mpsc::channel(hosts);
        let mut sources = Sources::spawn(vec![Box::new(Slow)], procs, &queues, &urgent);
        let about = (0..hosts).map(|host| Domain::Node(NodeId(Name::from(format!("h{host}"))))).collect();
        sources.collect(CommandId(1), &Probe::new("test", "state", about, Duration::from_secs(60)));
        let mut failed = Vec::new();
        for _ in 0..hosts {
            let Some(Input::Answered { results, .. }) = answers.recv().await else { panic!("an answer for each") };
            failed.extend(results.into_iter().filter_map(|(_, result)| Some(result.err()?.to_string())));
        }
        failed
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_of_thousands_of_hosts_is_asked_about_all_of_them() {
        assert_eq!(failures(10_000, 10_000).await, Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_bound_are_counted_and_answered() {
        let failed = failures(2, 100).await;
        assert!(failed.len() >= 34 && failed.len() < 40, "{}", failed.len()); // one or so is under way
        assert!(failed.iter().all(|why| why.contains("64 probes wait for the source slow already")), "{failed:?}");
        assert!(
            failed.iter().any(|why| why.contains(&format!("({} were refused so far)", failed.len()))),
            "{failed:?}"
        );
    }
}

//! Takes the facts of every host's sources to the manager: one call per host waits for them, and its answer brings what
//! all sources of the host have reported meanwhile.

use super::Inner;
use super::host::{Host, Session};
use crate::clock_offset::own_nanos;
use crate::session::{CallError, Request};
use crate::wire::{FactsEntry, FactsItem, FactsMessage, NextArguments, decode, encode, method};
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::trace::{Signal, SourceInfo, TraceBatch};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;

/// Messages of hosts that may wait for the runtime. While that many wait, facts stay on their hosts.
const MESSAGES_MAX: usize = 1024;
/// Time after which a host is called again that has not answered, or not in a form that can be read.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the sources of a host have reported to this manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FactCounts {
    /// Messages with facts.
    pub messages: u64,
    /// Facts in them.
    pub facts: u64,
    /// Facts that the host has dropped, because a queue was full or a message could not be sent.
    pub lost: u64,
    /// Errors of sources.
    pub failed: u64,
    /// Times that a message waited because the runtime takes facts too slowly.
    pub waited: u64,
}

/// Facts of one message, batch by batch.
#[derive(Debug)]
pub(super) struct Received {
    /// When the message came: the ages of its facts count until then.
    pub(super) at: Instant,
    pub(super) batches: Vec<TraceBatch>,
}

/// The facts of all hosts on their way to the runtime.
#[derive(Debug)]
pub(super) struct Facts {
    sender: mpsc::Sender<Received>,
    pub(super) receiver: Arc<Mutex<mpsc::Receiver<Received>>>,
    /// True once a source was handed out: before that, facts stay on their hosts.
    wanted: watch::Sender<bool>,
}

impl Default for Facts {
    fn default() -> Facts {
        let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
        Facts { sender, receiver: Arc::new(Mutex::new(receiver)), wanted: watch::Sender::new(false) }
    }
}

impl Facts {
    /// Begins to take facts from hosts.
    pub(super) fn want(&self) {
        self.wanted.send_replace(true);
    }
}

/// Takes the facts of a host, until the host has left or the manager's epoch is over.
pub(super) async fn pull(manager: &Inner, host: &Host) {
    let _ = manager.facts.wanted.subscribe().wait_for(|wanted| *wanted).await; // the sender is in `manager`
    let (mut agent, mut taken) = (String::new(), 0);
    loop {
        let session = host.session();
        if host.sources().is_empty() {
            host.other_session(session.id).await;
            continue;
        }
        if agent != session.instance {
            (agent, taken) = (session.instance.clone(), 0); // another agent numbers from 1
        }
        match next(&session, taken).await {
            Ok(message) => {
                let (received, last) = accept(manager, host, message, taken);
                taken = last;
                if let Some(received) = received {
                    hand_over(manager, host, received).await;
                }
            }
            Err(Missed::UntilReplaced(why)) => {
                tracing::warn!(host = %host.name, %why, "the facts of a host are missing until its agent connects again");
                host.other_session(session.id).await;
            }
            // The session has ended, or has no room for the call.
            Err(Missed::Ended) => _ = tokio::time::timeout(RETRY_AFTER, host.other_session(session.id)).await,
            Err(Missed::Unreadable(why)) => {
                tracing::warn!(host = %host.name, %why, "facts of a host cannot be read");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

/// Why a call brought no facts.
enum Missed {
    /// The session has ended: another one follows, or the host is lost.
    Ended,
    /// The agent cannot answer, for this reason.
    UntilReplaced(String),
    Unreadable(String),
}

async fn next(session: &Session, after: u64) -> Result<FactsMessage, Missed> {
    let unreadable = |error: crate::wire::BodyError| Missed::Unreadable(error.to_string());
    let arguments = encode(&NextArguments { after }).map_err(unreadable)?;
    match session.calls.call(Request::new(method::SOURCES_NEXT, arguments), true).await {
        Ok(answer) => decode(&answer).map_err(unreadable),
        Err(CallError::Ended(_)) => Err(Missed::Ended),
        Err(error @ CallError::UnknownMethod(_)) => Err(Missed::UntilReplaced(error.to_string())),
        Err(CallError::Failed(error)) => match decode::<taskd_runtime::launch::LaunchError>(&error) {
            Ok(error) => Err(Missed::Unreadable(error.to_string())),
            Err(error) => Err(unreadable(error)),
        },
    }
}

/// Returns the facts of a message that were not taken before, and the number of its last entry.
fn accept(manager: &Inner, host: &Host, message: FactsMessage, taken: u64) -> (Option<Received>, u64) {
    let under_way = host.passed(message.sent_nanos, own_nanos(&manager.begun), manager.settings.clock_rate_ppm);
    let (sources, at) = (host.sources(), Instant::now());
    let (mut last, mut batches) = (taken, Vec::new());
    let mut counts = FactCounts { messages: 1, ..FactCounts::default() };
    for FactsEntry { number, source, item } in message.entries {
        if number <= last {
            continue; // taken before
        }
        last = number;
        let name = || usize::try_from(source).ok().and_then(|at| sources.get(at)).map_or("?", name_of);
        match item {
            FactsItem::Facts(mut facts) => {
                for fact in &mut facts {
                    fact.age = fact.age.saturating_add(under_way);
                    match fact.signal {
                        Signal::Lost { count } => counts.lost = counts.lost.saturating_add(count),
                        _ => counts.facts += 1,
                    }
                }
                batches.push(TraceBatch::of(facts));
            }
            // One host's source must not end the source of all hosts, as errors in a row would.
            FactsItem::Failed(why) => {
                counts.failed += 1;
                let error = taskd_runtime::trace::SourceError::from(why);
                tracing::warn!(host = %host.name, source = name(), %error, "a trace source of a host failed to deliver");
            }
            FactsItem::Ended(Some(why)) => {
                counts.failed += 1;
                tracing::error!(host = %host.name, source = name(), %why, "a trace source of a host has ended");
            }
            FactsItem::Ended(None) => {
                tracing::info!(host = %host.name, source = name(), "a trace source of a host has no more facts");
            }
        }
    }
    host.count(|all| all.add(counts));
    let received = (!batches.is_empty()).then_some(Received { at, batches });
    (received, last)
}

fn name_of(source: &SourceInfo) -> &str {
    source.name.as_str()
}

/// Passes facts to the runtime; waits while it has no room, and the host waits then, too.
async fn hand_over(manager: &Inner, host: &Host, received: Received) {
    match manager.facts.sender.try_send(received) {
        Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {} // closed: the manager ends
        Err(mpsc::error::TrySendError::Full(received)) => {
            host.count(|all| all.waited += 1);
            let _ = manager.facts.sender.send(received).await; // as above
        }
    }
}

impl FactCounts {
    fn add(&mut self, more: FactCounts) {
        self.messages += more.messages;
        self.facts += more.facts;
        self.lost = self.lost.saturating_add(more.lost);
        self.failed += more.failed;
    }
}

//! Channels to etcd's members, and calls that go on with the next member if one does not answer.

use super::EtcdSettings;
use crate::consensus::ConsensusError;
use std::error::Error;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, ConnectError, Status};

/// Wait after every endpoint has failed once, before the next round.
pub(super) const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Shortest time that an endpoint has for its answer, if the call's limit permits it.
const SHARE_MIN: Duration = Duration::from_millis(250);
/// Bytes of an error's text that are kept.
const REASON_BYTES_MAX: usize = 300;

/// Whether a call that got no answer is made again: the server may have carried it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// The call has the same effect if it is made twice.
    Always,
    /// Only if it is certain that no server got it.
    IfUnsent,
}

/// Channels to the members of one etcd.
#[derive(Debug)]
pub(super) struct Pool {
    members: Vec<(String, Channel)>,
    /// Index of the endpoint that is asked first, modulo their number: the one after the last that failed.
    preferred: AtomicUsize,
    /// Number of calls to an endpoint that failed.
    failures: AtomicU64,
    pub(super) limit: Duration,
    pub(super) runtime: Handle,
}

impl Pool {
    pub(super) fn new(settings: &EtcdSettings) -> Result<Pool, ConsensusError> {
        let no_runtime = |_| ConsensusError::Refused("etcd: create the engine inside a tokio runtime".into());
        let runtime = Handle::try_current().map_err(no_runtime)?;
        let mut members = Vec::new();
        for uri in &settings.endpoints {
            let channel = (settings.channels)(uri)
                .map_err(|error| ConsensusError::Refused(format!("etcd: endpoint {uri}: {}", reason(&*error))))?;
            members.push((uri.clone(), channel));
        }
        let (preferred, failures) = (AtomicUsize::new(0), AtomicU64::new(0));
        Ok(Pool { members, preferred, failures, limit: settings.limit, runtime })
    }

    /// Makes a call within the pool's time limit.
    pub(super) async fn call<T, F>(
        &self,
        what: &str,
        again: Again,
        call: impl Fn(Channel) -> F + Send + Sync,
    ) -> Result<T, ConsensusError>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        self.call_within(self.limit, what, again, call).await
    }

    /// Makes a call on one endpoint after the other, until one answers or the time is over.
    pub(super) async fn call_within<T, F>(
        &self,
        limit: Duration,
        what: &str,
        again: Again,
        call: impl Fn(Channel) -> F + Send + Sync,
    ) -> Result<T, ConsensusError>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let deadline = Instant::now() + limit;
        let number = self.members.len().max(1);
        let share = (limit / u32::try_from(number).unwrap_or(u32::MAX)).max(SHARE_MIN.min(limit));
        for round in 1_u64.. {
            let (at, uri, channel) = self.preferred()?;
            let end = deadline.min(Instant::now() + share);
            let why = match timeout_at(end, call(channel)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) if is_refusal(&status) => {
                    let why = reason(&status);
                    return Err(ConsensusError::Refused(format!("etcd: {what}: {uri} refuses: {why}")));
                }
                Ok(Err(status)) => {
                    self.failed(at);
                    if again == Again::IfUnsent && !is_unsent(&status) {
                        return Err(unavailable(what, uri, &reason(&status)));
                    }
                    reason(&status)
                }
                Err(_) => {
                    self.failed(at);
                    let why = format!("no answer within {share:?}");
                    if again == Again::IfUnsent {
                        return Err(unavailable(what, uri, &why));
                    }
                    why
                }
            };
            let over_after_pause = Instant::now() + ROUND_PAUSE >= deadline;
            if round.is_multiple_of(number as u64) {
                if over_after_pause {
                    return Err(unavailable(what, uri, &why));
                }
                sleep_until(Instant::now() + ROUND_PAUSE).await;
            } else if Instant::now() >= deadline {
                return Err(unavailable(what, uri, &why));
            }
        }
        Err(unavailable(what, "every endpoint", "no answer"))
    }

    /// Returns the endpoint that is asked first, with its place for [`failed`](Pool::failed).
    pub(super) fn preferred(&self) -> Result<(usize, &str, Channel), ConsensusError> {
        let at = self.preferred.load(Relaxed);
        let member = at.checked_rem(self.members.len()).and_then(|index| self.members.get(index));
        let (uri, channel) = member.ok_or_else(|| ConsensusError::Refused("etcd: no endpoint is given".into()))?;
        Ok((at, uri, channel.clone()))
    }

    /// Notes that an endpoint has failed, so that the next call begins with another one.
    pub(super) fn failed(&self, at: usize) {
        self.failures.fetch_add(1, Relaxed);
        // A concurrent call may have moved on already.
        let _ = self.preferred.compare_exchange(at, at.wrapping_add(1), Relaxed, Relaxed);
    }

    /// Returns the number of calls to an endpoint that failed.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }
}

pub(super) fn unavailable(what: &str, uri: &str, why: &str) -> ConsensusError {
    ConsensusError::Unavailable(format!("etcd: {what}: {uri}: {why}"))
}

/// Returns true if another endpoint, or the same one later, would not answer otherwise.
fn is_refusal(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented => true,
        // The quota of the database is used up until an operator frees space (etcd's alarm NOSPACE).
        Code::ResourceExhausted => status.message().contains("space exceeded"),
        _ => false,
    }
}

/// Returns true if it is certain that no server got the call: there was no connection.
fn is_unsent(status: &Status) -> bool {
    let mut source: Option<&(dyn Error + 'static)> = Some(status);
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Formats an error with its cause.
pub(super) fn reason(error: &(dyn Error + 'static)) -> String {
    let mut text = match error.downcast_ref::<Status>() {
        Some(status) => format!("{:?}: {}", status.code(), status.message()),
        None => error.to_string(),
    };
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    let cause = last.to_string();
    if !text.contains(&cause) && last.downcast_ref::<Status>().is_none() {
        text = format!("{text} ({cause})");
    }
    let end = (0..=REASON_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
    text
}

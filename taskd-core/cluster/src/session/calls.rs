//! Calls over a session: each has a number, and gets one answer.

use super::link::{Link, LinkEnd};
use crate::wire::proto::{Answer, Call, Cancel, ToAgent, answer, frame::Body};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tonic::Status;

/// Maximum number of calls of one session that wait for their answers. Further calls fail.
const CALLS_MAX: usize = 1024;

/// What a manager sends to an agent: messages, and at last perhaps the reason why the session ends.
pub(crate) type Outgoing = Result<ToAgent, Status>;

/// Error of a call.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// The session ended before the answer came: whether the call was carried out is not known.
    #[error("{0}")]
    Ended(String),
    /// The called trait returned this error, in its encoded form.
    #[error("the call failed")]
    Failed(Bytes),
    /// The agent does not know the method.
    #[error("the agent does not know {0}: it runs an older version of taskd")]
    UnknownMethod(String),
}

/// The calls of a manager over one session.
#[derive(Debug)]
pub(crate) struct Calls {
    link: Arc<Link<Outgoing>>,
    epoch: u64,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    answers: BTreeMap<u64, oneshot::Sender<Answer>>,
    ended: Option<LinkEnd>,
}

impl Calls {
    pub(crate) fn new(link: Arc<Link<Outgoing>>, epoch: u64) -> Calls {
        Calls { link, epoch, waiting: Mutex::default() }
    }

    /// Calls a method and waits for its answer. A call without effect is `cancellable`: the agent stops it when this future
    /// is dropped. Any other is carried out anyway.
    pub(crate) async fn call(
        &self,
        method: &'static str,
        arguments: Bytes,
        cancellable: bool,
    ) -> Result<Bytes, CallError> {
        let (sender, answer) = oneshot::channel();
        let id = self.begin(sender)?;
        let mut waiter = Waiter { calls: self, id, cancels: false };
        let call = Call { id, epoch: self.epoch, method: method.into(), arguments };
        self.link.send(Body::Call(call)).await.map_err(|end| CallError::Ended(end.0))?;
        waiter.cancels = cancellable;
        let answer = answer.await.map_err(|_| CallError::Ended(self.end_reason()));
        waiter.cancels = false;
        match answer?.result {
            Some(answer::Result::Value(value)) => Ok(value),
            Some(answer::Result::Error(error)) => Err(CallError::Failed(error)),
            Some(answer::Result::UnknownMethod(method)) => Err(CallError::UnknownMethod(method)),
            None => Err(CallError::UnknownMethod(format!("the form of the answer to {method}"))),
        }
    }

    /// Calls a method, and does not wait for its answer.
    pub(crate) fn post(&self, method: &'static str, arguments: Bytes) {
        let id = {
            let mut waiting = self.lock();
            waiting.last += 1;
            waiting.last
        };
        self.link.send_now(Body::Call(Call { id, epoch: self.epoch, method: method.into(), arguments }));
    }

    fn begin(&self, sender: oneshot::Sender<Answer>) -> Result<u64, CallError> {
        let mut waiting = self.lock();
        if let Some(end) = &waiting.ended {
            return Err(CallError::Ended(end.0.clone()));
        }
        if waiting.answers.len() >= CALLS_MAX {
            return Err(CallError::Ended(format!("{CALLS_MAX} calls wait for the agent's answers already")));
        }
        waiting.last += 1;
        let id = waiting.last;
        waiting.answers.insert(id, sender);
        Ok(id)
    }

    /// Delivers an answer to its caller. Returns false if no call waits for it any more.
    pub(crate) fn answered(&self, answer: Answer) -> bool {
        let waiter = self.lock().answers.remove(&answer.call);
        waiter.is_some_and(|waiter| waiter.send(answer).is_ok())
    }

    /// Ends all calls of the session.
    pub(crate) fn end(&self, why: &str) {
        let answers = {
            let mut waiting = self.lock();
            waiting.ended.get_or_insert_with(|| LinkEnd(why.into()));
            std::mem::take(&mut waiting.answers)
        };
        drop(answers); // their callers return
        self.link.end(why);
    }

    fn end_reason(&self) -> String {
        self.lock().ended.as_ref().map_or_else(|| "the call was given up".into(), |end| end.0.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

/// Removes a call that its caller no longer waits for.
struct Waiter<'a> {
    calls: &'a Calls,
    id: u64,
    /// True if the agent has to stop the call.
    cancels: bool,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.calls.lock().answers.remove(&self.id);
        if self.cancels {
            self.calls.link.send_now(Body::Cancel(Cancel { call: self.id }));
        }
    }
}

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
    pub(crate) async fn call(&self, request: Request, cancellable: bool) -> Result<Bytes, CallError> {
        let mut pending = self.begin()?;
        pending.send(request, Sent { cancellable, relayed: false }).await?;
        pending.answer().await
    }

    /// Calls a method, and does not wait for its answer.
    pub(crate) fn post(&self, method: &'static str, arguments: Bytes) {
        let id = {
            let mut waiting = self.lock();
            waiting.last += 1;
            waiting.last
        };
        let request = Request { method, arguments, shared: Bytes::new() };
        self.link.send_now(Body::Call(request.into_call(id, self.epoch, false)));
    }

    /// Begins a call: gives it a number. It is sent by [`Pending::send`], or by a relay.
    pub(crate) fn begin(&self) -> Result<Pending<'_>, CallError> {
        let (sender, answer) = oneshot::channel();
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
        Ok(Pending { calls: self, id, answer, cancels: false })
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

/// What is called.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) arguments: Bytes,
    /// What the calls of one broadcast have in common; empty over a session of version 1.
    pub(crate) shared: Bytes,
}

impl Request {
    pub(crate) const fn new(method: &'static str, arguments: Bytes) -> Request {
        Request { method, arguments, shared: Bytes::new() }
    }

    fn into_call(self, id: u64, epoch: u64, relayed: bool) -> Call {
        let Request { method, arguments, shared } = self;
        Call { id, epoch, method: method.into(), arguments, shared, relayed }
    }
}

/// How a call is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// True if the agent stops the call when its caller no longer waits for it.
    pub(crate) cancellable: bool,
    /// True if a relay may have passed the call on before.
    pub(crate) relayed: bool,
}

/// A call that waits for its answer. When it is dropped, an answer has no caller any more.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    calls: &'a Calls,
    pub(crate) id: u64,
    answer: oneshot::Receiver<Answer>,
    /// True if the agent has to stop the call.
    cancels: bool,
}

impl Pending<'_> {
    /// Sends the call over its session.
    pub(crate) async fn send(&mut self, request: Request, how: Sent) -> Result<(), CallError> {
        let call = request.into_call(self.id, self.calls.epoch, how.relayed);
        self.calls.link.send(Body::Call(call)).await.map_err(|end| CallError::Ended(end.0))?;
        self.cancels = how.cancellable;
        Ok(())
    }

    /// Waits for the answer. Cancel-safe; must not be called again after it has returned.
    pub(crate) async fn answer(&mut self) -> Result<Bytes, CallError> {
        let answer = (&mut self.answer).await.map_err(|_| CallError::Ended(self.calls.end_reason()));
        self.cancels = false;
        match answer?.result {
            Some(answer::Result::Value(value)) => Ok(value),
            Some(answer::Result::Error(error)) => Err(CallError::Failed(error)),
            Some(answer::Result::UnknownMethod(method)) => Err(CallError::UnknownMethod(method)),
            None => Err(CallError::UnknownMethod("the form of the agent's answer".into())),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.calls.lock().answers.remove(&self.id);
        if self.cancels {
            self.calls.link.send_now(Body::Cancel(Cancel { call: self.id }));
        }
    }
}

//! Calls to many agents at once: a few relays get them all, and pass them on. Without relays, or for few calls, each
//! agent is called over its own session.
//!
//! An answer that does not come in time through relays is fetched over the session: the manager makes the call itself,
//! with the same number, and the agent carries it out once.

use super::host::{Host, Session, Visibility};
use super::{Inner, Manager};
use crate::relay::parts;
use crate::session::{CallError, Request, Sent};
use crate::wire::BODY_BYTES_MAX;
use crate::wire::proto::{Answer, RelayAnswers, RelayCall, RelayRequest, frame::Body};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::unconstrained;
use tokio::time::sleep;

/// Numbers of the calls of a manager to many agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayCounts {
    /// Number of calls that were given to relays.
    pub relayed: u64,
    /// Number of requests in which they left: one for each relay that the manager called.
    pub requests: u64,
    /// Number of calls that did not reach their agents through relays: the manager made them itself.
    pub unreached: u64,
    /// Number of calls without an answer in time: the manager made them itself.
    pub late: u64,
}

/// The calls of one manager that are on their way through relays.
pub(super) struct Broadcasts {
    queue: mpsc::UnboundedSender<Submission>,
    /// Number of agents to which one sender passes calls on; 0 for no relays.
    fanout: AtomicU32,
    /// Number of broadcasts that still submit calls.
    submitting: watch::Sender<usize>,
    open: Mutex<BTreeMap<u64, BTreeMap<u32, Target>>>,
    last: AtomicU64,
    relayed: AtomicU64,
    unreached: AtomicU64,
    late: AtomicU64,
}

/// A call that may leave with others.
pub(super) struct Submission {
    session: Arc<Session>,
    address: String,
    call: u64,
    request: Request,
    direct: oneshot::Sender<bool>,
}

/// The agent of a call that was given to a relay.
struct Target {
    session: Arc<Session>,
    call: u64,
    /// Makes the caller call the agent itself; true if a relay may have passed the call on.
    direct: oneshot::Sender<bool>,
}

impl Broadcasts {
    /// Returns the broadcasts of a manager, and the calls that [`send`] collects.
    pub(super) fn new(fanout: u32) -> (Broadcasts, mpsc::UnboundedReceiver<Submission>) {
        let (queue, submissions) = mpsc::unbounded_channel();
        let zero = || AtomicU64::new(0);
        let broadcasts = Broadcasts {
            queue,
            fanout: AtomicU32::new(fanout),
            submitting: watch::Sender::new(0),
            open: Mutex::default(),
            last: zero(),
            relayed: zero(),
            unreached: zero(),
            late: zero(),
        };
        (broadcasts, submissions)
    }

    /// Makes calls to many agents: those that leave together go through relays together. They are submitted when
    /// `calls` is polled for the first time.
    pub(super) async fn together<F: Future>(&self, calls: F) -> F::Output {
        let mut submitting = Some(Submitting::new(&self.submitting));
        let mut calls = pin!(calls);
        poll_fn(|context| {
            let polled = calls.as_mut().poll(context);
            submitting = None;
            polled
        })
        .await
    }

    pub(super) fn set_fanout(&self, fanout: u32) {
        self.fanout.store(fanout, Ordering::Relaxed);
    }

    fn fanout(&self) -> u32 {
        self.fanout.load(Ordering::Relaxed)
    }

    pub(super) fn counts(&self) -> RelayCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (relayed, requests) = (count(&self.relayed), count(&self.last));
        RelayCounts { relayed, requests, unreached: count(&self.unreached), late: count(&self.late) }
    }

    /// Delivers answers that came through a relay.
    pub(super) fn answered(&self, answers: RelayAnswers) {
        for answer in answers.answers {
            let target = {
                let mut open = self.lock();
                let Some(targets) = open.get_mut(&answers.id) else { return }; // too late: the manager has called them
                let target = targets.remove(&answer.index);
                if targets.is_empty() {
                    open.remove(&answers.id);
                }
                target
            };
            let Some(Target { session, call, direct }) = target else { continue };
            match answer.answer {
                Some(answer) => _ = session.calls.answered(Answer { call, ..answer }),
                None => {
                    self.unreached.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(instance = %session.instance, why = %answer.unreached, "a relayed call is made directly");
                    let _ = direct.send(true); // a caller that does not wait needs no call
                }
            }
        }
    }

    /// Makes the calls of a request directly that are not answered.
    fn give_up(&self, id: u64) {
        let targets = self.lock().remove(&id).unwrap_or_default();
        self.late.fetch_add(targets.len() as u64, Ordering::Relaxed);
        targets.into_values().for_each(|target| _ = target.direct.send(true));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, BTreeMap<u32, Target>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

impl Manager {
    /// Replaces [`relay_fanout`](crate::ClusterSettings::relay_fanout) for later calls.
    pub fn set_relay_fanout(&self, fanout: u32) {
        self.inner.broadcasts.set_fanout(fanout);
    }

    /// Returns the numbers of calls that were given to relays, and of those that the manager then made itself.
    #[must_use]
    pub fn relay_counts(&self) -> RelayCounts {
        self.inner.broadcasts.counts()
    }
}

impl Inner {
    /// Makes a call with an effect, through relays if many leave at once. Calls to one agent begin in the order of this
    /// function's calls.
    pub(super) async fn order(
        &self,
        host: &Host,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<Bytes, CallError> {
        let mut pending = session.calls.begin()?;
        let in_order = unconstrained(session.order.lock()).await; // else tokio makes some calls of a broadcast yield
        let mut relayed = false;
        if let Some(address) = self.relay_address(host, session) {
            let (direct, called) = oneshot::channel();
            let (session, call, request) = (Arc::clone(session), pending.id, request.clone());
            let _ = self.broadcasts.queue.send(Submission { session, address, call, request, direct });
            tokio::select! {
                biased;
                answer = pending.answer() => return answer,
                called = called => relayed = called.unwrap_or(true),
            }
        }
        pending.send(request, Sent { cancellable: false, relayed }).await?;
        drop(in_order);
        pending.answer().await
    }

    /// Returns the address at which relays reach an agent; `None` if the agent is called directly.
    fn relay_address(&self, host: &Host, session: &Session) -> Option<String> {
        let fanout = usize::try_from(self.broadcasts.fanout()).ok().filter(|fanout| *fanout > 0)?;
        let many = *self.listed.borrow() > fanout;
        let reached = many && session.relays() && *host.sight.borrow() == Visibility::Seen;
        reached.then(|| host.peer_address()).flatten()
    }
}

/// A broadcast that still submits calls.
struct Submitting<'a>(&'a watch::Sender<usize>);

impl Submitting<'_> {
    fn new(submitting: &watch::Sender<usize>) -> Submitting<'_> {
        submitting.send_modify(|submitting| *submitting += 1);
        Submitting(submitting)
    }
}

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|submitting| *submitting = submitting.saturating_sub(1));
    }
}

/// Collects calls that leave at once, and sends them.
pub(super) async fn send(manager: Weak<Inner>, mut queue: mpsc::UnboundedReceiver<Submission>) {
    while let Some(first) = queue.recv().await {
        let Some(broadcasts) = manager.upgrade() else { return };
        let mut submitting = broadcasts.broadcasts.submitting.subscribe();
        drop(broadcasts);
        if submitting.wait_for(|submitting| *submitting == 0).await.is_err() {
            return; // the manager has ended
        }
        let mut calls = vec![first];
        while let Ok(next) = queue.try_recv() {
            calls.push(next);
        }
        let Some(manager) = manager.upgrade() else { return };
        // Those of one broadcast share the bytes of what they have in common.
        let mut alike: BTreeMap<_, Vec<Submission>> = BTreeMap::new();
        for call in calls {
            let shared = &call.request.shared;
            alike.entry((call.request.method, shared.as_ptr() as usize, shared.len())).or_default().push(call);
        }
        alike.into_values().for_each(|calls| manager.broadcast(calls));
    }
}

impl Inner {
    /// Sends the calls of one method, through relays if there are more than one sender calls.
    fn broadcast(self: &Arc<Self>, mut calls: Vec<Submission>) {
        let fanout = usize::try_from(self.broadcasts.fanout()).unwrap_or(usize::MAX);
        if fanout == 0 || calls.len() <= fanout {
            return calls.into_iter().for_each(|call| _ = call.direct.send(false));
        }
        calls.sort_by(|a, b| a.address.cmp(&b.address)); // the tree stays the same, and so do its connections
        for part in parts(calls, fanout) {
            self.relay(part);
        }
    }

    /// Gives calls to the agent of the first one.
    fn relay(self: &Arc<Self>, calls: Vec<Submission>) {
        let length = |call: &Submission| call.request.arguments.len() + call.address.len();
        let Some((first, request)) = calls.first().map(|call| (Arc::clone(&call.session), call.request.clone())) else {
            return;
        };
        if request.shared.len() + calls.iter().map(length).sum::<usize>() > BODY_BYTES_MAX / 2 {
            return calls.into_iter().for_each(|call| _ = call.direct.send(false));
        }
        self.broadcasts.relayed.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let (mut targets, mut passed) = (BTreeMap::new(), Vec::with_capacity(calls.len()));
        for (index, submission) in (0..).zip(calls) {
            let Submission { session, address, call, request, direct } = submission;
            let (relay_key, arguments) = (session.relay_key.clone(), request.arguments);
            passed.push(RelayCall { index, address, session: session.id, relay_key, call, arguments });
            targets.insert(index, Target { session, call, direct });
        }
        let id = self.broadcasts.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.broadcasts.lock().insert(id, targets);
        let request = RelayRequest {
            id,
            job: self.job.clone(),
            epoch: self.epoch.0,
            method: request.method.into(),
            shared: request.shared,
            fanout: self.broadcasts.fanout(),
            calls: passed,
        };
        let manager = Arc::clone(self);
        tokio::spawn(async move {
            if first.link.send(Body::Relay(request)).await.is_ok() {
                sleep(manager.settings.relay_within).await;
            }
            manager.broadcasts.give_up(id);
        });
    }
}

//! The calls that the agent carries out now.

use super::Shared;
use super::once::{Begun, Once};
use super::serve::{Special, forgotten, superseded, too_many};
use super::start::serve_with_lease;
use crate::checks::Check;
use crate::clock::Moment;
use crate::session::Link;
use crate::wire::proto::{Answer, Call, RelayRequest, ToManager, frame::Body};
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of calls that run at the same time. Further calls are answered with an error.
const RUNNING_MAX: usize = 2048;

/// The running calls of one session. They end when this value is dropped.
pub(super) struct Running {
    link: Arc<Link<ToManager>>,
    tasks: JoinSet<()>,
    known: Arc<Mutex<Known>>,
}

/// What is known of the session's calls.
#[derive(Default)]
struct Known {
    cancellable: BTreeMap<u64, AbortHandle>,
    relayed: Once,
}

impl Running {
    pub(super) fn new(link: Arc<Link<ToManager>>) -> Running {
        Running { link, tasks: JoinSet::new(), known: Arc::default() }
    }

    /// Begins a call of the manager, and sends its answer when it is done. A call of an epoch that is over is rejected.
    pub(super) fn begin(&mut self, shared: &Arc<Shared>, call: Call) {
        let begun = match call.relayed {
            true => lock(&self.known).relayed.begin(call.id, true),
            false => Begun::New,
        };
        match begun {
            Begun::New => self.spawn(shared, call, None),
            Begun::Running => {}
            Begun::Done(answer) => self.link.send_now(Body::Answer(answer)),
            Begun::Forgotten => self.link.send_now(Body::Answer(forgotten(&call))),
        }
    }

    /// Begins a call that came through a relay, which gets the answer. Without one, the manager makes the call itself.
    pub(super) fn begin_relayed(&mut self, shared: &Arc<Shared>, call: Call, relay: oneshot::Sender<Answer>) {
        let begun = lock(&self.known).relayed.begin(call.id, false);
        match begun {
            Begun::New => self.spawn(shared, call, Some(relay)),
            Begun::Done(answer) => _ = relay.send(answer), // an answer twice is harmless
            Begun::Running | Begun::Forgotten => {}
        }
    }

    /// Passes calls on to other agents, and sends their answers.
    pub(super) fn relay(&mut self, shared: &Arc<Shared>, request: RelayRequest) {
        while self.tasks.try_join_next().is_some() {}
        let (link, forwarder) = (Arc::clone(&self.link), shared.forwarder.clone());
        let Some(forwarder) = forwarder else { return }; // the manager makes the calls itself
        self.tasks.spawn(async move {
            let mut answers = forwarder.relays().run(request);
            while let Some(batch) = answers.next().await {
                if link.send(Body::Relayed(batch)).await.is_err() {
                    return; // the session has ended: no caller waits
                }
            }
        });
    }

    fn spawn(&mut self, shared: &Arc<Shared>, call: Call, relay: Option<oneshot::Sender<Answer>>) {
        while self.tasks.try_join_next().is_some() {}
        if self.tasks.len() >= RUNNING_MAX {
            let answer = too_many(&call);
            if call.relayed {
                lock(&self.known).relayed.end(&answer);
            }
            return self.link.send_now(Body::Answer(answer));
        }
        let (shared, link, known, id) = (Arc::clone(shared), Arc::clone(&self.link), Arc::clone(&self.known), call.id);
        let task = async move {
            let answer = carry_out(&shared, &call).await;
            let from_manager = {
                let mut known = lock(&known);
                known.cancellable.remove(&call.id);
                !call.relayed || known.relayed.end(&answer)
            };
            // A relay that is lost leaves the answer to the session.
            let answer = match relay.filter(|_| !from_manager) {
                Some(relay) => relay.send(answer).err(),
                None => Some(answer),
            };
            if let Some(answer) = answer {
                let _ = link.send(Body::Answer(answer)).await; // the session has ended: no caller waits
            }
        };
        // Held while the task begins, so that its end finds the entry.
        let mut known = lock(&self.known);
        known.cancellable.insert(id, self.tasks.spawn(task));
    }

    /// Stops a call that its caller no longer waits for.
    pub(super) fn cancel(&mut self, call: u64) {
        let task = lock(&self.known).cancellable.remove(&call);
        if let Some(task) = task {
            task.abort();
        }
    }
}

/// Carries out a call, and what it orders of the agent itself. Returns its answer.
async fn carry_out(shared: &Shared, call: &Call) -> Answer {
    let epoch = shared.epoch.load(Ordering::SeqCst);
    if call.epoch < epoch && shared.settings.checks.has(Check::Epoch) {
        return superseded(call, epoch);
    }
    let (answer, special) = serve_with_lease(shared, call).await;
    match special {
        Some(Special::Keep(time)) => {
            if let Some(until) = Moment::now().plus(time) {
                shared.change_lease(|lease| {
                    lease.hand_over(call.epoch, until);
                    true
                });
            }
        }
        Some(Special::End(result)) => _ = shared.ended.send_replace(Some(result)),
        Some(Special::Candidates(addresses)) => shared.managers.learn(addresses),
        Some(Special::Refuse(why)) => _ = shared.refused.send_replace(Some(why)),
        None => {}
    }
    answer
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
}

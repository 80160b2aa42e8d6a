//! The calls that the agent carries out now.

use super::Shared;
use super::serve::{Special, superseded, too_many};
use super::start::serve_with_lease;
use crate::clock::Moment;
use crate::session::Link;
use crate::wire::proto::{Call, ToManager, frame::Body};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of calls that run at the same time. Further calls are answered with an error.
const RUNNING_MAX: usize = 2048;

/// The running calls of one session. They end when this value is dropped.
pub(super) struct Running {
    link: Arc<Link<ToManager>>,
    tasks: JoinSet<()>,
    cancellable: Arc<Mutex<BTreeMap<u64, AbortHandle>>>,
}

impl Running {
    pub(super) fn new(link: Arc<Link<ToManager>>) -> Running {
        Running { link, tasks: JoinSet::new(), cancellable: Arc::default() }
    }

    /// Begins a call, and sends its answer when it is done. A call of an epoch that is over is rejected.
    pub(super) fn begin(&mut self, shared: &Arc<Shared>, call: Call) {
        while self.tasks.try_join_next().is_some() {}
        if self.tasks.len() >= RUNNING_MAX {
            return self.link.send_now(Body::Answer(too_many(&call)));
        }
        let (shared, link) = (Arc::clone(shared), Arc::clone(&self.link));
        let (cancellable, id) = (Arc::clone(&self.cancellable), call.id);
        let task = async move {
            let epoch = shared.epoch.load(Ordering::SeqCst);
            let answer = if call.epoch < epoch {
                superseded(&call, epoch)
            } else {
                let (answer, special) = serve_with_lease(&shared, &call).await;
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
                    None => {}
                }
                answer
            };
            cancellable.lock().unwrap_or_else(PoisonError::into_inner).remove(&call.id);
            let _ = link.send(Body::Answer(answer)).await; // the session has ended: no caller waits
        };
        // Held while the task begins, so that its end finds the entry.
        let mut known = self.cancellable.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(id, self.tasks.spawn(task));
    }

    /// Stops a call that its caller no longer waits for.
    pub(super) fn cancel(&mut self, call: u64) {
        let task = self.cancellable.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
        if let Some(task) = task {
            task.abort();
        }
    }
}

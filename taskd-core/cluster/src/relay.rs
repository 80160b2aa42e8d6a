//! Passes the calls of a broadcast on to other agents, and takes those that other agents pass on.
//!
//! The agents of a broadcast form a tree: each carries out its own call, and gives the others in equal parts to the
//! first agent of each part, up to `fanout` of them. The answers come back the same way. What a relay loses is not
//! lost: the manager makes every call itself that has no answer in time, and an agent carries out each call once.

use crate::dial::Access;
use crate::wire::proto::peer_client::PeerClient;
use crate::wire::proto::{Answer, Call, RelayAnswer, RelayAnswers, RelayCall, RelayRequest};
use crate::wire::{BODY_BYTES_MAX, MESSAGE_BYTES_MORE};
use futures::stream::{BoxStream, StreamExt, unfold};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;

/// Time within which a connection to another agent must be open.
const DIAL_WITHIN: Duration = Duration::from_secs(10);
/// Time after which a part of a broadcast is given up. Its calls are made by the manager long before.
const PART_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of broadcasts that one agent passes on at the same time. Further ones are not answered, and counted.
const RELAYS_MAX: usize = 64;
/// Maximum number of calls from other agents that wait for the agent's session. Further ones are not answered, and
/// counted.
const DELIVERIES_MAX: usize = 1024;
/// Maximum number of answers in one message, and of those that wait for it.
const ANSWERS_MAX: usize = 256;
/// Maximum number of agents to which connections are kept. Beyond it, one of them is closed.
const PEERS_MAX: usize = 1024;
/// Greatest fanout that an agent obeys.
const FANOUT_MAX: usize = 1024;

/// A call that another agent has passed on.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) call: Call,
    /// The session that the manager calls, and the secret that proves that the call is the manager's.
    pub(crate) session: u64,
    pub(crate) relay_key: String,
    /// Takes the answer. Dropped if the call is not carried out for the relay.
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// The calls that other agents pass on to this one.
pub(crate) type Deliveries = mpsc::Receiver<Delivery>;

/// The relay of one agent.
pub(crate) struct Relays {
    access: Access,
    /// Where the agent takes calls; `None` before it runs.
    agent: Mutex<Option<mpsc::Sender<Delivery>>>,
    /// The open connections to other agents.
    peers: Mutex<BTreeMap<String, Channel>>,
    running: Arc<Semaphore>,
    refused: AtomicU64,
}

/// Answers of a broadcast in the order of their arrival. When it is dropped, calls that have begun continue.
pub(crate) type Answers = BoxStream<'static, RelayAnswers>;

impl Relays {
    pub(crate) fn new(access: Access) -> Arc<Relays> {
        let running = Arc::new(Semaphore::new(RELAYS_MAX));
        let (agent, peers, refused) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Arc::new(Relays { access, agent, peers, running, refused })
    }

    /// Returns the calls that other agents pass on to this agent from now on.
    pub(crate) fn take_deliveries(&self) -> Deliveries {
        let (sender, receiver) = mpsc::channel(DELIVERIES_MAX);
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Returns the number of broadcasts and calls that were refused because as many as possible waited.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Gives the first call to this agent, and passes the others on.
    pub(crate) fn run(self: &Arc<Relays>, mut request: RelayRequest) -> Answers {
        let id = request.id;
        let (sender, receiver) = mpsc::channel(ANSWERS_MAX);
        let mut tasks = JoinSet::new();
        match Arc::clone(&self.running).try_acquire_owned() {
            Ok(permit) => {
                let own = (!request.calls.is_empty()).then(|| request.calls.remove(0));
                if let Some(own) = own {
                    tasks.spawn(Arc::clone(self).deliver(head(&request), own, sender.clone()));
                }
                let fanout = usize::try_from(request.fanout).unwrap_or(FANOUT_MAX).clamp(1, FANOUT_MAX);
                let permit = Arc::new(permit);
                for part in parts(std::mem::take(&mut request.calls), fanout) {
                    let part = RelayRequest { calls: part, ..head(&request) };
                    tasks.spawn(Arc::clone(self).pass_on(part, sender.clone(), Arc::clone(&permit)));
                }
            }
            Err(_) => {
                self.refuse();
                tasks.spawn(unreached(request.calls, "the relay passes on as many broadcasts as it can", sender));
            }
        }
        let answers = unfold((receiver, tasks), move |(mut receiver, tasks)| async move {
            let mut answers = Vec::new();
            let some = receiver.recv_many(&mut answers, ANSWERS_MAX).await > 0;
            some.then_some((RelayAnswers { id, answers }, (receiver, tasks)))
        });
        answers.boxed()
    }

    /// Gives a call to this agent, and sends its answer.
    async fn deliver(self: Arc<Relays>, head: RelayRequest, call: RelayCall, to: mpsc::Sender<RelayAnswer>) {
        let RelayCall { index, session, relay_key, call: id, arguments, .. } = call;
        let RelayRequest { epoch, method, shared, .. } = head;
        let call = Call { id, epoch, method, arguments, shared, relayed: true };
        let (answer, answered) = oneshot::channel();
        let agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let delivery = Delivery { call, session, relay_key, answer };
        let sent = agent.map(|agent| agent.try_send(delivery).is_ok());
        let unreached = match sent {
            Some(true) => match answered.await {
                Ok(answer) => {
                    let _ = to.send(RelayAnswer { index, answer: Some(answer), unreached: String::new() }).await;
                    return;
                }
                Err(_) => "the agent does not carry it out for a relay",
            },
            Some(false) => {
                self.refuse();
                "the agent has no session, or as many calls as it can take"
            }
            None => "the agent does not run",
        };
        let _ = to.send(RelayAnswer { index, answer: None, unreached: unreached.into() }).await;
    }

    /// Passes a part of a broadcast on, and sends its answers.
    async fn pass_on(
        self: Arc<Relays>,
        part: RelayRequest,
        to: mpsc::Sender<RelayAnswer>,
        _permit: Arc<OwnedSemaphorePermit>,
    ) {
        let mut open: BTreeSet<u32> = part.calls.iter().map(|call| call.index).collect();
        let address = part.calls.first().map(|call| call.address.clone()).unwrap_or_default();
        let passed = timeout(PART_WITHIN, self.pass_to(&address, part, &mut open, &to)).await;
        let why = match passed {
            Ok(Ok(())) => format!("the agent at {address} has not answered all calls"),
            Ok(Err(why)) => why,
            Err(_) => format!("the agent at {address} has not answered within {PART_WITHIN:?}"),
        };
        if !open.is_empty() {
            self.lock().remove(&address);
        }
        for index in open {
            let _ = to.send(RelayAnswer { index, answer: None, unreached: why.clone() }).await;
        }
    }

    async fn pass_to(
        &self,
        address: &str,
        part: RelayRequest,
        open: &mut BTreeSet<u32>,
        to: &mpsc::Sender<RelayAnswer>,
    ) -> Result<(), String> {
        let limit = BODY_BYTES_MAX + MESSAGE_BYTES_MORE;
        let client = PeerClient::new(self.channel(address).await?);
        let mut client = client.max_decoding_message_size(limit).max_encoding_message_size(limit);
        let failed = |status: tonic::Status| format!("the agent at {address} passes nothing on: {}", status.message());
        let request = self.access.request(part).map_err(failed)?;
        let mut answers = client.relay(request).await.map_err(failed)?.into_inner();
        while let Some(batch) = answers.message().await.map_err(failed)? {
            for answer in batch.answers {
                if open.remove(&answer.index) && to.send(answer).await.is_err() {
                    return Ok(()); // no relay or manager waits any more
                }
            }
        }
        Ok(())
    }

    /// Returns a connection to an agent, which later broadcasts use again.
    async fn channel(&self, address: &str) -> Result<Channel, String> {
        let known = self.lock().get(address).cloned();
        if let Some(channel) = known {
            return Ok(channel);
        }
        let channel = self.access.dial(address, DIAL_WITHIN).await?;
        let mut peers = self.lock();
        if peers.len() >= PEERS_MAX {
            peers.pop_first();
        }
        peers.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    fn refuse(&self) {
        if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "this agent passes on {RELAYS_MAX} broadcasts, or {DELIVERIES_MAX} calls wait for it: the manager makes \
                 further calls itself"
            );
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Channel>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

/// Returns a request without its calls.
fn head(request: &RelayRequest) -> RelayRequest {
    let RelayRequest { id, job, epoch, method, shared, fanout, .. } = request;
    RelayRequest {
        id: *id,
        job: job.clone(),
        epoch: *epoch,
        method: method.clone(),
        shared: shared.clone(),
        fanout: *fanout,
        calls: Vec::new(),
    }
}

/// Splits calls into at most `number` parts of equal length, in order.
pub(crate) fn parts<T>(calls: Vec<T>, number: usize) -> Vec<Vec<T>> {
    let length = calls.len().div_ceil(number.max(1)).max(1);
    let mut calls = calls.into_iter();
    std::iter::from_fn(|| Some(calls.by_ref().take(length).collect::<Vec<T>>()).filter(|part| !part.is_empty()))
        .collect()
}

/// Answers calls that are not passed on.
async fn unreached(calls: Vec<RelayCall>, why: &'static str, to: mpsc::Sender<RelayAnswer>) {
    for call in calls {
        let _ = to.send(RelayAnswer { index: call.index, answer: None, unreached: why.into() }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_split_into_equal_parts_in_order() {
        assert_eq!(parts(vec![1, 2, 3, 4, 5], 2), [vec![1, 2, 3], vec![4, 5]]);
        assert_eq!(parts(vec![1, 2], 32), [vec![1], vec![2]]);
        assert_eq!(parts(Vec::<u32>::new(), 3), Vec::<Vec<u32>>::new());
        assert_eq!(parts((0..10_000).collect::<Vec<u32>>(), 32).len(), 32);
    }
}

//! One run of the suite against one engine: handles of three hosts, calls with a time limit, and the epochs seen.

use super::{
    CAMPAIGN_STORES, CAMPAIGN_WAITS, Clause, EPOCH_KEEPS, EPOCHS_RISE, ONE_MANAGER, Verdict, WRITE_NEEDS_VERSION,
};
use crate::consensus::{Candidate, Consensus, ConsensusError, Epoch, Record, Version};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use taskd_runtime::job::{Name, NodeId};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Number of hosts of the job: the smallest number of which a majority survives the loss of one.
pub(super) const HOSTS: u32 = 3;
/// Largest number of awaits after which a call is dropped.
pub(super) const DROPS: u32 = 4;
/// Interval at which a condition is checked again.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Number of attempts to write after a conflict with a call that was dropped before.
const WRITE_TRIES: u32 = 10;
/// Number of managers that a check can leave behind, each with the next one waiting.
const LEFT_MAX: u32 = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) patience: Duration,
    pub(super) settle: Duration,
    pub(super) limit: Duration,
    pub(super) slack: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            patience: Duration::from_secs(30),
            settle: Duration::from_millis(200),
            limit: Duration::from_secs(10),
            slack: Duration::from_secs(2),
        }
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
pub(super) type Handle = Arc<dyn Consensus>;

/// The caller's closure that returns handles, with its types erased.
pub(super) trait Make {
    fn make(&self, host: u32) -> Boxed<'_, Handle>;
}

impl<F, C> Make for F
where
    F: AsyncFn(u32) -> C,
    C: Consensus + 'static,
{
    fn make(&self, host: u32) -> Boxed<'_, Handle> {
        Box::pin(async move { Arc::new(self(host).await) as Handle })
    }
}

/// A caller's closure that does something to a host, with its types erased.
pub(super) trait Act {
    fn act(&self, host: u32) -> Boxed<'_, ()>;
}

impl<F: AsyncFn(u32)> Act for F {
    fn act(&self, host: u32) -> Boxed<'_, ()> {
        Box::pin(async move { self(host).await })
    }
}

/// A campaign in the background; dropping it drops the future of `campaign`.
pub(super) struct Waiting {
    pub(super) candidate: Candidate,
    task: JoinHandle<Result<Epoch, ConsensusError>>,
}

impl Waiting {
    pub(super) fn has_returned(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) struct Session<'a> {
    make: &'a dyn Make,
    pub(super) limits: Limits,
    pub(super) verdict: Verdict,
    handles: BTreeMap<u32, Handle>,
    instances: u32,
    managers: BTreeMap<Epoch, Candidate>,
}

impl<'a> Session<'a> {
    pub(super) async fn open(make: &'a dyn Make, limits: Limits, verdict: Verdict) -> Self {
        let (handles, managers) = (BTreeMap::new(), BTreeMap::new());
        let mut session = Session { make, limits, verdict, handles, instances: 0, managers };
        for host in 1..=HOSTS {
            session.start(host).await;
        }
        session
    }

    /// Leaves the job without a manager, as well as the engine can, and returns the verdict.
    pub(super) async fn close(mut self) -> Verdict {
        self.vacate().await;
        self.verdict
    }

    /// Starts the process of a host, again if it was killed.
    pub(super) async fn start(&mut self, host: u32) {
        self.handles.remove(&host);
        let handle = self.make.make(host).await;
        self.handles.insert(host, handle);
    }

    pub(super) fn handle(&self, host: u32) -> Handle {
        Arc::clone(self.handles.get(&host).expect("every host has a handle"))
    }

    pub(super) fn broken(&mut self, clause: Clause, seen: impl Into<String>) {
        self.verdict.broken(clause, seen);
    }

    /// Returns the time that the engine states for a failover, if it has one.
    pub(super) fn failover(&self) -> Option<Duration> {
        self.handle(1).info().failover
    }

    /// Returns the time within which a lost manager's epoch must have ended.
    pub(super) fn takeover(&self) -> Duration {
        self.failover().map_or(self.limits.patience, |failover| failover + self.limits.slack)
    }

    /// Returns the time within which an epoch must end that was resigned: shorter than the failover, if there is one.
    pub(super) fn at_once(&self) -> Duration {
        self.failover().map_or(self.limits.patience, |failover| failover / 2 + self.limits.slack)
    }

    // ---- calls ----

    /// Makes a call that must return in time and without an error.
    pub(super) async fn call<T>(
        &mut self,
        clause: Clause,
        what: &str,
        call: impl Future<Output = Result<T, ConsensusError>>,
    ) -> Option<T> {
        match timeout(self.limits.patience, call).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => self.broken(clause, format!("{what} failed: {error}")),
            Err(_) => self.broken(clause, format!("{what} did not return within {:?}", self.limits.patience)),
        }
        None
    }

    /// Reads the record on a host that reaches a majority.
    pub(super) async fn read(&mut self, host: u32, clause: Clause) -> Option<Record> {
        let handle = self.handle(host);
        let record = self.call(clause, &format!("`read` on host {host}"), handle.read()).await?;
        if let Some(manager) = &record.manager {
            self.note(record.epoch, manager);
        }
        Some(record)
    }

    /// Writes `value` at the version that the record has now. Returns the version that `compare_and_set` returned.
    pub(super) async fn write(&mut self, host: u32, epoch: Epoch, value: &Bytes, clause: Clause) -> Option<Version> {
        let handle = self.handle(host);
        for _ in 0..WRITE_TRIES {
            let expected = self.read(host, clause).await?.version;
            match timeout(self.limits.patience, handle.compare_and_set(epoch, expected, value.clone())).await {
                Ok(Ok(version)) => return Some(version),
                // A call that was dropped before may still have been on its way.
                Ok(Err(ConsensusError::Conflict { .. })) => {}
                Ok(Err(error)) => {
                    self.broken(clause, format!("`compare_and_set` on host {host} in epoch {epoch} failed: {error}"));
                    return None;
                }
                Err(_) => {
                    let patience = self.limits.patience;
                    self.broken(clause, format!("`compare_and_set` on host {host} did not return within {patience:?}"));
                    return None;
                }
            }
        }
        let seen = format!("{WRITE_TRIES} writes on host {host}, each at the version read before, were all conflicts");
        self.broken(WRITE_NEEDS_VERSION, seen);
        None
    }

    // ---- managers ----

    /// Returns a candidate that was never used.
    pub(super) fn candidate(&mut self, host: u32) -> Candidate {
        self.instances += 1;
        let node = NodeId(Name::from(format!("host-{host}")));
        Candidate::new(node, format!("instance-{}", self.instances), format!("127.0.0.1:{}", 1000 + host))
    }

    /// Notes that a candidate is the manager under this epoch.
    pub(super) fn note(&mut self, epoch: Epoch, candidate: &Candidate) {
        match self.managers.get(&epoch) {
            Some(other) if other != candidate => {
                let seen = format!("{candidate} and {other} are the manager under epoch {epoch}");
                self.broken(ONE_MANAGER, seen);
            }
            Some(_) => {}
            None => {
                if let Some((last, _)) = self.managers.last_key_value().filter(|(last, _)| **last > epoch) {
                    let seen = format!("epoch {epoch} of {candidate} came after epoch {last}");
                    self.broken(EPOCHS_RISE, seen);
                }
                self.managers.insert(epoch, candidate.clone());
            }
        }
    }

    /// Begins a campaign in the background.
    pub(super) fn campaign(&mut self, host: u32) -> Waiting {
        let (handle, candidate) = (self.handle(host), self.candidate(host));
        let own = candidate.clone();
        Waiting { candidate, task: tokio::spawn(async move { handle.campaign(&own).await }) }
    }

    /// Waits until a campaign returns, and notes its epoch. A campaign that does not return `within` this time breaks
    /// `clause`.
    pub(super) async fn elected(&mut self, waiting: &mut Waiting, within: Duration, clause: Clause) -> Option<Epoch> {
        let name = waiting.candidate.clone();
        match timeout(within, &mut waiting.task).await {
            Ok(Ok(Ok(epoch))) => {
                self.note(epoch, &name);
                return Some(epoch);
            }
            Ok(Ok(Err(error))) => self.broken(clause, format!("`campaign` of {name} failed: {error}")),
            Ok(Err(panic)) => self.broken(clause, format!("`campaign` of {name} ended: {panic}")),
            Err(_) => self.broken(clause, format!("{name} was not the manager after {within:?}")),
        }
        None
    }

    /// Elects a candidate of this host, in a job without a manager.
    pub(super) async fn elect(&mut self, host: u32) -> Option<Epoch> {
        let mut waiting = self.campaign(host);
        let within = self.limits.patience;
        self.elected(&mut waiting, within, CAMPAIGN_STORES).await
    }

    /// Watches for this time that a campaign does not return while `epoch` of host `of` is in force. Returns true if it
    /// waits.
    pub(super) async fn still_waits(&mut self, waiting: &mut Waiting, of: u32, epoch: Epoch, time: Duration) -> bool {
        let returned = match timeout(time, &mut waiting.task).await {
            Err(_) => return true,
            Ok(Ok(Ok(other))) => format!("with epoch {other}"),
            Ok(Ok(Err(error))) => format!("with an error: {error}"),
            Ok(Err(panic)) => format!("with a panic: {panic}"),
        };
        let seen = format!("`campaign` of {} returned while epoch {epoch} was in force, {returned}", waiting.candidate);
        let handle = self.handle(of);
        let over = timeout(self.limits.patience, handle.confirm(epoch)).await;
        let clause =
            if matches!(over, Ok(Err(ConsensusError::Superseded { .. }))) { EPOCH_KEEPS } else { CAMPAIGN_WAITS };
        self.broken(clause, seen);
        false
    }

    /// Ends an epoch, as well as the engine can, and waits for its end.
    pub(super) async fn resign(&mut self, host: u32, epoch: Epoch) {
        let (handle, patience) = (self.handle(host), self.limits.patience);
        let _ = timeout(patience, handle.resign(epoch)).await; // its own clause checks the result
        let _ = self.read_until(host, patience, |record| record.epoch != epoch || record.manager.is_none()).await;
    }

    /// Ends the epochs that earlier checks may have left in force.
    pub(super) async fn vacate(&mut self) {
        let handle = self.handle(1);
        for _ in 0..LEFT_MAX {
            let Ok(Ok(record)) = timeout(self.limits.patience, handle.read()).await else { return };
            let Some(manager) = record.manager else { return };
            let of = |host: &u32| manager.host.0 == *format!("host-{host}");
            let host = (1..=HOSTS).find(of).unwrap_or(1);
            self.resign(host, record.epoch).await;
            sleep(LOOK_EVERY).await; // until the next one is the manager
        }
    }

    /// Waits until `condition` holds for the answer of repeated reads on a host. Returns the last answer.
    pub(super) async fn read_until(
        &mut self,
        host: u32,
        within: Duration,
        condition: impl Fn(&Record) -> bool,
    ) -> Result<Record, String> {
        let (handle, deadline) = (self.handle(host), Instant::now() + within);
        loop {
            let last = match timeout(within, handle.read()).await {
                Ok(Ok(record)) if condition(&record) => return Ok(record),
                Ok(Ok(record)) => format!("version {} of epoch {}", record.version, record.epoch),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".into(),
            };
            if Instant::now() >= deadline {
                return Err(last);
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Polls a call until it is ready, or until it has been pending `times` times, for `within` at most.
pub(super) async fn polled<F: Future>(call: F, times: u32, within: Duration) -> Option<F::Output> {
    let mut call = std::pin::pin!(call);
    let mut pending = 0;
    let polls = poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => {
            pending += 1;
            if pending >= times { Poll::Ready(None) } else { Poll::Pending }
        }
    });
    timeout(within, polls).await.ok().flatten()
}

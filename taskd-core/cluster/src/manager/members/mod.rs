//! Applies a policy of membership: which hosts take part is decided here, for the runtime that holds the launcher.
//!
//! A host that does not take part now is listed as cordoned, and one that is lost as out of sight until the next world is
//! decided. Which process runs where remains the decision of the runtime.

mod apply;
mod seen;

use super::{Inner, Manager, ManagerError, Places};
use crate::membership::{self, Decision, Next, NodeRanks, Policy};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taskd_runtime::job::{JobTime, NodeId, World};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// A decision is followed by a pause of this many times its duration, so that ten thousand hosts that join one by one take
/// at most a fifth of a processor.
const PAUSE_FACTOR: u32 = 4;
/// Longest such pause: a lost host must not wait for it.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The hosts of a job's first world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirstWorld {
    /// The hosts by node rank.
    pub ranks: NodeRanks,
    /// Hosts that are ready and not in the world.
    pub spares: BTreeSet<NodeId>,
    /// Number of ranks that each of the hosts can run.
    pub slots: u32,
    /// Why the world begins, in one sentence.
    pub reason: String,
}

/// Decides which hosts take part in a job, until it is dropped: see [`Manager::membership`].
#[derive(Debug)]
pub struct Membership {
    manager: Arc<Inner>,
    members: Arc<Members>,
    _task: JoinSet<()>,
}

impl Manager {
    /// Decides by this policy which hosts take part, from now on ([`membership::decide`]): hosts outside of the world are
    /// cordoned, except that spares are ready while the world is complete; a lost host is reported when the next world is
    /// decided, together with those that were lost with it; a host with an [error](crate::membership::HostError) is
    /// refused, and its agent ends.
    ///
    /// # Errors
    /// Returns [`ManagerError::Membership`] if the policy has no solution, or this manager has one already.
    pub async fn membership(&self, policy: Policy, places: Places) -> Result<Membership, ManagerError> {
        if let Some(problem) = policy.problem() {
            return Err(ManagerError::Membership(problem));
        }
        let manager = Arc::clone(&self.inner);
        let members = Arc::new(Members {
            policy,
            begun: Instant::now(),
            gone: Mutex::default(),
            in_force: Mutex::default(),
            handed_out: Mutex::default(),
            refused: Mutex::default(),
            decision: watch::Sender::new(None),
        });
        if manager.members.set(Arc::clone(&members)).is_err() {
            return Err(ManagerError::Membership("this manager has a policy of membership already".into()));
        }
        manager.set_places(places);
        members.decide(&manager).await;
        let mut task = JoinSet::new();
        task.spawn(run(Arc::clone(&manager), Arc::clone(&members)));
        Ok(Membership { manager, members, _task: task })
    }
}

impl Membership {
    /// Waits until the first world is decided. The job must begin with the hosts of the result.
    ///
    /// # Errors
    /// Returns the reason, in one sentence, if too few hosts have joined in time, the job has begun before, or the manager's
    /// epoch is over.
    pub async fn first_world(&self) -> Result<FirstWorld, String> {
        let mut decision = self.members.decision.subscribe();
        loop {
            let next = decision.borrow_and_update().as_ref().map(|decision| decision.next.clone());
            match next {
                Some(Next::World { ranks, spares, reason }) => {
                    let slots = ranks.values().filter_map(|host| Some(self.manager.fleet.node(host)?.slots));
                    let slots = slots.min().unwrap_or_default();
                    *lock(&self.members.handed_out) = Some(ranks.clone());
                    return Ok(FirstWorld { ranks, spares, slots, reason });
                }
                Some(Next::Impossible { reason }) => return Err(reason),
                Some(Next::Keep { .. }) => return Err("the job has begun before".into()),
                Some(Next::Wait { .. }) | None => {}
            }
            tokio::select! {
                biased;
                why = self.manager.over() => return Err(why.to_string()),
                changed = decision.changed() => if changed.is_err() { return Err("the manager has ended".into()) },
            }
        }
    }

    /// Returns the last decision.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.members.decision.borrow().clone()
    }

    /// Waits until a decision has this property, and returns it; `None` if the manager's epoch ends before.
    pub async fn wait_for(&self, mut property: impl FnMut(&Decision) -> bool) -> Option<Decision> {
        let mut decision = self.members.decision.subscribe();
        tokio::select! {
            biased;
            _ = self.manager.over() => None,
            found = decision.wait_for(|decision| decision.as_ref().is_some_and(&mut property)) => found.ok()?.clone(),
        }
    }
}

/// The policy, and what it depends on.
pub(super) struct Members {
    policy: Policy,
    /// Origin of the times of decisions.
    begun: Instant,
    /// Hosts that have left: until that is reported and they are in no world.
    gone: Mutex<BTreeMap<NodeId, Gone>>,
    /// The hosts of the world in force.
    in_force: Mutex<BTreeSet<NodeId>>,
    /// The first world, from its decision until it is in force.
    handed_out: Mutex<Option<NodeRanks>>,
    /// Sessions of refused agents, by host.
    refused: Mutex<BTreeMap<NodeId, u64>>,
    decision: watch::Sender<Option<Decision>>,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// A host that has left.
#[derive(Clone, Debug)]
struct Gone {
    since: JobTime,
    why: String,
    /// True if the runtime has got it.
    is_reported: bool,
}

/// What a decision is made for, and what it can change.
struct Seen {
    state: membership::State,
    /// Hosts that have left, and that the runtime has not got as such.
    unreported: BTreeMap<NodeId, String>,
    /// True if all ranks of the job are in the world in force.
    is_complete: bool,
}

impl Members {
    /// Notes that a host has left. It is reported when the next world is decided.
    pub(super) fn left(&self, host: &NodeId, why: &str) {
        let gone = Gone { since: self.now(), why: why.to_owned(), is_reported: false };
        lock(&self.gone).insert(host.clone(), gone);
    }

    /// Notes that a host joins, maybe again: its earlier processes have ended, which is reported first.
    pub(super) fn returns(&self, manager: &Inner, host: &NodeId) {
        let gone = lock(&self.gone).remove(host);
        let has_left = gone.is_some();
        if let Some(gone) = gone.filter(|gone| !gone.is_reported) {
            manager.fleet.remove(host, &gone.why);
        }
        // Ranks of a host that a new manager finds may run.
        if has_left || !lock(&self.in_force).contains(host) {
            manager.fleet.cordon(host, "it has joined, and takes part from the next decision on");
        }
    }

    fn now(&self) -> JobTime {
        self.time(Instant::now())
    }

    fn time(&self, at: Instant) -> JobTime {
        JobTime::START + at.saturating_duration_since(self.begun)
    }

    /// Decides once, and acts accordingly. Returns the time at which the decision changes by itself.
    async fn decide(&self, manager: &Inner) -> Option<Instant> {
        let world: Option<Arc<World>> = manager.committed.lock().await.record.world.clone();
        let seen = self.see(manager, world.as_deref());
        let decision = membership::decide(&seen.state, &self.policy, self.now());
        let before = self.decision.borrow().as_ref().map(|before| before.next.clone());
        if before.as_ref().map(Next::reason) != Some(decision.next.reason()) {
            tracing::info!(reason = decision.next.reason(), "membership");
        }
        self.apply(manager, &seen, &decision);
        let until = decision.next.until().map(|until| self.begun + until.since(JobTime::START));
        self.decision.send_replace(Some(decision));
        until
    }
}

/// Decides after every change, and when a decision changes by itself, until the manager's epoch is over.
async fn run(manager: Arc<Inner>, members: Arc<Members>) {
    let over = manager.over();
    tokio::pin!(over);
    loop {
        let begun = Instant::now();
        let until = members.decide(&manager).await;
        let pause = (begun.elapsed() * PAUSE_FACTOR).min(PAUSE_MAX);
        let by_itself = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = &mut over => return,
            () = manager.changed.notified() => {}
            () = by_itself => {}
        }
        sleep(pause).await;
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
}

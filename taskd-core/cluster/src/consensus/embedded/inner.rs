//! One voter's state, and whether it stands for leader.
//!
//! The manager is the leader's process. A voter therefore stands for leader while it campaigns or is the manager.
//! Another one stands only after a long silence, because it may be the only one with the whole log; it hands the
//! leadership over as soon as a campaigning voter has the log too. To hand over is to be silent: the engine's lease
//! ends, and the other voter stands.

use super::calls::no_majority;
use super::links::{Links, Method};
use super::machine::Machine;
use super::messages::{Elsewhere, HelloAnswer, YieldAnswer};
use super::settings::millis;
use super::store::LogStore;
use super::types::{Leader, Raft};
use super::{EmbeddedConfig, VoterAddress};
use crate::checks::Check;
use crate::consensus::Epoch;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use openraft::error::{CheckIsLeaderError, RaftError};
use openraft::{RaftMetrics, ServerState};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout};

/// One voter.
pub(super) struct Inner {
    pub(super) config: EmbeddedConfig,
    pub(super) voter: u64,
    pub(super) raft: Raft,
    pub(super) store: LogStore,
    pub(super) machine: Machine,
    pub(super) links: Links,
    /// Reason for which the store of the former start was discarded.
    pub(super) discarded: Option<String>,
    /// True if this voter joins by admission only.
    pub(super) rejoins: bool,
    /// One change of the voters at a time.
    pub(super) admission: AsyncMutex<()>,
    /// What the formation of the job waits for.
    pub(super) forming: watch::Sender<Option<String>>,
    standing: Mutex<Standing>,
    changed: Notify,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("config", &self.config).field("voter", &self.voter).finish_non_exhaustive()
    }
}

/// An epoch of this process, and the leadership under which it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tenure {
    pub(super) epoch: Epoch,
    pub(super) leader: Leader,
}

#[derive(Debug)]
struct Standing {
    /// Campaigns that wait.
    waiting: u32,
    /// Campaigns that are being written.
    electing: u32,
    tenure: Option<Tenure>,
    /// After a resignation: until then, campaigns of this process let those of others go first.
    after_you: Option<Instant>,
    /// Until then this leader is silent.
    yields: Option<Instant>,
    /// Last message of a leader.
    heard: Instant,
    /// Last time at which a majority of the voters stated that they hear no leader.
    clear: Option<Instant>,
}

/// What a voter is made of.
pub(super) struct Parts {
    pub(super) config: EmbeddedConfig,
    pub(super) voter: u64,
    pub(super) raft: Raft,
    pub(super) store: LogStore,
    pub(super) machine: Machine,
    pub(super) links: Links,
    pub(super) discarded: Option<String>,
    pub(super) rejoins: bool,
}

impl Inner {
    pub(super) fn new(parts: Parts) -> Inner {
        let Parts { config, voter, raft, store, machine, links, discarded, rejoins } = parts;
        let standing = Standing {
            waiting: 0,
            electing: 0,
            tenure: None,
            after_you: None,
            yields: None,
            heard: Instant::now(),
            clear: None,
        };
        Inner {
            config,
            voter,
            raft,
            store,
            machine,
            links,
            discarded,
            rejoins,
            admission: AsyncMutex::default(),
            forming: watch::Sender::new(None),
            standing: Mutex::new(standing),
            changed: Notify::new(),
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn metrics(&self) -> RaftMetrics<u64, VoterAddress> {
        self.raft.metrics().borrow().clone()
    }

    /// A message of a leader has arrived.
    pub(super) fn heard(&self) {
        self.standing().heard = Instant::now();
    }

    /// Time since a leader was heard; zero if this voter leads.
    pub(super) fn leaderless(&self) -> Duration {
        if self.leads() { Duration::ZERO } else { self.standing().heard.elapsed() }
    }

    /// True if this voter is the leader as far as it knows, and is not silent.
    pub(super) fn leads(&self) -> bool {
        let leader = self.raft.metrics().borrow().state == ServerState::Leader;
        leader && self.standing().yields.is_none()
    }

    /// True if this process votes or learns, so that its record follows the leader's.
    pub(super) fn is_member(&self) -> bool {
        self.raft.metrics().borrow().membership_config.membership().get_node(&self.voter).is_some()
    }

    /// Returns the members of the job.
    pub(super) fn members(&self) -> BTreeMap<u64, VoterAddress> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.nodes().map(|(id, place)| (*id, place.clone())).collect()
    }

    /// Returns the leader, if it is another voter and its address is known.
    pub(super) fn leader_elsewhere(&self) -> Option<(u64, VoterAddress)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let leader = metrics.current_leader.filter(|leader| *leader != self.voter)?;
        Some((leader, metrics.membership_config.membership().get_node(&leader)?.clone()))
    }

    pub(super) fn elsewhere(&self) -> Elsewhere {
        Elsewhere { leader: self.leader_elsewhere().map(|(_, place)| place.address) }
    }

    /// Returns why the engine has stopped, if it has.
    pub(super) fn stopped(&self) -> Option<String> {
        let metrics = self.raft.metrics();
        let state = metrics.borrow().running_state.clone();
        state.err().map(|error| format!("the voter of {} has stopped: {error}", self.config.own.host))
    }

    /// Returns the leadership of this voter now, if it leads.
    pub(super) async fn leadership(&self) -> Option<Leader> {
        let vote = self.raft.with_raft_state(|state| *state.vote_ref()).await.ok()?;
        (vote.committed && vote.leader_id.node_id == self.voter).then_some(vote.leader_id)
    }

    /// Waits until a majority has confirmed this leader, and the record contains all that was committed. The error is a
    /// reason, or `None` if this voter does not lead.
    pub(super) async fn linearize(&self) -> Result<(), Option<String>> {
        if !self.leads() {
            return Err(None);
        }
        if !self.config.settings.checks.has(Check::Majority) {
            return Ok(());
        }
        let limit = self.config.settings.rpc_limit();
        match timeout(limit, self.raft.ensure_linearizable()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_)))) => Err(None),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(short)))) => {
                let voters = self.raft.metrics().borrow().membership_config.voter_ids().collect::<Vec<_>>();
                let members = self.members();
                let silent = voters.iter().filter(|id| !short.got.contains(id)).filter_map(|id| members.get(id));
                Err(Some(no_majority(voters.len(), &silent.map(ToString::to_string).collect::<Vec<_>>())))
            }
            Ok(Err(RaftError::Fatal(error))) => Err(Some(self.stopped().unwrap_or_else(|| error.to_string()))),
            Err(_) => Err(Some(format!("the voters have not confirmed the leader within {limit:?}"))),
        }
    }

    /// As [`Inner::linearize`], again until `deadline`: one slow disk or processor is no loss of the majority.
    pub(super) async fn linearize_until(&self, deadline: Instant) -> Result<(), Option<String>> {
        loop {
            match self.linearize().await {
                Err(Some(_)) if Instant::now() < deadline && self.stopped().is_none() => {
                    sleep(self.config.settings.heartbeat() / 2).await;
                }
                result => return result,
            }
        }
    }

    /// True if a campaign of this process may be written now.
    pub(super) fn may_elect(&self) -> bool {
        let now = Instant::now();
        let leads = self.leads();
        let mut standing = self.standing();
        standing.after_you.take_if(|until| *until <= now);
        leads && standing.after_you.is_none() && standing.tenure.is_none()
    }

    /// Begins an epoch of this process.
    pub(super) fn take_office(&self, tenure: Tenure) {
        self.standing().tenure = Some(tenure);
    }

    /// Ends the epoch of this process, and lets other candidates go first for a while. Returns false if it had not
    /// begun.
    pub(super) fn leave_office(&self, epoch: Epoch) -> bool {
        let mut standing = self.standing();
        let left = standing.tenure.take_if(|tenure| tenure.epoch == epoch).is_some();
        if left {
            standing.after_you = Some(Instant::now() + self.config.settings.election_max());
        }
        drop(standing);
        self.changed.notify_one();
        left
    }

    /// Becomes silent if the voter that requests it campaigns, has the whole log, and no candidate of this process is
    /// first.
    pub(super) fn hand_over(&self, to: u64) -> YieldAnswer {
        let metrics = self.metrics();
        let voters = || metrics.membership_config.voter_ids();
        if metrics.state != ServerState::Leader {
            return YieldAnswer::NotLeader;
        }
        let now = Instant::now();
        let mut standing = self.standing();
        let first = standing.waiting > 0 && standing.after_you.is_none_or(|until| until <= now);
        if standing.tenure.is_some() || first || !voters().any(|voter| voter == to) {
            return YieldAnswer::Occupied;
        }
        let matched = metrics.replication.as_ref().and_then(|progress| progress.get(&to).copied().flatten());
        if matched.map(|log_id| log_id.index) < metrics.last_log_index {
            return YieldAnswer::Behind;
        }
        if standing.yields.is_none() {
            standing.yields = Some(now + self.config.settings.handover());
        }
        drop(standing);
        // At once: a heartbeat that leaves now would prolong the lease.
        self.stand();
        YieldAnswer::Yields
    }

    /// Sets whether this voter stands for leader, and whether as leader it speaks.
    fn stand(&self) {
        let (now, metrics) = (Instant::now(), self.metrics());
        let leader = metrics.state == ServerState::Leader;
        let mut standing = self.standing();
        if leader {
            standing.heard = now;
        }
        let over = |until: &mut Instant| *until <= now || !leader;
        standing.yields.take_if(over);
        let in_office = |tenure: &Tenure| metrics.vote.committed && *metrics.vote.leader_id() == tenure.leader;
        if standing.tenure.take_if(|tenure| !in_office(tenure)).is_some() {
            tracing::warn!(host = %self.config.own.host, "this process is no longer the manager: another voter leads");
        }
        let speaks = standing.yields.is_none();
        let clear = standing.clear.is_some_and(|at| now.duration_since(at) < self.config.settings.election_min());
        drop(standing);
        self.raft.runtime_config().elect(speaks && clear && self.wants_to_lead());
        self.raft.runtime_config().heartbeat(speaks);
    }

    /// True if this voter would stand for leader when there is none.
    fn wants_to_lead(&self) -> bool {
        let standing = self.standing();
        let candidate = standing.waiting > 0 || standing.tenure.is_some();
        candidate && !self.config.own.witness || standing.heard.elapsed() > self.config.settings.silence()
    }

    /// Asks the other voters whether they hear a leader, while this one hears none and wants to lead; runs until it is
    /// cancelled. The engine has no such pre-vote (Ongaro's dissertation, "Consensus: Bridging Theory and Practice",
    /// section 9.6): a voter that was cut off would stand again and again, and when it is back its higher term would
    /// end the epoch of a manager that a majority reaches.
    pub(super) async fn keep_asking(&self) {
        let mut ticks = tokio::time::interval(self.config.settings.heartbeat());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let lease = self.config.settings.election_max();
            if self.leaderless() < lease || !self.wants_to_lead() {
                continue;
            }
            let (voters, members) = (self.voter_ids(), self.members());
            let others = members.iter().filter(|(id, _)| voters.contains(id) && **id != self.voter);
            let asked = others.map(|(id, place)| async move {
                let limit = self.config.settings.election_min();
                let hello = self.links.call::<_, HelloAnswer>((&place.address, *id), Method::Hello, &(), limit).await;
                hello.is_ok_and(|hello| hello.leaderless_ms >= millis(lease))
            });
            let mut asked: FuturesUnordered<_> = asked.collect();
            let mut agree = usize::from(voters.contains(&self.voter));
            while agree <= voters.len() / 2 {
                match asked.next().await {
                    Some(hears_none) => agree += usize::from(hears_none),
                    None => break,
                }
            }
            drop(asked);
            if agree > voters.len() / 2 {
                self.standing().clear = Some(Instant::now());
                self.changed.notify_one();
            }
        }
    }

    /// Keeps [`Inner::stand`] up to date until it is cancelled.
    pub(super) async fn keep_standing(&self) {
        let mut ticks = tokio::time::interval(self.config.settings.heartbeat());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                _ = ticks.tick() => {}
            }
            self.stand();
        }
    }

    /// True if the record names a manager that no campaign of this leader stands for.
    pub(super) fn orphan(&self) -> Option<Epoch> {
        let leads = self.leads();
        let standing = self.standing();
        let record = self.machine.office().record;
        let own = standing.tenure.is_some_and(|tenure| tenure.epoch == record.epoch);
        (leads && record.manager.is_some() && standing.electing == 0 && !own).then_some(record.epoch)
    }
}

/// A count of [`Standing`] that its holder has raised.
pub(super) struct Raised<'a> {
    inner: &'a Inner,
    electing: bool,
}

impl Inner {
    /// This process campaigns for as long as the value lives.
    pub(super) fn waiting(&self) -> Raised<'_> {
        self.raise(false)
    }

    /// This process writes its campaign for as long as the value lives.
    pub(super) fn electing(&self) -> Raised<'_> {
        self.raise(true)
    }

    fn raise(&self, electing: bool) -> Raised<'_> {
        let raised = Raised { inner: self, electing };
        *raised.count(&mut self.standing()) += 1;
        self.changed.notify_one();
        raised
    }
}

impl Raised<'_> {
    fn count<'s>(&self, standing: &'s mut Standing) -> &'s mut u32 {
        if self.electing { &mut standing.electing } else { &mut standing.waiting }
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        let mut standing = self.inner.standing();
        let count = self.count(&mut standing);
        *count = count.saturating_sub(1);
        drop(standing);
        self.inner.changed.notify_one();
    }
}

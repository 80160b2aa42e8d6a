//! Changes of the voters: a rebooted or replaced host is admitted in the place of a lost voter.

use super::VoterAddress;
use super::inner::Inner;
use super::links::Method;
use super::messages::{AdmitAnswer, AdmitRequest, Elsewhere, HelloAnswer};
use super::types::Command;
use crate::consensus::ConsensusError;
use openraft::ChangeMembers;
use openraft::error::{ClientWriteError, RaftError};
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::NodeId;
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout_at};

type Result<T> = std::result::Result<T, ConsensusError>;
type ChangeError = RaftError<u64, ClientWriteError<u64, VoterAddress>>;

fn unavailable<T>(reason: impl ToString) -> Result<T> {
    Err(ConsensusError::Unavailable(reason.to_string()))
}

impl Inner {
    /// Requests admission of this voter from the leader, and waits until it votes.
    pub(super) async fn request_admission(&self, replaces: Option<&NodeId>) -> Result<()> {
        let body = AdmitRequest { voter: self.voter, place: self.config.own.clone(), replaces: replaces.cloned() };
        let settings = &self.config.settings;
        let limit = settings.admission_limit() + settings.rpc_limit();
        let mut reason = String::from("the list has no other voter");
        let others = self.config.listed.iter().filter(|voter| voter.host != self.config.own.host);
        for listed in others.chain(self.members().values()) {
            let mut address = listed.address.clone();
            // The listed voter, and the leader that it names.
            for _ in 0..2 {
                reason = match self.links.call((&address, 0), Method::Admit, &body, limit).await {
                    Ok(AdmitAnswer::Admitted) => return Ok(()),
                    Ok(AdmitAnswer::Refused(text)) => return Err(ConsensusError::Refused(text)),
                    Ok(AdmitAnswer::NotLeader(Elsewhere { leader })) => {
                        let text = format!("{address} knows no leader that answers");
                        address = leader.unwrap_or(address);
                        text
                    }
                    Ok(AdmitAnswer::Unavailable(text)) => text,
                    Err(status) => format!("{address}: {}", status.message()),
                };
            }
        }
        unavailable(reason)
    }

    /// Admits the voter at an address, which states its identifier itself.
    pub(super) async fn admit_at(&self, place: &VoterAddress, replaces: Option<&NodeId>) -> Result<()> {
        let hello = self.links.call((&place.address, 0), Method::Hello, &(), self.config.settings.rpc_limit());
        let hello: HelloAnswer = match hello.await {
            Ok(hello) => hello,
            Err(status) => {
                return unavailable(format!("the new voter, {place}, does not answer: {}", status.message()));
            }
        };
        if hello.place != *place {
            let text = format!("the voter at {} is {}, not {place}", place.address, hello.place);
            return Err(ConsensusError::Refused(text));
        }
        self.admit(AdmitRequest { voter: hello.voter, place: hello.place, replaces: replaces.cloned() }).await
    }

    /// Admits a voter in the place of a lost one, as the leader.
    pub(super) async fn admit(&self, request: AdmitRequest) -> Result<()> {
        let deadline = Instant::now() + self.config.settings.admission_limit();
        let Ok(_one_at_a_time) = timeout_at(deadline, self.admission.lock()).await else {
            return unavailable("another admission has not ended within its time limit");
        };
        let limit = Instant::now() + self.config.settings.request_limit();
        if let Err(reason) = self.linearize_until(limit).await {
            return unavailable(reason.unwrap_or_else(|| "this voter does not lead: ask the leader".into()));
        }
        let AdmitRequest { voter, place, replaces } = request;
        let (voters, nodes) = (self.voter_ids(), self.members());
        if voters.contains(&voter) {
            return Ok(());
        }
        let lost = lost_voter(&voters, &nodes, &place, replaces.as_ref())?;
        if replaces.is_none() {
            self.verify_lost(lost, &nodes).await?;
        }
        if lost == self.voter {
            return Err(ConsensusError::Refused(format!("{} leads, so it is not lost", self.config.own)));
        }
        tracing::info!(new = %place, "admitting the voter {voter:016x} in the place of {lost:016x}");
        // Earlier processes of the same host that were never admitted.
        let stale = nodes.iter().filter(|(id, node)| node.host == place.host && **id != voter && !voters.contains(id));
        let stale: BTreeSet<u64> = stale.map(|(id, _)| *id).collect();
        if !stale.is_empty() {
            self.change(ChangeMembers::RemoveNodes(stale), deadline).await?;
        }
        let learner = self.change(ChangeMembers::AddNodes(BTreeMap::from([(voter, place)])), deadline).await?;
        self.caught_up(voter, learner, deadline).await?;
        let voters = voters.into_iter().filter(|id| *id != lost).chain([voter]).collect();
        self.change(ChangeMembers::ReplaceAllVoters(voters), deadline).await?;
        Ok(())
    }

    /// Refuses to replace a voter that still answers under its identifier, unless the caller names its host.
    async fn verify_lost(&self, lost: u64, nodes: &BTreeMap<u64, VoterAddress>) -> Result<()> {
        let Some(place) = nodes.get(&lost) else { return Ok(()) };
        let limit = self.config.settings.rpc_limit();
        let hello = self.links.call::<_, HelloAnswer>((&place.address, lost), Method::Hello, &(), limit).await;
        match hello {
            Ok(_) => Err(ConsensusError::Refused(format!(
                "the voter {place} still answers, so a second one on this host does not replace it"
            ))),
            Err(_) => Ok(()),
        }
    }

    /// Identifiers of the voters; of the coming ones while a change is not complete.
    pub(super) fn voter_ids(&self) -> BTreeSet<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().get_joint_config().last().cloned().unwrap_or_default()
    }

    /// Commits a change of the voters, and returns the index of its entry. Waits while an earlier change is not
    /// committed.
    async fn change(&self, change: ChangeMembers<u64, VoterAddress>, deadline: Instant) -> Result<u64> {
        // Learners that are added or removed do not take part in the joint vote; voters that are replaced leave at
        // once.
        let retain = !matches!(change, ChangeMembers::ReplaceAllVoters(_));
        loop {
            let changed = timeout_at(deadline, self.raft.change_membership(change.clone(), retain)).await;
            match changed {
                Ok(Ok(written)) => return Ok(written.log_id.index),
                Ok(Err(ChangeError::APIError(ClientWriteError::ChangeMembershipError(
                    openraft::error::ChangeMembershipError::InProgress(_),
                )))) => sleep(self.config.settings.heartbeat()).await,
                Ok(Err(ChangeError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                    return unavailable("the leader changed while the voters were changed: ask again");
                }
                Ok(Err(error)) => return unavailable(format!("the voters cannot be changed: {error}")),
                Err(_) => return unavailable("a majority has not stored the change of the voters: ask again"),
            }
        }
    }

    /// Waits until a learner has stored the entry at `index`.
    async fn caught_up(&self, voter: u64, index: u64, deadline: Instant) -> Result<()> {
        let mut metrics = self.raft.metrics();
        let stored = metrics.wait_for(|metrics| {
            let progress = metrics.replication.as_ref().and_then(|all| all.get(&voter).copied().flatten());
            metrics.replication.is_none() || progress.is_some_and(|log_id| log_id.index >= index)
        });
        match timeout_at(deadline, stored).await {
            Ok(Ok(metrics)) if metrics.replication.is_some() => Ok(()),
            Ok(_) => unavailable("the leader changed while the new voter received the log: ask again"),
            Err(_) => unavailable("the new voter has not received the log within the time limit of an admission"),
        }
    }

    /// What the leader completes: an epoch that no process of this leader stands for ends, and a change of the voters
    /// that a former leader began is finished. Runs until it is cancelled.
    pub(super) async fn keep_in_order(&self) {
        let mut ticks = tokio::time::interval(self.config.settings.heartbeat() * 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Some(epoch) = self.orphan() {
                if self.linearize().await.is_err() {
                    continue;
                }
                if let Err(error) = self.write(Command::Vacate { epoch }).await {
                    tracing::debug!(%error, %epoch, "the end of a former epoch is not written yet");
                }
            }
            let joint = self.raft.metrics().borrow().membership_config.membership().get_joint_config().len() > 1;
            if joint && self.leads() {
                let Ok(_one_at_a_time) = self.admission.try_lock() else { continue };
                let deadline = Instant::now() + self.config.settings.request_limit();
                if let Err(error) = self.change(ChangeMembers::ReplaceAllVoters(self.voter_ids()), deadline).await {
                    tracing::debug!(%error, "a change of the voters is not complete yet");
                }
            }
        }
    }
}

/// Returns the voter that a new one replaces: the one of the same host, or the one on a named host.
fn lost_voter(
    voters: &BTreeSet<u64>,
    nodes: &BTreeMap<u64, VoterAddress>,
    place: &VoterAddress,
    replaces: Option<&NodeId>,
) -> Result<u64> {
    let on =
        |host: &NodeId| nodes.iter().find(|(id, node)| voters.contains(id) && node.host == *host).map(|(id, _)| *id);
    match (on(&place.host), replaces) {
        (Some(own), None) => Ok(own),
        (Some(own), Some(host)) if on(host) == Some(own) => Ok(own),
        (Some(_), Some(host)) => Err(ConsensusError::Refused(format!(
            "{} has a voter already, so it cannot replace the one of {host}: two voters would fail together",
            place.host
        ))),
        (None, Some(host)) => {
            on(host).ok_or_else(|| ConsensusError::Refused(format!("{host} has no voter to replace")))
        }
        (None, None) => {
            let text = format!("{} has had no voter: name the lost voter that it replaces", place.host);
            Err(ConsensusError::Refused(text))
        }
    }
}

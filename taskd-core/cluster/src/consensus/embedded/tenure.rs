//! Campaign, confirmation, change and end of an epoch.

use super::inner::{Inner, Tenure};
use super::links::Method;
use super::messages::{YieldAnswer, YieldRequest};
use super::types::{Command, Leader, Outcome};
use crate::consensus::{Candidate, ConsensusError, Epoch, Version};
use bytes::Bytes;
use openraft::error::{ClientWriteError, RaftError};
use tokio::time::{Instant, sleep, timeout};

type Result<T> = std::result::Result<T, ConsensusError>;

impl Inner {
    pub(super) async fn campaign(&self, candidate: &Candidate) -> Result<Epoch> {
        if self.config.own.witness {
            let text = format!("{} has a witness, which never becomes the manager", self.config.own.host);
            return Err(ConsensusError::Refused(text));
        }
        let _waiting = self.waiting();
        let (mut server, mut record) = (self.raft.server_metrics(), self.machine.subscribe());
        loop {
            if let Some(reason) = self.stopped() {
                return Err(ConsensusError::Unavailable(reason));
            }
            // Marks both as seen before they are looked at, so that no change is missed.
            let vacant = record.borrow_and_update().manager.is_none();
            server.borrow_and_update();
            if self.may_elect() {
                match self.elect(candidate).await {
                    Ok(tenure) => {
                        self.take_office(tenure);
                        return Ok(tenure.epoch);
                    }
                    Err(error) => tracing::debug!(%error, "the campaign goes on"),
                }
            } else if vacant {
                self.request_leadership().await;
            }
            let settings = &self.config.settings;
            tokio::select! {
                changed = server.changed() => if changed.is_err() { sleep(settings.heartbeat()).await },
                changed = record.changed() => if changed.is_err() { sleep(settings.heartbeat()).await },
                () = sleep(settings.election_min()) => {}
            }
        }
    }

    /// Writes a campaign, as the leader.
    async fn elect(&self, candidate: &Candidate) -> Result<Tenure> {
        // While it lives, the manager in the record is not an orphan.
        let _electing = self.electing();
        // A leader without a majority would store an entry for every attempt.
        if let Err(reason) = self.linearize().await {
            return Err(ConsensusError::Unavailable(reason.unwrap_or_else(|| "this voter no longer leads".into())));
        }
        let (outcome, leader) = self.write(Command::Elect { candidate: candidate.clone() }).await?;
        let Outcome::Elected(epoch) = outcome else {
            return Err(ConsensusError::Unavailable(format!("the campaign was answered with {outcome:?}")));
        };
        let tenure = Tenure { epoch, leader };
        self.confirm_tenure(tenure).await?;
        Ok(tenure)
    }

    /// Requests the leadership from a leader without office, and stands for it when the lease is over.
    async fn request_leadership(&self) {
        let Some((leader, place)) = self.leader_elsewhere() else { return };
        let settings = &self.config.settings;
        let body = YieldRequest { voter: self.voter };
        let asked = self.links.call((&place.address, leader), Method::Yield, &body, settings.rpc_limit()).await;
        if !matches!(asked, Ok(YieldAnswer::Yields)) {
            return;
        }
        sleep(settings.lease_over()).await;
        if self.leader_elsewhere().is_some_and(|(now, _)| now == leader) {
            // An engine that has stopped is noticed by the caller.
            let _ = self.raft.trigger().elect().await;
        }
    }

    pub(super) async fn confirm(&self, epoch: Epoch) -> Result<()> {
        match self.tenure() {
            Some(tenure) if tenure.epoch == epoch => self.confirm_tenure(tenure).await,
            _ => Err(self.superseded(epoch)),
        }
    }

    fn superseded(&self, epoch: Epoch) -> ConsensusError {
        let office = self.machine.office();
        let by = if office.record.epoch == epoch { None } else { office.manager() };
        ConsensusError::Superseded { epoch, by }
    }

    /// Verifies with a majority that an epoch of this process is in force.
    async fn confirm_tenure(&self, Tenure { epoch, leader }: Tenure) -> Result<()> {
        match self.linearize_until(Instant::now() + self.config.settings.request_limit()).await {
            Ok(()) => {
                let vote = self.vote().await;
                let leads = vote.is_some_and(|vote| vote.committed && *vote.leader_id() == leader);
                let in_force = leads && self.machine.office().is_in_force(epoch, leader);
                if in_force { Ok(()) } else { Err(self.superseded(epoch)) }
            }
            Err(None) => Err(self.superseded(epoch)),
            Err(Some(reason)) => Err(ConsensusError::Unavailable(reason)),
        }
    }

    pub(super) async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version> {
        // As in a campaign, nothing is stored without a majority.
        self.confirm(epoch).await?;
        match self.write(Command::Write { epoch, expected, value }).await?.0 {
            Outcome::Written(version) => Ok(version),
            Outcome::Conflict { found } => Err(ConsensusError::Conflict { expected, found }),
            Outcome::Superseded { by } => Err(ConsensusError::Superseded { epoch, by }),
            other => Err(ConsensusError::Unavailable(format!("the write was answered with {other:?}"))),
        }
    }

    pub(super) async fn resign(&self, epoch: Epoch) -> Result<()> {
        if !self.leave_office(epoch) {
            return Ok(());
        }
        match self.write(Command::Vacate { epoch }).await {
            Ok(_) => Ok(()),
            // Another voter leads: the epoch is over.
            Err(ConsensusError::Superseded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Commits a command as the leader, and returns its outcome and the leadership under which it was proposed.
    pub(super) async fn write(&self, command: Command) -> Result<(Outcome, Leader)> {
        let limit = self.config.settings.request_limit();
        let epoch = match &command {
            Command::Elect { .. } => self.machine.office().record.epoch,
            Command::Write { epoch, .. } | Command::Vacate { epoch } => *epoch,
        };
        match timeout(limit, self.raft.client_write(command)).await {
            Ok(Ok(written)) => Ok((written.data, written.log_id.leader_id)),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => Err(self.superseded(epoch)),
            Ok(Err(error)) => Err(ConsensusError::Unavailable(self.stopped().unwrap_or_else(|| error.to_string()))),
            Err(_) => Err(ConsensusError::Unavailable(format!("a majority has not stored the change within {limit:?}"))),
        }
    }
}

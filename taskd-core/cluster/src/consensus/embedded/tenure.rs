//! Campaign, confirmation, change and end of an epoch.

use super::EmbeddedSettings;
use super::calls::{self, Answers};
use super::inner::{Inner, Tenure};
use super::links::Method;
use super::messages::{Call, CallAnswer, YieldAnswer, YieldRequest};
use super::types::{Command, Leader, Outcome};
use crate::consensus::{Candidate, ConsensusError, Epoch, RECORD_BYTES_MAX};
use bytes::Bytes;
use openraft::error::{ClientWriteError, RaftError};
use tokio::time::{sleep, timeout};

type Result<T> = std::result::Result<T, ConsensusError>;

impl Answers for Inner {
    fn settings(&self) -> &EmbeddedSettings {
        &self.config.settings
    }

    async fn attempt(&self, call: &Call) -> CallAnswer {
        if self.leads() {
            return self.answer(call.clone()).await;
        }
        if let Some(reason) = self.stopped() {
            return CallAnswer::Unavailable(reason);
        }
        let leader = self.leader_elsewhere().map(|(_, place)| place.address);
        calls::ask_voters(&self.links, leader, &self.others(), call).await
    }
}

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
                changed = server.changed() => if changed.is_err() {
                    return Err(ConsensusError::Unavailable("this voter has stopped".into()));
                },
                // The record lives as long as this voter.
                Ok(()) = record.changed() => {}
                () = sleep(settings.election_min()) => {}
            }
        }
    }

    /// Writes a campaign, as the leader.
    async fn elect(&self, candidate: &Candidate) -> Result<Tenure> {
        // While it lives, the manager in the record is not an orphan.
        let _electing = self.electing();
        // Without a majority an entry would be stored for every attempt.
        if let Err(reason) = self.linearize().await {
            return Err(ConsensusError::Unavailable(reason.unwrap_or_else(|| "this voter no longer leads".into())));
        }
        let (outcome, leader) =
            self.write(Command::Elect { candidate: candidate.clone(), after: self.config.after }).await?;
        let Outcome::Elected(epoch) = outcome else {
            return Err(ConsensusError::Unavailable(format!("the campaign was answered with {outcome:?}")));
        };
        match self.answer(Call::Confirm { epoch }).await {
            CallAnswer::Confirmed => Ok(Tenure { epoch, leader }),
            _ => Err(self.superseded(epoch)),
        }
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

    fn superseded(&self, epoch: Epoch) -> ConsensusError {
        let office = self.machine.office();
        let by = if office.record.epoch == epoch { None } else { office.manager() };
        ConsensusError::Superseded { epoch, by }
    }

    /// Answers a call as the leader.
    pub(super) async fn answer(&self, call: Call) -> CallAnswer {
        match self.linearize().await {
            Ok(()) => {}
            Err(None) => return CallAnswer::NotLeader(self.elsewhere()),
            Err(Some(reason)) => return CallAnswer::Unavailable(reason),
        }
        let (epoch, expected, value) = match call {
            Call::Read => return CallAnswer::Record(self.machine.office().record),
            Call::Confirm { epoch } => (epoch, None, Bytes::new()),
            Call::Write { epoch, expected, value } => (epoch, Some(expected), value),
        };
        // The same leadership as at the confirmation by a majority, because terms rise.
        let Some(leader) = self.leadership().await else { return CallAnswer::NotLeader(self.elsewhere()) };
        let office = self.machine.office();
        if !office.is_in_force(epoch, leader) {
            return CallAnswer::Superseded { by: office.manager().filter(|_| office.record.epoch != epoch) };
        }
        let Some(expected) = expected else { return CallAnswer::Confirmed };
        if value.len() > RECORD_BYTES_MAX {
            // Voters of this release do not send it.
            return CallAnswer::Unknown(format!("the leader stores {RECORD_BYTES_MAX} bytes at most"));
        }
        // A leader without a majority would store an entry for every attempt: it does not come here.
        match self.write(Command::Write { epoch, expected, value }).await {
            Ok((Outcome::Written(version), _)) => CallAnswer::Written(version),
            Ok((Outcome::Conflict { found }, _)) => CallAnswer::Conflict { found },
            Ok((Outcome::Superseded { by }, _)) => CallAnswer::Superseded { by },
            Ok((other, _)) => CallAnswer::Unknown(format!("the write was answered with {other:?}")),
            Err(ConsensusError::Superseded { by, .. }) => CallAnswer::Superseded { by },
            Err(error) => CallAnswer::Unknown(error.to_string()),
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
            Err(_) => {
                Err(ConsensusError::Unavailable(format!("a majority has not stored the change within {limit:?}")))
            }
        }
    }
}

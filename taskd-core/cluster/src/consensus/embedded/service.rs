//! The server's side of the calls between voters.

use super::inner::Inner;
use super::machine::SNAPSHOT_BYTES_MAX;
use super::messages::{
    AdmitAnswer, AdmitRequest, Call, HelloAnswer, PROTOCOL, WatchAnswer, WatchRequest, YieldRequest, answer, decode,
};
use super::settings::millis;
use super::types::Types;
use crate::consensus::ConsensusError;
use crate::wire::proto::voter_server::Voter;
use crate::wire::proto::{VoterAnswer, VoterRequest};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, VoteRequest};
use std::sync::Arc;
use tonic::{Request, Response, Status, async_trait};

/// Answers the other voters.
#[derive(Clone, Debug)]
pub(super) struct Handler(pub(super) Arc<Inner>);

type Answered = Result<Response<VoterAnswer>, Status>;

impl Handler {
    /// Returns the body of a request that is for this voter.
    fn take(&self, request: Request<VoterRequest>) -> Result<bytes::Bytes, Status> {
        let VoterRequest { version, job, voter, body } = request.into_inner();
        let own = &self.0.config.job;
        if version != PROTOCOL {
            let text = format!("this voter speaks version {PROTOCOL} of the protocol, not {version}: run one release");
            return Err(Status::failed_precondition(text));
        }
        if job != own.as_str() {
            let text = format!("this voter belongs to the job `{own}`, and the request to `{job}`: check the address");
            return Err(Status::failed_precondition(text));
        }
        if voter != 0 && voter != self.0.voter {
            let text = format!("the voter {voter:016x} was replaced by {:016x} on this host", self.0.voter);
            return Err(Status::failed_precondition(text));
        }
        Ok(body)
    }
}

#[async_trait]
impl Voter for Handler {
    async fn append(&self, request: Request<VoterRequest>) -> Answered {
        let body: AppendEntriesRequest<Types> = decode(&self.take(request)?)?;
        let result = self.0.raft.append_entries(body).await;
        // Another answer is for a leader that was superseded.
        if result.as_ref().is_ok_and(|answer| !matches!(answer, AppendEntriesResponse::HigherVote(_))) {
            self.0.heard();
        }
        answer(&result)
    }

    async fn vote(&self, request: Request<VoterRequest>) -> Answered {
        let body: VoteRequest<u64> = decode(&self.take(request)?)?;
        answer(&self.0.raft.vote(body).await)
    }

    async fn install(&self, request: Request<VoterRequest>) -> Answered {
        let body: InstallSnapshotRequest<Types> = decode(&self.take(request)?)?;
        let end = usize::try_from(body.offset).unwrap_or(usize::MAX).saturating_add(body.data.len());
        if end > SNAPSHOT_BYTES_MAX {
            let text = format!("the snapshot has more than {SNAPSHOT_BYTES_MAX} bytes, which no record has");
            return Err(Status::invalid_argument(text));
        }
        let result = self.0.raft.install_snapshot(body).await;
        if result.is_ok() {
            self.0.heard();
        }
        answer(&result)
    }

    async fn hello(&self, request: Request<VoterRequest>) -> Answered {
        let _: () = decode(&self.take(request)?)?;
        let (voter, place) = (self.0.voter, self.0.config.own.clone());
        let (initialised, leaderless_ms) = (self.0.store.has_log() || self.0.rejoins, millis(self.0.leaderless()));
        answer(&HelloAnswer { voter, place, initialised, leaderless_ms })
    }

    async fn call(&self, request: Request<VoterRequest>) -> Answered {
        let call: Call = decode(&self.take(request)?)?;
        answer(&self.0.answer(call).await)
    }

    async fn watch(&self, request: Request<VoterRequest>) -> Answered {
        let WatchRequest { after } = decode(&self.take(request)?)?;
        if !self.0.is_member() {
            return Err(Status::unavailable("this voter is not admitted, so it has no record: ask another one"));
        }
        let record = self.0.news(after).await;
        answer(&WatchAnswer { record })
    }

    async fn admit(&self, request: Request<VoterRequest>) -> Answered {
        let body: AdmitRequest = decode(&self.take(request)?)?;
        if !self.0.leads() {
            return answer(&AdmitAnswer::NotLeader(self.0.elsewhere()));
        }
        // A task of its own finishes the change of the voters also if the new voter is lost meanwhile.
        let inner = Arc::clone(&self.0);
        let admitted = tokio::spawn(async move { inner.admit(body).await }).await;
        answer(&match admitted {
            Ok(Ok(())) => AdmitAnswer::Admitted,
            Ok(Err(ConsensusError::Refused(reason))) => AdmitAnswer::Refused(reason),
            Ok(Err(error)) => AdmitAnswer::Unavailable(error.to_string()),
            Err(error) => AdmitAnswer::Unavailable(format!("the admission ended: {error}")),
        })
    }

    async fn r#yield(&self, request: Request<VoterRequest>) -> Answered {
        let YieldRequest { voter } = decode(&self.take(request)?)?;
        answer(&self.0.hand_over(voter))
    }
}

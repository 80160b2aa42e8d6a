//! The engine's messages, over the calls to other voters.

use super::VoterAddress;
use super::links::{Links, Method};
use super::types::Types;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use tonic::{Code, Status};

type RpcError<E = openraft::error::Infallible> = RPCError<u64, VoterAddress, RaftError<u64, E>>;

/// Creates the connection to one voter.
#[derive(Clone, Debug)]
pub(super) struct Network(pub(super) Links);

/// The connection to one voter.
#[derive(Debug)]
pub(super) struct Peer {
    links: Links,
    voter: u64,
    address: String,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, voter: u64, place: &VoterAddress) -> Peer {
        Peer { links: self.0.clone(), voter, address: place.address.clone() }
    }
}

impl Peer {
    async fn call<Q, A, E>(&self, method: Method, body: &Q, option: &RPCOption) -> Result<A, RpcError<E>>
    where
        Q: Serialize,
        A: DeserializeOwned,
        E: Error + DeserializeOwned,
    {
        let place = (self.address.as_str(), self.voter);
        let answer: Result<Result<A, RaftError<u64, E>>, Status> =
            self.links.call(place, method, body, option.hard_ttl()).await;
        match answer {
            Ok(result) => result.map_err(|error| RPCError::RemoteError(RemoteError::new(self.voter, error))),
            // A slow voter is asked again at once; an absent one after a pause.
            Err(status) if status.code() == Code::DeadlineExceeded => {
                Err(RPCError::Network(NetworkError::new(&status)))
            }
            Err(status) => Err(RPCError::Unreachable(Unreachable::new(&status))),
        }
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcError> {
        self.call(Method::Append, &request, &option).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RpcError<InstallSnapshotError>> {
        self.call(Method::Install, &request, &option).await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, option: RPCOption) -> Result<VoteResponse<u64>, RpcError> {
        self.call(Method::Vote, &request, &option).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(self.links.settings.heartbeat()))
    }
}

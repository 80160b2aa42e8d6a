//! The requests between voters, and their answers (`proto/taskd/cluster/v1/voter.proto`).

use super::VoterAddress;
use crate::consensus::{Epoch, Record, Version};
use crate::wire::proto::{VoterAnswer, VoterRequest};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use taskd_runtime::job::NodeId;
use tonic::{Response, Status};

/// Version of the protocol.
pub(super) const PROTOCOL: u32 = 1;

/// Longest message, in bytes. The longest that is sent has two values, or a chunk of a snapshot.
pub(super) const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// What a voter answers to `Hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HelloAnswer {
    pub(super) voter: u64,
    pub(super) place: VoterAddress,
    /// True if this voter has a log, or had one before a reboot, so that the job was formed.
    pub(super) initialised: bool,
    /// Milliseconds since this voter heard from a leader; 0 if it leads itself.
    pub(super) leaderless_ms: u64,
}

/// Answer of a voter that does not lead; contains the leader's address if it knows one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Elsewhere {
    pub(super) leader: Option<String>,
}

/// A call of the engine, which the leader answers. Not `Debug`: its value contains a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Call {
    Read,
    Confirm { epoch: Epoch },
    Write { epoch: Epoch, expected: Version, value: Bytes },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CallAnswer {
    Record(Record),
    Confirmed,
    Written(Version),
    Conflict {
        found: Version,
    },
    Superseded {
        by: Option<String>,
    },
    /// Nothing was done.
    NotLeader(Elsewhere),
    /// Nothing was done: the leader reaches no majority.
    Unavailable(String),
    /// The value may have been written, or may still be.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WatchRequest {
    pub(super) after: Version,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WatchAnswer {
    pub(super) record: Option<Record>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdmitRequest {
    pub(super) voter: u64,
    pub(super) place: VoterAddress,
    /// Host of the lost voter; `None` for the voter of the same host.
    pub(super) replaces: Option<NodeId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AdmitAnswer {
    Admitted,
    NotLeader(Elsewhere),
    Unavailable(String),
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct YieldRequest {
    pub(super) voter: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum YieldAnswer {
    /// The leader is silent from now on.
    Yields,
    /// The leader is the manager, or is about to be.
    Occupied,
    /// The sender does not have the whole log yet.
    Behind,
    NotLeader,
}

/// Creates a request to one voter, or to any if `voter` is 0.
pub(super) fn request<T: Serialize>(job: &str, voter: u64, body: &T) -> Result<VoterRequest, Status> {
    Ok(VoterRequest { version: PROTOCOL, job: job.to_owned(), voter, body: encode(body)? })
}

/// Creates an answer.
pub(super) fn answer<T: Serialize>(body: &T) -> Result<Response<VoterAnswer>, Status> {
    Ok(Response::new(VoterAnswer { body: encode(body)? }))
}

fn encode<T: Serialize>(body: &T) -> Result<Bytes, Status> {
    let encoded = rmp_serde::to_vec_named(body);
    encoded.map(Into::into).map_err(|error| Status::internal(format!("a message cannot be encoded: {error}")))
}

/// Reads a body, of bounded length and depth.
pub(super) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Status> {
    crate::wire::decode(body)
        .map_err(|error| Status::invalid_argument(format!("a message of another voter cannot be read: {error}")))
}

//! The types that the Raft engine stores and sends.

use super::VoterAddress;
use crate::consensus::record::Shown;
use crate::consensus::{Candidate, Epoch, Version};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Cursor;

openraft::declare_raft_types!(
    /// Types of the engine. A voter's identifier is random: one that lost its store comes back under another.
    pub(super) Types:
        D = Command,
        R = Outcome,
        NodeId = u64,
        Node = VoterAddress,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
);

pub(super) type Entry = openraft::Entry<Types>;
pub(super) type Leader = openraft::CommittedLeaderId<u64>;
pub(super) type LogId = openraft::LogId<u64>;
pub(super) type Raft = openraft::Raft<Types>;
pub(super) type SnapshotMeta = openraft::SnapshotMeta<u64, VoterAddress>;
pub(super) type StorageError = openraft::StorageError<u64>;
pub(super) type StorageIoError = openraft::StorageIOError<u64>;
pub(super) type StoredMembership = openraft::StoredMembership<u64, VoterAddress>;
pub(super) type Vote = openraft::Vote<u64>;

/// One change of the record. Its `Debug` form omits the value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Command {
    /// The leader's candidate becomes the manager, under an epoch greater than `after` and than all before.
    Elect { candidate: Candidate, after: Epoch },
    /// Replaces the value, if the epoch and the version are as expected.
    Write { epoch: Epoch, expected: Version, value: Bytes },
    /// Ends the epoch, if it is in force.
    Vacate { epoch: Epoch },
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Elect { candidate, after } => write!(f, "Elect {{ {candidate}, after: {after} }}"),
            Command::Write { epoch, expected, value } => {
                write!(f, "Write {{ epoch: {epoch}, expected: {expected}, value: {:?} }}", Shown(value))
            }
            Command::Vacate { epoch } => write!(f, "Vacate {{ epoch: {epoch} }}"),
        }
    }
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The entry changed no record: the first of a leader, or a change of the voters.
    None,
    Elected(Epoch),
    Written(Version),
    Conflict {
        found: Version,
    },
    Superseded {
        by: Option<String>,
    },
    Vacated,
}

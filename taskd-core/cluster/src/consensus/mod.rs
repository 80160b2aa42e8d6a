//! The agreement of all hosts on the job's manager and on its record: the trait [`Consensus`], and the engines behind it.
//!
//! No consensus algorithm is written here: an engine that exists (Raft, etcd) stores the record.

#[cfg(feature = "test-util")]
pub mod conformance;
pub mod embedded;
mod error;
pub mod etcd;
mod record;
mod single;

#[cfg(feature = "test-util")]
pub(crate) use embedded::fuzz;
pub use embedded::{Embedded, EmbeddedClient, EmbeddedConfig, EmbeddedSettings, VoterAddress};
pub use error::ConsensusError;
pub use etcd::{Etcd, EtcdSettings};
pub use record::{Candidate, ConsensusInfo, Epoch, RECORD_BYTES_MAX, Record, Version};
pub use single::Single;

use async_trait::async_trait;
use bytes::Bytes;

/// Plugin of a job on many hosts that stores which process is the manager, under which [`Epoch`], and which world is in
/// force.
///
/// # Contract
/// - At most one candidate is the manager under one epoch, and every epoch is greater than all before. The epoch is the
///   fencing token: agents reject commands of an older one.
/// - `campaign` returns only when the candidate is the manager and a majority has stored it. It waits without limit while
///   another candidate is the manager, and while the engine has no majority. It MUST be cancel-safe: after its future is
///   dropped the candidate MUST NOT stay the manager for longer than the engine's lease.
/// - The end of a manager without `resign` MUST end its epoch within the time that [`ConsensusInfo::failover`] states,
///   if another candidate campaigns. An epoch without an end MUST NOT be taken away from a manager that the majority
///   reaches.
/// - `compare_and_set` MUST write only if `epoch` is in force and the record has the version `expected`, as one atomic
///   step. What it has written MUST be on the disks of a majority before it returns `Ok`, and every later `read` from
///   every host returns this record or a later one.
/// - An error of `compare_and_set` other than [`Conflict`](ConsensusError::Conflict) and
///   [`Superseded`](ConsensusError::Superseded) leaves open whether it has written: the caller reads.
/// - `confirm` returns `Ok` only if `epoch` was in force at a moment between its call and its return.
/// - `read` is linearizable: it returns the record at a moment between its call and its return. Without a majority it
///   MUST return [`Unavailable`](ConsensusError::Unavailable) within the engine's time limit; it MUST NOT return an old record.
/// - `watch` returns a record with a version greater than `after`, and MAY omit versions in between. A change of the
///   manager is a change of the version. It MUST be cancel-safe.
/// - `resign` ends the epoch at once, so that the next candidate need not wait. To resign an epoch that is not in force MUST
///   NOT be an error, and MUST NOT end another epoch.
/// - Dropping a call's future MUST NOT break a later call. All calls MAY be made concurrently, and MUST NOT wait for a
///   `campaign` or a `watch` to return.
///
/// # Testing your implementation
/// `taskd_cluster::consensus::conformance` (feature `test-util`) checks this contract clause by clause.
#[async_trait]
pub trait Consensus: Send + Sync {
    /// Returns the engine's description: its name, and which losses it survives.
    fn info(&self) -> ConsensusInfo;

    /// Waits until `candidate` is the manager, and returns its epoch.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Refused`] if this process can never be the manager, such as a witness.
    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError>;

    /// Verifies with a majority that `epoch` is in force.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Superseded`] if it is not, and [`ConsensusError::Unavailable`] if no majority answers.
    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError>;

    /// Replaces the value of the record, if `epoch` is in force and the record still has the version `expected`. Returns the
    /// new version.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Conflict`] if the record has another version, [`ConsensusError::Superseded`] if `epoch` is
    /// not in force, [`ConsensusError::Refused`] if the value is longer than [`RECORD_BYTES_MAX`], and
    /// [`ConsensusError::Unavailable`] if no majority answers.
    async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version, ConsensusError>;

    /// Returns the record.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Unavailable`] if no majority answers.
    async fn read(&self) -> Result<Record, ConsensusError>;

    /// Waits for a record that is newer than the version `after`, and returns it.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Unavailable`] if the engine cannot be reached: the caller waits a little and calls again.
    async fn watch(&self, after: Version) -> Result<Record, ConsensusError>;

    /// Ends the epoch, so that another candidate becomes the manager at once.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Unavailable`] if no majority answers: the epoch then ends as without this call.
    async fn resign(&self, epoch: Epoch) -> Result<(), ConsensusError>;
}

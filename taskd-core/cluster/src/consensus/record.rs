//! What a consensus engine stores, and how it describes itself.

use super::ConsensusError;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use taskd_runtime::job::{Name, NodeId};

/// Longest value of a record, in bytes. etcd refuses requests above 1.5 MiB.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// Returns an error if a value is longer than a record may be.
pub(super) fn check_length(value: &[u8]) -> Result<(), ConsensusError> {
    match value.len() {
        ..=RECORD_BYTES_MAX => Ok(()),
        bytes => Err(ConsensusError::Refused(format!(
            "the record would have {bytes} bytes, and {RECORD_BYTES_MAX} are the limit"
        ))),
    }
}

/// Number of a manager's time in office, from 1: the fencing token. A later manager has a greater one; numbers may be left
/// out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Version of the record: it grows with every change, also of the manager. 0 is the version before the first change;
/// numbers may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process that can be the job's manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Candidate {
    /// Name of the host on which the process runs.
    pub host: NodeId,
    /// Identifier of the process, which distinguishes successive processes of one host.
    pub instance: Name,
    /// Address, `HOST:PORT`, at which agents reach the manager.
    pub address: String,
}

impl Candidate {
    /// Creates a candidate.
    pub fn new(host: NodeId, instance: impl Into<Name>, address: impl Into<String>) -> Candidate {
        Candidate { host, instance: instance.into(), address: address.into() }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.host, self.address)
    }
}

/// What the hosts agree on.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// Version of this record.
    pub version: Version,
    /// Epoch of the manager in force, or of the last one.
    pub epoch: Epoch,
    /// The manager in force; `None` before the first and after one has resigned.
    pub manager: Option<Candidate>,
    /// Value that managers have written; empty before the first write. The engine does not interpret it.
    pub value: Bytes,
}

/// The length of a value, as its `Debug` form: a value contains a secret of the job.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { version, epoch, manager, value } = self;
        let mut text = f.debug_struct("Record");
        text.field("version", version).field("epoch", epoch).field("manager", manager);
        text.field("value", &Shown(value)).finish()
    }
}

impl Record {
    /// Creates the record of a job that has no manager yet.
    #[must_use]
    pub fn new() -> Record {
        Record::default()
    }

    /// Sets the version.
    #[must_use]
    pub fn with_version(mut self, version: Version) -> Record {
        self.version = version;
        self
    }

    /// Sets the epoch and its manager.
    #[must_use]
    pub fn with_manager(mut self, epoch: Epoch, manager: Option<Candidate>) -> Record {
        self.epoch = epoch;
        self.manager = manager;
        self
    }

    /// Sets the value.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<Bytes>) -> Record {
        self.value = value.into();
        self
    }
}

/// Description of a consensus engine, as it states it itself. It is part of the start line of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConsensusInfo {
    /// Name of the engine, such as `embedded`, `etcd` or `single`.
    pub name: Name,
    /// Number of processes that vote; 1 if there is one manager and no standby, `None` if the engine does not know.
    pub voters: Option<u32>,
    /// Longest time from the loss of a manager to the epoch of the next one, on a machine that is not overloaded. `None`:
    /// no other process takes over.
    pub failover: Option<Duration>,
    /// What the job survives, and what it does not, in one sentence.
    pub statement: String,
}

impl ConsensusInfo {
    /// Creates a description of an engine without standby.
    pub fn new(name: impl Into<Name>, statement: impl Into<String>) -> ConsensusInfo {
        ConsensusInfo { name: name.into(), voters: None, failover: None, statement: statement.into() }
    }

    /// Sets the number of voters.
    #[must_use]
    pub fn with_voters(mut self, voters: u32) -> ConsensusInfo {
        self.voters = Some(voters);
        self
    }

    /// Sets the longest time from the loss of a manager to the epoch of the next one.
    #[must_use]
    pub fn with_failover(mut self, failover: Duration) -> ConsensusInfo {
        self.failover = Some(failover);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_form_of_a_record_omits_its_value() {
        let shown = format!("{:?}", Record::new().with_value(&b"secret"[..]));
        assert!(shown.contains("6 bytes") && !shown.contains("secret") && !shown.contains("115"), "{shown}");
    }
}

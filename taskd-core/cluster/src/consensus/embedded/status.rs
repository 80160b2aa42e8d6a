//! What a voter shows of itself.

use super::VoterAddress;
use super::inner::Inner;
use serde::{Deserialize, Serialize};

/// Part of a process in the votes of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Membership {
    /// It votes.
    Voter,
    /// It receives the log, and does not vote yet.
    Learner,
    /// It is not admitted: it waits for the formation of the job, or for its admission after a reboot.
    Outside,
}

/// State of a voter, as it sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EmbeddedStatus {
    /// Identifier of this voter. A voter that loses its store gets another.
    pub voter: u64,
    /// Part of this process in the votes.
    pub membership: Membership,
    /// The voters, by identifier; while a change is not complete, those before and after it.
    pub voters: Vec<(u64, VoterAddress)>,
    /// The leader that this voter knows. It can be lost, and without a majority it cannot act.
    pub leader: Option<VoterAddress>,
    /// Term of the Raft engine.
    pub term: u64,
    /// Index of the last entry in the log; `None` before the job is formed.
    pub last_log: Option<u64>,
    /// Index of the last entry in the record.
    pub applied: Option<u64>,
    /// What the formation of the job waits for.
    pub forming: Option<String>,
    /// Reason for which the store was discarded at the start.
    pub discarded: Option<String>,
    /// Reason for which this voter has stopped, such as an error of its disk.
    pub stopped: Option<String>,
}

impl Inner {
    pub(super) fn status(&self) -> EmbeddedStatus {
        let metrics = self.metrics();
        let members = metrics.membership_config.membership();
        let voters: Vec<(u64, VoterAddress)> =
            members.voter_ids().filter_map(|id| Some((id, members.get_node(&id)?.clone()))).collect();
        let membership = match members.get_node(&self.voter) {
            _ if voters.iter().any(|(id, _)| *id == self.voter) => Membership::Voter,
            Some(_) => Membership::Learner,
            None => Membership::Outside,
        };
        EmbeddedStatus {
            voter: self.voter,
            membership,
            voters,
            leader: metrics.current_leader.and_then(|id| members.get_node(&id).cloned()),
            term: metrics.current_term,
            last_log: metrics.last_log_index,
            applied: metrics.last_applied.map(|log_id| log_id.index),
            forming: self.forming.borrow().clone(),
            discarded: self.discarded.clone(),
            stopped: self.stopped(),
        }
    }
}

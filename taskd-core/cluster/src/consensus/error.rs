//! Errors of consensus engines.

use super::{Epoch, Version};

/// Error of a [`Consensus`](super::Consensus) call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConsensusError {
    /// The epoch is over: its manager must decide nothing more.
    #[error("epoch {epoch} is over{}: this manager decides nothing more", by.as_ref().map(|b| format!(", {b} is the manager")).unwrap_or_default())]
    Superseded {
        /// Epoch of the call.
        epoch: Epoch,
        /// Name of the manager in force, if one is known.
        by: Option<String>,
    },
    /// The record has changed since the caller read it.
    #[error("the record has version {found}, not {expected}: read it again")]
    Conflict {
        /// Version that the caller expected.
        expected: Version,
        /// Version of the record.
        found: Version,
    },
    /// No majority answers now; contains the reason. A write of this call may have taken effect, or may still do so.
    #[error("no majority of the job's voters answers: {0}")]
    Unavailable(String),
    /// The engine refuses the call, and a retry would not help; contains the reason.
    #[error("{0}")]
    Refused(String),
}

//! Why a rank could not finish.
//!
//! Setbacks that training survives, such as a full disk under the checkpoints, are not errors: see `notes.rs`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What ends the training of one rank. Each message is for the operator that has to act.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainerError {
    /// The launcher's part of the contract is missing or makes no sense.
    #[error("environment variable {name} {problem}; the launcher has to set it for every rank")]
    Environment {
        /// The variable.
        name: &'static str,
        /// What is wrong with it, to follow its name.
        problem: String,
    },
    /// A setting is out of its range.
    #[error("{name} is {value}, but must be between {least} and {most}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What it is.
        value: u64,
        /// The least that it may be.
        least: u64,
        /// The most that it may be.
        most: u64,
    },
    /// The connection to another rank ended before training did.
    ///
    /// Rank 0 is connected to every rank, so it names the rank that is really gone. All others are connected to rank 0
    /// only: they lose it when it dies, and also when it leaves because it lost another rank.
    #[error("lost rank {rank}; start all ranks again as a new generation")]
    PeerLost {
        /// The rank at the other end.
        rank: u32,
        /// How the connection ended.
        source: io::Error,
    },
    /// The ranks of this generation did not all arrive in time.
    #[error("the rendezvous of generation {generation} did not complete within {within:?}: {missing}")]
    RendezvousTimedOut {
        /// The generation that was to meet.
        generation: u64,
        /// How long this rank waited.
        within: Duration,
        /// The rank or file that did not come.
        missing: String,
    },
    /// Rank 0 did not take this rank in: it belongs to another generation or job.
    #[error("rank 0 refused this rank: {reason}")]
    Refused {
        /// Rank 0's reason.
        reason: String,
    },
    /// The newest checkpoint is sound, but of another run; going on from it would give a result that is neither's.
    #[error(
        "checkpoint {path} has {what} {theirs}, but this run has {ours}; \
         use another checkpoint directory or the same settings"
    )]
    ForeignCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Its value in the checkpoint.
        theirs: u64,
        /// Its value in this run.
        ours: u64,
    },
    /// Two ranks that must hold the same state do not.
    #[error("rank {rank} and rank 0 ended with different states; the result of this run is void")]
    Diverged {
        /// The rank that differs from rank 0.
        rank: u32,
    },
    /// A file or a socket that this rank cannot do without failed.
    #[error("cannot {doing}")]
    Io {
        /// What was tried, and with what.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl TrainerError {
    /// For `map_err`: `doing` goes on after "cannot", and names the file or socket.
    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

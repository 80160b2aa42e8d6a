//! Errors that end a rank.
//!
//! Setbacks that training survives, such as a full disk under the checkpoints, are not errors: see `notes.rs`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What ends the training of one rank. Each message is addressed to the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainerError {
    /// A variable of the launcher is missing or invalid.
    #[error("environment variable {name} {problem}; the launcher has to set it for every rank")]
    Environment {
        /// The variable.
        name: &'static str,
        /// What is wrong with it, phrased to follow its name.
        problem: String,
    },
    /// A setting is out of its range.
    #[error("{name} is {value}, but must be between {least} and {most}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The smallest valid value.
        least: u64,
        /// The largest valid value.
        most: u64,
    },
    /// The connection to another rank ended before training did.
    ///
    /// Rank 0 is connected to every rank, so it names the rank that was really lost. All others are connected to rank 0
    /// only: they lose it when it dies, and also when it exits because it lost another rank.
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
        /// How long this rank waited, which is the time limit.
        within: Duration,
        /// The rank or file that is missing.
        missing: String,
    },
    /// Rank 0 refused this rank: it belongs to another generation or job.
    #[error("rank 0 refused this rank: {reason}")]
    Refused {
        /// Rank 0's reason.
        reason: String,
    },
    /// The newest checkpoint is sound, but of another run; a training that resumed from it would have the result of
    /// neither.
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
        /// The operation, and its object.
        doing: String,
        /// The cause.
        source: io::Error,
    },
}

impl TrainerError {
    /// For `map_err`: `doing` is the continuation of "cannot", and names the file or socket.
    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

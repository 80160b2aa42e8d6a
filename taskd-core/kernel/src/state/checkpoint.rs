//! Checkpoints that ranks write: emergency checkpoints in files, and in-memory checkpoints.
//!
//! This module writes and reads none; the training processes do.

use crate::job::{Generation, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a checkpoint part's name, in characters.
const PART_NAME_CHARS_MAX: usize = 128;

/// The manifest (list of all shards) of a checkpoint that ranks have written with
/// [`WriteShard`](super::Directive::WriteShard). If the file of a shard is missing or differs from its entry in the
/// manifest, the checkpoint is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckpointManifest {
    /// Number of the first step that is trained after this checkpoint is loaded.
    pub step: u64,
    /// Generation (number) of the world whose ranks wrote the checkpoint.
    pub generation: Generation,
    /// Number of ranks in the world whose ranks wrote the checkpoint, including its absent ranks.
    pub size: u32,
    /// Sets of ranks that hold the same training state. The shards of all ranks of one set together contain this state
    /// completely.
    pub sets: Vec<BTreeSet<Rank>>,
    /// All shards of the checkpoint, by the rank that wrote each.
    #[serde(rename = "parts")] // as in the files of earlier versions
    pub shards: BTreeMap<Rank, CheckpointShard>,
}

/// A shard of a checkpoint: the file that one rank wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckpointShard {
    /// Name of the shard's file in the checkpoint's directory.
    pub file: String,
    /// Length of the shard's file in bytes.
    pub bytes: u64,
    /// SHA-256 of the shard's file, in hexadecimal digits.
    pub sha256: String,
}

impl CheckpointShard {
    /// Returns true if this description, which a process sent, is plausible: `file` is a plain file name, and `sha256`
    /// is a SHA-256 checksum in hexadecimal digits.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name = !self.file.is_empty() && self.file.len() <= PART_NAME_CHARS_MAX && !self.file.starts_with('.');
        name && self.file.chars().all(plain)
            && self.sha256.len() == 64
            && self.sha256.bytes().all(|c| c.is_ascii_hexdigit())
    }
}

/// Identifier of an in-memory checkpoint. An in-memory checkpoint consists of one copy for each rank; all copies with
/// the same identifier are copies of the same state of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InMemoryCheckpointId {
    /// Generation (number) of the world in which the checkpoint was made.
    pub made_in: Generation,
    /// Number of the training step that begins with the state in the checkpoint.
    pub step: u64,
}

/// A process's report about a copy of its state, in memory that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InMemoryCheckpoint {
    /// Generation (number) of the world in which the process trains.
    pub generation: Generation,
    /// Number of this report among the process's reports about in-memory checkpoints, from 1.
    pub number: u64,
    /// Number of the training step that the process begins when it sends this report. A process sends one report for
    /// each step whose state is to be copied, and one when it joins a new generation of the job's ranks.
    pub at: u64,
    /// Identifier of the in-memory checkpoint to which the reported copy belongs.
    pub of: InMemoryCheckpointId,
    /// True if the process's copy is complete. False: the process skipped the copy, so the copies that other ranks made
    /// for this checkpoint are useless.
    pub whole: bool,
    /// Size of the copy in bytes.
    #[serde(default)]
    pub bytes: u64,
    /// Number of times, since its start, that this process has delayed a change of its parameters until a copy of its
    /// state was finished.
    #[serde(default)]
    pub waited: u64,
    /// Number of copies of its training state that this process has skipped since its start.
    #[serde(default)]
    pub dropped: u64,
}

impl InMemoryCheckpoint {
    /// Returns true if this copy is complete here.
    pub(crate) fn has(&self, of: InMemoryCheckpointId) -> bool {
        self.whole && self.of == of
    }

    /// Returns true if the rank has reached or passed the step of this copy without having the copy: it will never have
    /// it.
    pub(crate) fn lacks(&self, of: InMemoryCheckpointId) -> bool {
        self.at >= of.step && !self.has(of)
    }
}

//! Directives: the instructions that a training process receives over its control link.
//!
//! This module transfers nothing: a launcher that has links to its processes delivers the directives
//! (`Launcher::send_directives`), strategies decide which process gets which directive, and the kernel waits for the
//! replies.

use super::{CheckpointManifest, InMemoryCheckpointId};
use crate::job::{Name, ProcId, Rank, World};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Environment variable of a process that is started to join running ranks. Its value is the generation of the
/// world that the process joins. The process builds and warms up its training objects on its own, then
/// [parks](super::LoopPosition::Parked) until it receives [`Join`](Directive::Join).
pub const JOIN_VARIABLE: &str = "TASKD_JOIN";

/// Environment variable of ranks: names, separated by commas, of the directives that ranks of this job cannot carry
/// out. Ranks leave these out of the [capabilities](super::ControlLink::capabilities) that they report on their control
/// link.
pub const DISABLED_DIRECTIVES_VARIABLE: &str = "TASKD_DISABLED_DIRECTIVES";

/// Environment variable of ranks: the directory in which they save checkpoints on
/// [`WriteShard`](Directive::WriteShard), and find them when they start
/// ([`Policy::checkpoint_dir`](crate::job::Policy::checkpoint_dir)).
pub const CHECKPOINT_DIR_VARIABLE: &str = "TASKD_CHECKPOINT_DIR";

/// Environment variable of ranks: the number of steps between copies of their state in memory
/// ([`InMemoryCheckpoints`](crate::job::InMemoryCheckpoints)).
pub const IN_MEMORY_CHECKPOINT_EVERY_VARIABLE: &str = "TASKD_IN_MEMORY_CHECKPOINT_EVERY";

/// Environment variable of ranks: what a rank does if a copy of its state in memory is unfinished when its
/// parameters are about to change. `wait`: the rank waits until the copy is finished; `drop`: the rank drops the
/// copy.
pub const IN_MEMORY_CHECKPOINT_LATE_VARIABLE: &str = "TASKD_IN_MEMORY_CHECKPOINT_LATE";

/// An instruction to a training process. The process carries out its directives one after the other. In each
/// generation it aborts, joins, synchronises its state and resumes, in this order; if it has to write a checkpoint,
/// it does so after the abort. An [`Abort`](Directive::Abort) of a newer generation cancels the directive in
/// progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Directive {
    /// Leave the process groups of all older generations and go to the end of the current training step, whether the
    /// step succeeds or not. The reply contains the position of the process in its training:
    /// [`DirectiveReply::state`](super::DirectiveReply::state).
    #[serde(alias = "give-up")]
    Abort {},
    /// Create the process groups again, with the ranks in `members`.
    Join {
        /// Number of the process's rank in the job.
        rank: Rank,
        /// Number of ranks in the world that the process joins.
        size: u32,
        /// All ranks of the world, in the order of their rank numbers in the job. Process groups number the ranks without
        /// gaps: a rank's index in this list is its number in the framework, which differs from its rank number in the job
        /// if the world has shrunk.
        members: Vec<Peer>,
        /// Prefix of the keys that the ranks use in the rendezvous store. No other rendezvous uses the same prefix.
        prefix: String,
        /// Address of the rendezvous. `None` until the launcher sets it. (For a process that starts, the launcher sets the
        /// address in its environment.)
        #[serde(default)]
        store: Option<Endpoint>,
    },
    /// Bring the process's training state to the state with which step `step` begins.
    #[serde(alias = "repair")]
    SyncState {
        /// Number of the step with which training continues after the state sync.
        step: u64,
        /// Peers from which the process copies the training state, a part from each. If the list is empty, the process
        /// keeps its own state, which is already the right one. A single peer or null is also read in place of a list,
        /// because earlier versions wrote that.
        #[serde(default, deserialize_with = "one_or_more")]
        from: Vec<Peer>,
        /// Ranks that copy the training state from this process. The process makes its whole state readable for these
        /// ranks.
        to: Vec<Rank>,
        /// True if the process had begun `step`. Everything that a forward pass changes (random numbers, buffers, the
        /// position in the data) is then restored to the beginning of the step, and the step's batches are handed out
        /// again.
        #[serde(alias = "put_back")]
        rollback: bool,
        /// Number of elements of each gradient bucket of the other ranks, in order, if they report them. A replacement
        /// process must have the same buckets.
        #[serde(default)]
        buckets: Option<Vec<u64>>,
    },
    /// Continue training with the step `step`.
    Resume {
        /// Number of the first step to train.
        step: u64,
    },
    /// Write one shard of a checkpoint, after an [`Abort`](Directive::Abort). The checkpoint is of the state with which
    /// `step` begins. The shard is unusable until [`WriteManifest`](Directive::WriteManifest) completes. The reply
    /// describes the shard: [`DirectiveReply::shard`](super::DirectiveReply::shard).
    #[serde(alias = "dump")]
    WriteShard {
        /// Directory for this checkpoint alone; the process creates it.
        dir: PathBuf,
        /// Number of the step with which training continues from this checkpoint.
        step: u64,
        /// Index, from 0, of the part that this process writes. The replicas divide the state that they share into `of`
        /// parts.
        part: u32,
        /// Number of parts into which the replicas divide the state that they share.
        of: u32,
        /// Ranks that write no shard. If a writing process finds data that only one of these ranks had (random numbers,
        /// position in the data), it saves this data.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        without: Vec<Rank>,
    },
    /// Write the manifest that combines all shards into a valid checkpoint. It is the last directive of a checkpoint
    /// save.
    #[serde(alias = "seal")]
    WriteManifest {
        /// Directory of the checkpoint that the manifest completes.
        dir: PathBuf,
        /// Contents of the manifest.
        manifest: Box<CheckpointManifest>,
    },
    /// Learn which in-memory checkpoint is complete, according to the reports of all ranks. Until this directive
    /// arrives, a rank overwrites no copy that it has reported as complete. The directive belongs to no recovery and
    /// has no place in the order of the other directives.
    #[serde(alias = "declare")]
    CommitInMemory {
        /// Number of the rank's [report](super::InMemoryCheckpoint::number) that this directive answers. If the rank
        /// has reported again since, the answer is outdated.
        number: u64,
        /// Id of the newest checkpoint that is complete in the memory of all ranks, if there is one.
        whole: Option<InMemoryCheckpointId>,
    },
}

impl Directive {
    /// Returns the name of the directive, as training processes list it in their capabilities.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Directive::Abort {} => "abort",
            Directive::Join { .. } => "join",
            Directive::SyncState { .. } => "sync-state",
            Directive::Resume { .. } => "resume",
            Directive::WriteShard { .. } => "write-shard",
            Directive::WriteManifest { .. } => "write-manifest",
            Directive::CommitInMemory { .. } => "commit-in-memory",
        }
    }
}

/// Names of directives, and of the stages that send them, in logs of format 7 and earlier: earlier name, current name.
const EARLIER_NAMES: [(&str, &str); 5] = [
    ("give-up", "abort"),
    ("repair", "sync-state"),
    ("dump", "write-shard"),
    ("seal", "write-manifest"),
    ("declare", "commit-in-memory"),
];

/// Returns the current name of a directive, or of the recovery stage that sends it. The argument is the current
/// name or a name of earlier versions.
pub fn current_name(name: &Name) -> Name {
    let earlier = EARLIER_NAMES.iter().find(|(earlier, _)| name.as_str() == *earlier);
    earlier.map_or_else(|| name.clone(), |(_, current)| Name::new(current))
}

pub(crate) fn current_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<Name>, D::Error> {
    Ok(BTreeSet::<Name>::deserialize(deserializer)?.iter().map(current_name).collect())
}

/// Another rank of the job, and the process that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Peer {
    /// Number of the peer's rank in the job.
    pub rank: Rank,
    /// Process id of the peer on its host, if known.
    pub pid: Option<u32>,
}

/// Reads a list of peers, or the form that earlier versions wrote in its place: a single peer, or nothing.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Peer>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Peers {
        More(Vec<Peer>),
        One(Peer),
    }
    let peers = Option::<Peers>::deserialize(deserializer)?;
    Ok(peers.map_or_else(Vec::new, |peers| match peers {
        Peers::More(peers) => peers,
        Peers::One(peer) => vec![peer],
    }))
}

/// Network address of a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Endpoint {
    /// Host of the rendezvous, as an address that needs no name service.
    pub host: String,
    /// TCP port of the rendezvous on that host.
    pub port: u16,
    /// True if another process already listens at this address; otherwise the first rank listens there.
    pub served: bool,
}

/// A set of directives that is sent together, to processes of one world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DirectiveBatch {
    /// World (set of ranks, numbered by its generation) to which the directives belong. A process that has seen a newer
    /// world refuses them.
    pub world: Arc<World>,
    /// The directives, each with the process that carries it out.
    #[serde(alias = "orders")]
    pub directives: Vec<(ProcId, Directive)>,
}

impl DirectiveBatch {
    /// Creates a batch of these directives in that world.
    #[must_use]
    pub const fn new(world: Arc<World>, directives: Vec<(ProcId, Directive)>) -> DirectiveBatch {
        DirectiveBatch { world, directives }
    }
}

#[cfg(test)]
mod tests;

//! What a training process is told while it runs, and what it says of itself: the vocabulary of the control link.
//!
//! It moves nothing: a launcher that has links to its processes carries it ([`Launcher::direct`](super::Launcher::direct)),
//! strategies say what is to be told to whom, and the kernel waits for the answers.

use crate::job::{CommandId, ErrorReport, Generation, Name, ProcId, Rank, World};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Set in the environment of a process that is to join ranks that run: it builds and warms what it trains with on its own,
/// then [parks](Point::Parked) until it is told to [join](Directive::Join). The value is the generation that it joins.
pub const JOIN_VARIABLE: &str = "TASKD_JOIN";

/// Set in the environment of ranks: the names of the directives that they could not carry out, with commas between them. They do not
/// say on their link that they [can](Linked::can).
pub const CANNOT_VARIABLE: &str = "TASKD_CANNOT";

/// Most figures of one answer.
pub const FIGURES_MAX: usize = 32;

/// Set in the environment of ranks: where they save checkpoints when they are [told to](Directive::Dump), and find them when
/// they start ([`Policy::dump_dir`](crate::job::Policy::dump_dir)).
pub const DUMP_VARIABLE: &str = "TASKD_DUMP";

/// Set in the environment of ranks: every how many steps they keep a copy of their state in memory
/// ([`MemoryCheckpoints`](crate::job::MemoryCheckpoints)).
pub const MEMORY_EVERY_VARIABLE: &str = "TASKD_MEMORY_EVERY";

/// Set in the environment of ranks: what becomes of a copy that is not finished when parameters are about to change, `wait` or `drop`.
pub const MEMORY_LATE_VARIABLE: &str = "TASKD_MEMORY_LATE";

/// Longest name of a checkpoint's part.
const PART_NAME_CHARS_MAX: usize = 128;

/// What a training process is to do. It does one after the other: for one generation it gives up, joins, is repaired and resumes, in
/// this order, and saves, if it is to, when it has given up. A [`GiveUp`](Directive::GiveUp) of a newer generation ends whatever is
/// under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Directive {
    /// Leave the process groups of all older generations and come to the end of the step, whether it succeeds or not.
    /// The answer says where the process stands: [`Answered::state`].
    GiveUp {},
    /// Make the process groups anew, with these members.
    Join {
        /// The rank that the process is.
        rank: Rank,
        /// How many ranks there are.
        size: u32,
        /// All of them, in order. Process groups count them without gaps: where a rank stands in this list is the number that its
        /// framework knows it by, another than the job's in a world that has shrunk.
        members: Vec<Peer>,
        /// What the keys of this meeting begin with: no other's do.
        prefix: String,
        /// Where they meet. The launcher fills it in, as it does in the environment of a process that starts.
        #[serde(default)]
        store: Option<Endpoint>,
    },
    /// Bring the training state to `step`.
    Repair {
        /// The step that is trained next.
        step: u64,
        /// Take the state from these, of each a part; none: what the process has is right. One or nobody is read without a list, too,
        /// as earlier versions have written it.
        #[serde(default, deserialize_with = "one_or_more")]
        from: Vec<Peer>,
        /// Give all state to these.
        to: Vec<Rank>,
        /// The step was begun: what a forward pass changes (random numbers, buffers, the place in the data) goes back to
        /// its start, and its batches are handed out again.
        put_back: bool,
        /// Elements of the gradient buckets that the others use, in order, where they say so: a newcomer's have to be the same.
        #[serde(default)]
        buckets: Option<Vec<u64>>,
    },
    /// Go on training.
    Resume {
        /// With this step.
        step: u64,
    },
    /// After a [`GiveUp`](Directive::GiveUp): write a part of a checkpoint, of the state with which `step` begins. It is of no use
    /// before the [`Seal`](Directive::Seal). The answer names it: [`Answered::part`].
    Dump {
        /// A directory of its own for this checkpoint, which is made.
        dir: PathBuf,
        /// The step that is trained next from it.
        step: u64,
        /// Which part of its replicas' state, from 0.
        part: u32,
        /// How many parts that state is in.
        of: u32,
        /// Ranks that write none: what only they have (random numbers, places in the data) is saved by whoever finds it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        without: Vec<Rank>,
    },
    /// Write the manifest that makes a whole of the parts of a checkpoint, last of all.
    Seal {
        /// The checkpoint's directory.
        dir: PathBuf,
        /// What stands in the manifest.
        manifest: Box<DumpManifest>,
    },
    /// What all ranks have said of their memory comes to this: until it is told so, a rank overwrites no copy that it has called whole.
    /// It belongs to no recovery, and to no order among the others.
    Declare {
        /// Which of the rank's own [sayings](MemoryCopy::number) is answered. If it has said something since, this one is late.
        number: u64,
        /// The newest checkpoint that is whole in the memory of all ranks, if there is one.
        whole: Option<InMemory>,
    },
}

impl Directive {
    /// Its name, as workers say which they understand.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Directive::GiveUp {} => "give-up",
            Directive::Join { .. } => "join",
            Directive::Repair { .. } => "repair",
            Directive::Resume { .. } => "resume",
            Directive::Dump { .. } => "dump",
            Directive::Seal { .. } => "seal",
            Directive::Declare { .. } => "declare",
        }
    }
}

/// Another rank, and the process that is it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Peer {
    /// The rank.
    pub rank: Rank,
    /// Its process on its host, where that is known.
    pub pid: Option<u32>,
}

/// A list; or what stood in its place before there was one: a peer, or nothing.
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

/// Where processes meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Endpoint {
    /// The host, by an address that needs no name service.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// Whether somebody else listens there already; if not, the first rank does.
    pub served: bool,
}

/// What makes up a checkpoint of [`Dump`](Directive::Dump): one in which a part is missing, or is another, is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DumpManifest {
    /// The step that is trained next from it.
    pub step: u64,
    /// The world whose ranks have written it.
    pub generation: Generation,
    /// How many ranks the world has.
    pub size: u32,
    /// Ranks that hold the same state, set by set: each set's parts are the whole of its state.
    pub sets: Vec<BTreeSet<Rank>>,
    /// All parts, by the rank that wrote each.
    pub parts: BTreeMap<Rank, DumpPart>,
}

/// A part of a checkpoint that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DumpPart {
    /// Its name in the checkpoint's directory.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
}

impl DumpPart {
    /// Whether it can be what a process says of a file: a plain name, and a check sum.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name = !self.file.is_empty() && self.file.len() <= PART_NAME_CHARS_MAX && !self.file.starts_with('.');
        name && self.file.chars().all(plain)
            && self.sha256.len() == 64
            && self.sha256.bytes().all(|c| c.is_ascii_hexdigit())
    }
}

/// Directives that are given together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectBatch {
    /// The world in force: a process that has seen a newer one refuses.
    pub world: Arc<World>,
    /// Who is to do what.
    pub orders: Vec<(ProcId, Directive)>,
}

/// Where a process stands in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// Anywhere before its step loop.
    Script,
    /// In its step loop.
    Loop,
    /// At the entry of its step loop, with everything built and warmed: it waits to join.
    Parked,
}

/// A link to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Linked {
    /// The world that the process trains in.
    pub generation: Generation,
    /// Its framework.
    pub framework: Name,
    /// The names of the [directives](Directive::name) that it understands.
    pub can: BTreeSet<Name>,
    /// Where it stands.
    pub at: Point,
    /// Bytes of its training state, once that is known.
    pub state_bytes: Option<u64>,
    /// Why it cannot be kept in any recovery, in one sentence, once its framework has found that out: no strategy tells it to
    /// [give up](Directive::GiveUp) then.
    #[serde(default)]
    pub cannot: Option<String>,
    /// Of what of its state no other process has a copy, by name, as far as its framework has found that out.
    #[serde(default)]
    pub sharded: Vec<String>,
    /// The newest checksum of its parameters and optimizer state, by which ranks are [proved](crate::kernel::Replicas) to be replicas.
    #[serde(default)]
    pub digest: Option<Box<StateDigest>>,
}

/// Longest digest, and longest name of a group, in bytes.
pub(crate) const DIGEST_BYTES_MAX: usize = 128;

/// A checksum of a rank's parameters and optimizer state, as they are when it begins a step. Replicas have equal ones; buffers, random
/// numbers and the position in the data, which may be each rank's own, are not in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateDigest {
    /// Counts the step loops of the program, from 1: steps of two loops have the same numbers.
    #[serde(rename = "loop")]
    pub loop_number: u64,
    /// The step that begins with this state.
    pub step: u64,
    /// The checksum: equal text, equal state.
    pub digest: String,
    /// Names the group of ranks that the framework itself keeps equal, where it has one that holds all of this state: the process
    /// group of a `DistributedDataParallel`. Ranks of one group give the same name.
    #[serde(default)]
    pub group: Option<String>,
    /// What it took to compute, in microseconds.
    #[serde(default)]
    pub took_us: u64,
    /// The step that has ended with this state is the first of its kind in this loop: it called for other collectives than all before
    /// it. What older checksums have proved may not hold behind it.
    #[serde(default)]
    pub first_of_kind: bool,
}

impl StateDigest {
    /// Whether its texts are within their bounds.
    pub(crate) fn is_sound(&self) -> bool {
        let fits = |text: &str| !text.is_empty() && text.len() <= DIGEST_BYTES_MAX;
        fits(&self.digest) && self.group.as_deref().is_none_or(fits)
    }
}

/// The link to a process, as its launcher sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Whose.
    pub proc: ProcId,
    /// `None`: it is lost, or there is none any more. The process may train on, and may come back.
    pub linked: Option<Linked>,
}

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSaid {
    /// Who.
    pub proc: ProcId,
    /// What.
    pub what: Saying,
}

/// One thing that a process says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Saying {
    /// The answer to a directive.
    Answer {
        /// To that of this command.
        id: CommandId,
        /// What came of it, or why nothing did, in one sentence.
        result: Result<Box<Answered>, String>,
    },
    /// Something failed in it, and it lives: it waits to be told what to do.
    Failed(Box<StepFailure>),
    /// What it has in memory, or has not: it waits for a [`Declare`](Directive::Declare) and trains on meanwhile.
    Memory(MemoryCopy),
    /// It has recorded an error by which it ends, and has not ended yet: it may hang in what it does at its exit. This
    /// may be told a few times.
    Recorded(Box<ErrorReport>),
}

/// Names a checkpoint in memory: what ranks have of one is of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InMemory {
    /// The world in which it was made.
    pub made_in: Generation,
    /// The step that begins with it.
    pub step: u64,
}

/// A copy of a process's state, in memory that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCopy {
    /// In which world.
    pub generation: Generation,
    /// Counts what this process has said of its memory, from 1.
    pub number: u64,
    /// The step that the process begins: for each step that is one to copy it says something once, and when it comes into a world.
    pub at: u64,
    /// Which copy this is about.
    pub of: InMemory,
    /// Whether it is there. If not, it was left out, and the others' are of no use.
    pub whole: bool,
    /// Bytes of it.
    #[serde(default)]
    pub bytes: u64,
    /// How often this process has waited for a copy before it let parameters change.
    #[serde(default)]
    pub waited: u64,
    /// How many copies this process has left out.
    #[serde(default)]
    pub dropped: u64,
}

impl MemoryCopy {
    /// Whether this copy is there.
    pub(crate) fn has(&self, of: InMemory) -> bool {
        self.whole && self.of == of
    }

    /// Whether its rank has come to the step of this copy, or beyond it, and has no such copy: it will never have it.
    pub(crate) fn lacks(&self, of: InMemory) -> bool {
        self.at >= of.step && !self.has(of)
    }
}

/// What came of a directive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// Where the process stands, where the directive asks for it.
    pub state: Option<WorkerState>,
    /// Figures for people, unit last, such as `joined_ms`. At most [`FIGURES_MAX`].
    pub figures: BTreeMap<Name, f64>,
    /// What was written, where the directive asks for it.
    #[serde(default)]
    pub part: Option<DumpPart>,
    /// The checksum of the state that a [repair](Directive::Repair) has led to.
    #[serde(default)]
    pub digest: Option<StateDigest>,
}

/// Where a process stands in its training, after it has [given up](Directive::GiveUp).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerState {
    /// The step that it is in, or would do next.
    pub step: u64,
    /// The newest step that changed its parameters and optimizer for good. `None`: none has.
    pub committed: Option<u64>,
    /// How far `step` has come.
    pub window: Window,
    /// A check sum over names, shapes and types of its state: replicas of one step have the same, but where a part is
    /// [sharded](WorkerState::sharded).
    #[serde(default)]
    pub layout: String,
    /// Elements of its gradient buckets, in order; none where it has none.
    #[serde(default)]
    pub buckets: Vec<u64>,
    /// Bytes of its state.
    #[serde(default)]
    pub bytes: u64,
    /// Of what of its state no other process has a copy, by name.
    #[serde(default)]
    pub sharded: Vec<String>,
}

/// Where a step stands to its commit window: from the first optimizer step to the step's end. Only in there parameters and
/// optimizer change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// Nothing of the step has changed them.
    Before,
    /// The step was given up inside of it: they are of no step.
    Torn,
    /// The step is over.
    Closed,
}

impl WorkerState {
    /// Whether parameters and optimizer are those of one step.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        !matches!(self.window, Window::Torn)
    }

    /// The step that is trained next from what it has.
    #[must_use]
    pub const fn next_step(&self) -> u64 {
        match (self.window, self.committed) {
            (Window::Closed, Some(committed)) => committed.saturating_add(1),
            _ => self.step,
        }
    }
}

/// A failure that a process has survived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    /// In which world.
    pub generation: Generation,
    /// What failed.
    pub kind: FailureKind,
    /// In which step.
    pub step: Option<u64>,
    /// The failure in its reporter's words.
    pub message: String,
    /// The operation, where it was one.
    #[serde(default)]
    pub op: Option<String>,
    /// The group of it.
    #[serde(default)]
    pub group: Option<String>,
}

/// What failed in a process that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// A collective: a peer or a connection failed, or it is about to.
    Collective,
    /// Its own step: bad numbers, for instance.
    Step,
    /// An exception of its step that may pass: a memory error.
    Exception,
}

#[cfg(test)]
mod tests;

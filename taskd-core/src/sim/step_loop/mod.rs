//! Training programs with a step loop of taskd's: where each process stands, and what it knows of its control link.
//!
//! Data with small questions. What happens to links is in `link`, what processes do when they are told to in `told`, and what a
//! broken step leaves of their training state in `state`. It is the processes' truth: nothing here is known to the kernel
//! unless it was told.

mod link;
mod state;
mod told;

use super::chaos::Trick;
use crate::job::{CommandId, Generation, Name, ProcId, Rank};
use crate::launch::{Answered, Directive, FailureKind, Linked, Point, StateDigest, StepFailure};
use std::collections::{BTreeMap, BTreeSet};

/// The argument by which a job's strategies can tell that its ranks meet when they are told to, and not by themselves.
pub(super) const ARGUMENT: &str = "--step-loop";

/// What such a program understands.
const CAN: [Name; 4] = [Name::new("give-up"), Name::new("join"), Name::new("repair"), Name::new("resume")];

/// How far a process has come with what it was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// It has not come to its step loop.
    Script,
    /// It trains, or waits in a collective for its peers.
    Trains,
    /// It has everything built, and waits to join.
    Parked,
    GaveUp,
    Joined,
    Repaired,
    /// It waits for the first step.
    Resumed,
}

/// One process.
#[derive(Debug)]
pub(super) struct StepLoop {
    pub(super) stand: Stand,
    /// What its link says of where it is.
    at: Point,
    /// Whether the link is there.
    up: bool,
    /// The link is cut and does not come back.
    cut: bool,
    /// Whether it was started to join ranks that run.
    joins: bool,
    /// The world that it trains in.
    pub(super) generation: Generation,
    /// The newest world that it has heard of.
    heard: Generation,
    /// The launcher's part: directives that were not answered.
    open: BTreeMap<CommandId, (Generation, Directive)>,
    /// What came of those that it has done.
    done: BTreeMap<CommandId, Result<Box<Answered>, String>>,
    /// The directive under way.
    doing: Option<CommandId>,
    /// It waits for the other members of this world.
    meets: Option<Generation>,
    /// Ranks that copy from it and have not got everything.
    gives: BTreeSet<Rank>,
    /// It copies from those, of each a part.
    takes: BTreeSet<Rank>,
    /// What it has said to have failed, while it waits to be told what to do.
    failed: Option<StepFailure>,
    /// When it gave up last: for which world, and which step it could do next; `None`: it was torn.
    pub(super) gave_up: Option<(Generation, Option<u64>)>,
    /// Whether it was ever parked.
    pub(super) parked: bool,
}

/// The processes of a job whose program has a step loop; empty in others.
#[derive(Debug, Default)]
pub(super) struct Loops {
    pub(super) procs: BTreeMap<ProcId, StepLoop>,
    /// All replicas are torn by the next fault.
    pub(super) tear_all: bool,
    /// What is to go wrong with the next directive to these.
    pub(super) tricked: BTreeMap<ProcId, Trick>,
}

impl Loops {
    pub(super) fn get(&self, proc: &ProcId) -> Option<&StepLoop> {
        self.procs.get(proc)
    }
}

/// The checksum of the state with which a step begins: simulated ranks are replicas of each other.
fn equal_digest(step: u64) -> StateDigest {
    let (digest, group) = ("equal".into(), Some("all".into()));
    StateDigest { loop_number: 1, step, digest, group, took_us: 0, first_of_kind: false }
}

impl StepLoop {
    fn new(generation: Generation, joins: bool) -> StepLoop {
        StepLoop {
            stand: Stand::Script,
            at: Point::Script,
            up: false,
            cut: false,
            joins,
            generation,
            heard: generation,
            open: BTreeMap::new(),
            done: BTreeMap::new(),
            doing: None,
            meets: None,
            gives: BTreeSet::new(),
            takes: BTreeSet::new(),
            failed: None,
            gave_up: None,
            parked: false,
        }
    }

    /// Whether it was started to join ranks that run.
    pub(super) const fn joins(&self) -> bool {
        self.joins
    }

    fn linked(&self) -> Option<Linked> {
        self.up.then(|| Linked {
            generation: self.generation,
            framework: Name::new("simulated"),
            can: CAN.into(),
            at: self.at,
            state_bytes: Some(1 << 20),
            cannot: None,
            sharded: Vec::new(),
            digest: (self.at == Point::Loop).then(|| Box::new(equal_digest(0))),
        })
    }

    fn failure(&self, kind: FailureKind, step: u64) -> StepFailure {
        StepFailure {
            generation: self.generation,
            kind,
            step: Some(step),
            message: "simulated".into(),
            op: (kind == FailureKind::Collective).then(|| "allreduce".into()),
            group: None,
        }
    }
}

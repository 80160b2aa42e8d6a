//! Training programs with a step loop of taskd: the state of each process, and of its control link.
//!
//! This module contains data and simple queries. `link` changes the links, `directives` handles directives, and `state`
//! defines what an interrupted step leaves of the training state. All of it is the true state of the processes: the
//! kernel knows only what was reported to it.

mod directives;
mod link;
mod state;

use super::chaos::Trick;
use crate::job::{CommandId, Generation, Name, ProcId, Rank};
use crate::launch::{ControlLink, Directive, DirectiveReply, FailureKind, LoopPosition, StateDigest, StepFailure};
use std::collections::{BTreeMap, BTreeSet};

/// Argument that marks a job whose ranks join on a directive, and not by themselves.
pub(super) const ARGUMENT: &str = "--step-loop";

/// The directives that such a program supports.
const CAN: [Name; 4] = [Name::new("abort"), Name::new("join"), Name::new("sync-state"), Name::new("resume")];

/// How far a process has carried out its directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// The process has not reached its step loop.
    Script,
    /// The process trains, or waits in a collective operation for its peers.
    Trains,
    /// The process has completed its initialization, and waits for a directive to join.
    Parked,
    GaveUp,
    Joined,
    Repaired,
    /// The process has received `resume`, and waits for its first step.
    Resumed,
}

/// One process.
#[derive(Debug)]
pub(super) struct StepLoop {
    pub(super) stand: Stand,
    /// The position, before or inside of the step loop, that the process's control link reports.
    at: LoopPosition,
    /// True if the process's control link is connected.
    up: bool,
    /// True if the process's control link is cut and never comes back.
    cut: bool,
    /// True if the process was started to join ranks that already run.
    joins: bool,
    /// The world that it trains in.
    pub(super) generation: Generation,
    /// The newest generation of the job's ranks that the process knows.
    newest: Generation,
    /// Directives that the launcher keeps for the process because they have no reply yet, with their generations.
    open: BTreeMap<CommandId, (Generation, Directive)>,
    /// Results of the directives that the process has carried out; none of these directives is carried out again.
    done: BTreeMap<CommandId, Result<Box<DirectiveReply>, String>>,
    /// The directive that the process is carrying out.
    doing: Option<CommandId>,
    /// The generation of ranks whose other members the process waits for after a `join`.
    meets: Option<Generation>,
    /// Ranks that copy their state from this process and have not received all of it.
    gives: BTreeSet<Rank>,
    /// Ranks from which this process copies its state, a part from each.
    takes: BTreeSet<Rank>,
    /// The failed step that the process has reported; `None` again after the next directive.
    failed: Option<StepFailure>,
    /// Its last abort: for which world, and the step that it could do next; `None` if it was torn.
    pub(super) gave_up: Option<(Generation, Option<u64>)>,
    /// True if it was ever parked.
    pub(super) parked: bool,
}

/// The processes of a job whose program has a step loop; empty in other jobs.
#[derive(Debug, Default)]
pub(super) struct Loops {
    pub(super) procs: BTreeMap<ProcId, StepLoop>,
    /// True if the next fault tears all replicas.
    pub(super) tear_all: bool,
    /// The trick to play at the next directive of each process.
    pub(super) tricked: BTreeMap<ProcId, Trick>,
}

impl Loops {
    pub(super) fn get(&self, proc: &ProcId) -> Option<&StepLoop> {
        self.procs.get(proc)
    }
}

/// Returns the checksum of the training state at the beginning of a step, equal for all simulated ranks: they are
/// replicas of each other.
fn equal_digest(step: u64) -> StateDigest {
    let (digest, group) = ("equal".into(), Some("all".into()));
    StateDigest { loop_number: 1, step, digest, group, took_us: 0, first_of_kind: false }
}

impl StepLoop {
    fn new(generation: Generation, joins: bool) -> StepLoop {
        StepLoop {
            stand: Stand::Script,
            at: LoopPosition::BeforeLoop,
            up: false,
            cut: false,
            joins,
            generation,
            newest: generation,
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

    /// Returns true if it was started to join running ranks.
    pub(super) const fn joins(&self) -> bool {
        self.joins
    }

    fn linked(&self) -> Option<ControlLink> {
        self.up.then(|| {
            ControlLink::new(self.generation, "simulated", self.at)
                .with_capabilities(CAN.into())
                .with_state_bytes(1 << 20)
                .with_digest((self.at == LoopPosition::InLoop).then(|| Box::new(equal_digest(0))))
        })
    }

    fn failure(&self, kind: FailureKind, step: u64) -> StepFailure {
        StepFailure::new(self.generation, kind, "simulated")
            .with_step(step)
            .with_op((kind == FailureKind::Collective).then(|| "allreduce".into()))
    }
}

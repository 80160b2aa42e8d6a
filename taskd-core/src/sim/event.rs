//! Everything that can be due in a simulated job.

use super::chaos::{Relief, Strike};
use crate::job::{CommandId, Exit, Generation, ProcId, World};
use crate::kernel::Input;
use crate::launch::{Change, DirectBatch, FailureKind, StartBatch};
use crate::trace::Observation;
use std::sync::Arc;
use std::time::Duration;

/// One thing that is due. `life` counts the starts of the supervisor: what was meant for an earlier one is lost.
#[derive(Debug)]
pub(super) enum Event {
    /// The supervisor starts, or starts again.
    Boot,
    /// It runs again after it slept.
    Wake { life: u32 },
    /// It is busy for a moment.
    Nap { life: u32 },
    /// An answer or a request reaches it.
    Urgent { life: u32, input: Box<Input> },
    /// A change reaches it, unless that part of the launcher's history is lost. `None`: a copy, which is never lost.
    Changed { life: u32, history: Option<u64>, change: Box<Change> },
    /// A listing reaches it.
    Listed { life: u32 },
    /// Facts reach it.
    Facts { life: u32, facts: Vec<Observation> },
    /// A start reaches the launcher.
    Start { life: u32, id: CommandId, batch: Box<StartBatch> },
    /// A stop reaches the launcher.
    Stop { procs: Vec<ProcId>, grace: Duration },
    /// Directives reach the launcher.
    Direct { life: u32, id: CommandId, batch: Box<DirectBatch> },
    /// A process links, or links again.
    Links(ProcId),
    /// A process comes to its step loop.
    InLoop { proc: ProcId, generation: Generation },
    /// A process is told a directive, perhaps again.
    Told { proc: ProcId, id: CommandId },
    /// A process has come to the end of the step that it gave up.
    GaveUp { proc: ProcId, id: CommandId, generation: Generation },
    /// The members of a world may all have come to join it.
    Meet { generation: Generation, size: u32 },
    /// A process may have got, or given, all state.
    Copied { proc: ProcId, id: CommandId, generation: Generation },
    /// An answer that was late, or is told again.
    Answers { proc: ProcId, id: CommandId },
    /// A process says that something has failed, and lives.
    SaysFailed { proc: ProcId, generation: Generation, kind: FailureKind },
    /// The launcher may forget an exit.
    Acknowledge(ProcId),
    /// Processes that live on hear of a new world.
    Joins(Arc<World>),
    /// A process begins to run.
    Runs(ProcId),
    /// A process ends by itself, or is killed.
    Ends { proc: ProcId, exit: Box<Exit> },
    /// A process fails because a peer of its world is gone, unless it has left that world by then.
    Fails { proc: ProcId, generation: Generation, exit: Box<Exit> },
    /// A process that was asked to stop is gone.
    Stopped { proc: ProcId, exit: Box<Exit> },
    /// A process that is dead is gone.
    Gone { proc: ProcId, exit: Box<Exit> },
    /// Ranks have found each other.
    Form(Generation),
    /// A gang completes a step.
    Step(u64),
    /// The heartbeats of one host.
    Beat(usize),
    /// A planned fault strikes.
    Strike(Strike),
    /// What runs a job that is only observed looks at its processes.
    Agent,
    /// A condition ends.
    Relief(Relief),
}

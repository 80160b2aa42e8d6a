//! The events of a simulated job.

use super::chaos::{Relief, Strike};
use crate::job::{CommandId, Exit, Generation, ProcId, World};
use crate::kernel::Input;
use crate::launch::{Change, DirectiveBatch, FailureKind, StartBatch};
use crate::trace::Observation;
use std::sync::Arc;
use std::time::Duration;

/// One due event. `life` is the number of the supervisor's start: an event for an earlier start is lost.
#[derive(Debug)]
pub(super) enum Event {
    /// The supervisor starts, or starts again.
    Boot,
    /// The supervisor runs again after a sleep.
    Wake { life: u32 },
    /// The supervisor is busy for a moment.
    Nap { life: u32 },
    /// A reply or a request reaches the supervisor.
    Urgent { life: u32, input: Box<Input> },
    /// A change reaches the supervisor, unless that part of the launcher's history is lost. `None`: a copy, which is
    /// never lost.
    Changed { life: u32, history: Option<u64>, change: Box<Change> },
    /// A listing reaches the supervisor.
    Listed { life: u32 },
    /// Facts reach the supervisor.
    Facts { life: u32, facts: Vec<Observation> },
    /// A start reaches the launcher.
    Start { life: u32, id: CommandId, batch: Box<StartBatch> },
    /// A stop reaches the launcher.
    Stop { procs: Vec<ProcId>, grace: Duration },
    /// Directives reach the launcher.
    Direct { life: u32, id: CommandId, batch: Box<DirectiveBatch> },
    /// A process connects its control link, or reconnects.
    Links(ProcId),
    /// A process reaches its step loop.
    InLoop { proc: ProcId, generation: Generation },
    /// A process receives a directive, perhaps again.
    Directed { proc: ProcId, id: CommandId },
    /// A process has reached the end of the step that it aborts.
    GaveUp { proc: ProcId, id: CommandId, generation: Generation },
    /// The members of a world may all have arrived to join it.
    Meet { generation: Generation, size: u32 },
    /// A process may have received, or sent, the whole state.
    Copied { proc: ProcId, id: CommandId, generation: Generation },
    /// A reply arrives that was late, or is repeated.
    Answers { proc: ProcId, id: CommandId },
    /// A process reports a failure, and stays alive.
    ReportsFailed { proc: ProcId, generation: Generation, kind: FailureKind },
    /// The launcher may forget an exit.
    Acknowledge(ProcId),
    /// Surviving processes learn of a new world, which they are to join.
    Joins(Arc<World>),
    /// A process begins to run.
    Runs(ProcId),
    /// A process ends by itself, or is killed.
    Ends { proc: ProcId, exit: Box<Exit> },
    /// A process fails because a peer of its world is gone, unless it has left that world by then.
    Fails { proc: ProcId, generation: Generation, exit: Box<Exit> },
    /// A process that was ordered to stop has exited.
    Stopped { proc: ProcId, exit: Box<Exit> },
    /// A dead process has exited.
    Gone { proc: ProcId, exit: Box<Exit> },
    /// The ranks of this generation have completed their rendezvous.
    Form(Generation),
    /// A gang completes a step.
    Step(u64),
    /// The heartbeats of one host.
    Beat(usize),
    /// A planned fault is injected.
    Strike(Strike),
    /// The system that runs an observed job checks its processes.
    Agent,
    /// A condition ends.
    Relief(Relief),
}

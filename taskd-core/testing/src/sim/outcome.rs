//! The outcome of a simulated job: the injected faults, the job's report, and the first broken invariant.

use super::chaos::FaultKind;
use crate::detect::Fault;
use crate::job::{CommandId, Domain, Generation, IncidentId, JobTime, NodeId, OrderId, ProcId, Rank, Ready, Role};
use crate::kernel::{Command, Counts, DropReason, HoldReason, JobReport, Order};
use std::collections::BTreeMap;

/// A broken invariant of a simulated job, with its evidence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The time of the decision kernel went backwards.
    #[error("time went back from {from} to {to}")]
    TimeWentBack {
        /// Time of the decision kernel before it went backwards.
        from: JobTime,
        /// Time of the decision kernel after it went backwards.
        to: JobTime,
    },
    /// The decision kernel gave a command after the job had finished.
    #[error("the job finished at {finished}, and then the kernel commanded {command:?}")]
    CommandAfterFinish {
        /// The time at which the job finished.
        finished: JobTime,
        /// Command that the decision kernel gave after the end of the job.
        command: Box<Command>,
    },
    /// The deadline of the decision kernel did not move: the simulation had to call the kernel repeatedly at one
    /// instant.
    #[error("the kernel spins at {at}, its deadline is {deadline:?}")]
    Spins {
        /// Job time at which the decision kernel was called repeatedly.
        at: JobTime,
        /// Deadline at which the decision kernel had to be called again.
        deadline: Option<JobTime>,
    },
    /// Two simultaneous recoveries touch the same domain, such as a rank or a host.
    #[error("{first} touches {touches} while {second} touches {touches_too}")]
    RecoveriesOverlap {
        /// The incident whose recovery was already running.
        first: IncidentId,
        /// Domain, such as a rank or a host, that the recovery of `first` touches.
        touches: Domain,
        /// The incident whose recovery began while that of `first` was running.
        second: IncidentId,
        /// Domain that the recovery of `second` touches and that overlaps with `touches`.
        touches_too: Domain,
    },
    /// Two commands ordered the start of the same process.
    #[error("{proc} was started twice")]
    StartedTwice {
        /// Process whose start was ordered twice.
        proc: ProcId,
    },
    /// The decision kernel ordered the start of a process while another process of the same rank was alive and not
    /// stopped.
    #[error("{ordered} was started while {wanted} is alive and has not been stopped")]
    TwoAlive {
        /// The process of the rank that was alive already.
        wanted: ProcId,
        /// The process whose start the decision kernel ordered.
        ordered: ProcId,
    },
    /// A stage of a recovery was reported as successful before the processes that it starts were ready.
    #[error("stage {stage} succeeded, but {proc} is not {until:?} in its world")]
    StartNotDone {
        /// The name of the recovery stage that was reported as successful too early.
        stage: String,
        /// A process that the recovery stage starts and that was not ready yet.
        proc: ProcId,
        /// The state, such as running, that each process must reach before the recovery stage counts as successful.
        until: Ready,
    },
    /// The decision kernel commanded an action that no incident, operator's order or start of the job explains.
    #[error("no incident, request or start is behind {command:?}")]
    WithoutReason {
        /// The command that no incident, operator's order or start of the job explains.
        command: Box<Command>,
    },
    /// A recovery that counts against the recovery budget began although the budget had no token left.
    #[error("{incident} took recovery {taken} of {allowed}")]
    Overdrawn {
        /// The incident whose recovery exceeds the recovery budget.
        incident: IncidentId,
        /// Number of tokens taken from the recovery budget and not returned, including the token for this recovery.
        taken: u32,
        /// Number of tokens in a full recovery budget, which `taken` must not exceed.
        allowed: u32,
    },
    /// An incident blames a process or another domain into which the simulation injected no fault.
    #[error("{incident} blames an innocent domain: {fault:?}")]
    InnocentBlamed {
        /// The incident that contains the wrong blame.
        incident: IncidentId,
        /// The detector's fault that blames the innocent domain.
        fault: Box<Fault>,
    },
    /// The final report of the job blames a rank into which the simulation injected no fault.
    #[error("the report of {incident} blames {rank}, which had no injected fault")]
    InnocentReported {
        /// The incident in whose report the rank is blamed.
        incident: IncidentId,
        /// The rank that is blamed although it had no injected fault.
        rank: Rank,
    },
    /// The decision kernel made no decision about an injected fault within the permitted time.
    #[error("{} of {domain} at {since} was never decided", kind.as_str())]
    Unanswered {
        /// The kind of the injected fault.
        kind: FaultKind,
        /// The domain, such as a process or a host, into which the fault was injected.
        domain: Domain,
        /// The job time at which the fault was injected.
        since: JobTime,
    },
    /// The decision kernel's count of dropped inputs differs from the number of inputs that it had to drop.
    #[error("{} of {} must have been dropped, {counted} were counted", must, what.as_str())]
    DropsDiffer {
        /// The reason for which the inputs had to be dropped.
        what: DropReason,
        /// Number of inputs that the decision kernel had to drop for this reason, as counted by the simulation's audit.
        must: u64,
        /// Number of inputs that the decision kernel itself has counted as dropped for this reason.
        counted: u64,
    },
    /// The decision kernel sent no reply to an operator's order, or more than one.
    #[error("{order} was answered {replies} times")]
    NotAnsweredOnce {
        /// The id of the operator's order.
        order: OrderId,
        /// Number of replies that the decision kernel sent to the operator's order.
        replies: usize,
    },
    /// The decision kernel accepted an operator's order that it had to deny, or the order had a wrong effect.
    #[error("{order:?} must not be carried out in this way")]
    WronglyFollowed {
        /// The operator's order.
        order: Box<Order>,
    },
    /// The decision kernel ordered the start of a process on a host that was drained before.
    #[error("{proc} was started on {node}, which is drained")]
    StartedOnLeft {
        /// The process whose start was ordered.
        proc: ProcId,
        /// The drained host on which the process was to start.
        node: NodeId,
    },
    /// The incident of a drained host was closed as done while ranks remained on the host.
    #[error("{incident} is closed, and ranks are still on {node}")]
    NotLeft {
        /// The drained host that still has ranks.
        node: NodeId,
        /// The incident in which the ranks had to be moved off the host.
        incident: IncidentId,
    },
    /// The decision kernel carried out a recovery decision that it had to hold, for example until an operator approves
    /// it, or it held a decision that it had to carry out.
    #[error("{incident} is held for {held:?}, and must be for {must:?}")]
    WronglyHeld {
        /// The incident that the decision is about.
        incident: IncidentId,
        /// Reason for which the decision kernel holds the decision; `None` if it carries the decision out.
        held: Option<HoldReason>,
        /// Reason for which the decision has to be held; `None` if the decision has to be carried out.
        must: Option<HoldReason>,
    },
    /// The decision kernel took tokens from the recovery budget for an operator's order, or for a decision that was not
    /// carried out.
    #[error("{incident} is held or requested by an operator, and the budget went from {from} to {to}")]
    WishPaid {
        /// The incident of the order or decision for which tokens were taken.
        incident: IncidentId,
        /// Number of tokens in the recovery budget before the decision.
        from: u32,
        /// Number of tokens in the recovery budget after the decision.
        to: u32,
    },
    /// The decision kernel commanded an action in a dry run, in which a job is only observed.
    #[error("the job is only observed, and the kernel commanded {command:?}")]
    NotOnlyObserved {
        /// The command that is not permitted in a dry run.
        command: Box<Command>,
    },
    /// The decision kernel sent a directive that the process cannot carry out: the directive is out of order, is for a
    /// generation that does not contain the process, or contains a wrong process id for a peer.
    #[error("{proc} was sent {directive} in {generation}, which it could not carry out then")]
    WronglyTold {
        /// The process to which the directive was sent.
        proc: ProcId,
        /// The name of the directive, such as `join`.
        directive: &'static str,
        /// The generation (number of the world) for which the directive was sent.
        generation: Generation,
    },
    /// A stage of a recovery waits for replies to directives although no process is left that could reply.
    #[error("no process is left to answer {command}, and its stage continues")]
    WaitsForNobody {
        /// The id of the command that sent the directives.
        command: CommandId,
    },
    /// A recovery has stopped or replaced a process although it had declared that it keeps this process.
    #[error("{incident} had to keep {proc}, and does not")]
    NotKept {
        /// The incident of the recovery.
        incident: IncidentId,
        /// The process that the recovery had to keep.
        proc: ProcId,
    },
    /// A recovery that keeps the surviving processes has started a process for a rank that was not lost.
    #[error("{incident} starts {role}, which was not lost")]
    StartedUnlost {
        /// The incident of the recovery.
        incident: IncidentId,
        /// The role, such as rank 3, of the process that was started although the rank was not lost.
        role: Role,
    },
    /// Ranks begin to train together although their training states are of different steps, incomplete or missing, or
    /// although they are in different generations.
    #[error("{first} and {other} begin {generation} with states that differ or are torn")]
    ReplicasDiffer {
        /// The rank with which the other ranks are compared.
        first: Rank,
        /// A rank whose state or generation differs from that of `first`, or whose state is incomplete.
        other: Rank,
        /// The generation (number of the world) in which the ranks begin to train.
        generation: Generation,
    },
    /// A rank trains, or is reported to train, without having received a `resume` directive for its generation.
    #[error("{rank} has not resumed in {generation}")]
    NotResumed {
        /// The rank that trains without having received a `resume` directive.
        rank: Rank,
        /// The generation (number of the world) for which the rank needed a `resume` directive.
        generation: Generation,
    },
    /// A recovery lost a training step that a surviving replica had committed.
    #[error("step {had} was committed and whole, and the job continues from {has}")]
    StepLost {
        /// Number of the last training step that the surviving replica had committed.
        had: u64,
        /// Number of the last training step in the state from which all ranks continue.
        has: u64,
    },
    /// After the last injected fault, the job neither completed steps nor ended within the permitted time.
    #[error("stuck since {since}: {open} incidents open")]
    Stuck {
        /// The job time of the last completed step, or of the end of fault injection if that is later.
        since: JobTime,
        /// Number of incidents that are still open.
        open: usize,
    },
    /// The job was ended as failed although the simulation injected no fault that has to end a job.
    #[error("the job was ended without a valid reason: {reason}")]
    GivenUp {
        /// The reason for the end, as the job's report states it.
        reason: String,
    },
    /// The launcher refused the first start of the job, but the job's report states another reason for its end.
    #[error("the first start was refused, but the reason is: {reason}")]
    NotRefused {
        /// The reason for the end, as the job's report states it.
        reason: String,
    },
    /// The job is over, and a process still runs.
    #[error("{proc} still runs after the end")]
    LeftRunning {
        /// The process that still runs.
        proc: ProcId,
    },
    /// The job is over, and an incident is still open.
    #[error("{incident} is open after the end")]
    LeftOpen {
        /// The incident that is still open.
        incident: IncidentId,
    },
    /// The job completed, but a rank took fewer steps than the program has.
    #[error("rank {rank} took {taken} steps of {steps}")]
    StepsMissing {
        /// The number of the rank that took too few steps.
        rank: usize,
        /// Number of steps that the rank took.
        taken: u64,
        /// Number of steps that the training program has.
        steps: u64,
    },
    /// The simulation itself tested too little: it injected too few faults, or faults of too few kinds.
    #[error("only {faults} faults of {kinds} kinds struck")]
    TooQuiet {
        /// Number of faults that were injected.
        faults: u32,
        /// Number of different kinds among the injected faults.
        kinds: usize,
    },
}

impl Violation {
    /// Returns a stable short name of the broken invariant, such as `budget`.
    #[must_use]
    pub const fn invariant(&self) -> &'static str {
        match self {
            Violation::TimeWentBack { .. } => "time",
            Violation::CommandAfterFinish { .. } => "after-finish",
            Violation::Spins { .. } => "spins",
            Violation::RecoveriesOverlap { .. } => "exclusion",
            Violation::StartedTwice { .. } | Violation::TwoAlive { .. } => "incarnations",
            Violation::StartNotDone { .. } => "stages",
            Violation::WithoutReason { .. } => "reasons",
            Violation::Overdrawn { .. } => "budget",
            Violation::InnocentBlamed { .. } | Violation::InnocentReported { .. } => "blame",
            Violation::Unanswered { .. } => "answers",
            Violation::DropsDiffer { .. } => "drops",
            Violation::NotAnsweredOnce { .. } | Violation::WronglyFollowed { .. } => "orders",
            Violation::StartedOnLeft { .. } | Violation::NotLeft { .. } => "left-hosts",
            Violation::WronglyHeld { .. } => "held",
            Violation::WishPaid { .. } => "wish-paid",
            Violation::NotOnlyObserved { .. } => "observing",
            Violation::WronglyTold { .. } | Violation::WaitsForNobody { .. } => "directives",
            Violation::NotKept { .. } | Violation::StartedUnlost { .. } => "kept",
            Violation::ReplicasDiffer { .. } | Violation::NotResumed { .. } => "replicas",
            Violation::StepLost { .. } => "lost-steps",
            Violation::Stuck { .. } => "stuck",
            Violation::GivenUp { .. } => "given-up",
            Violation::NotRefused { .. } => "refused",
            Violation::LeftRunning { .. } => "left-running",
            Violation::LeftOpen { .. } => "left-open",
            Violation::StepsMissing { .. } => "steps",
            Violation::TooQuiet { .. } => "too-quiet",
        }
    }
}

/// The outcome of one simulated job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The seed of the random numbers that determine the simulated job and its faults.
    pub seed: u64,
    /// The first broken invariant, with the job time at which the simulation found it broken; `None` if no invariant
    /// was broken.
    pub violation: Option<(JobTime, Violation)>,
    /// The number of ranks of the job.
    pub ranks: u32,
    /// Number of training steps taken by all ranks in all their incarnations.
    pub rank_steps: u64,
    /// Number of injected faults, by kind.
    pub faults: BTreeMap<FaultKind, u32>,
    /// The decision kernel's counters: of the inputs that it dropped, and of the branches that its decisions took.
    pub counts: Counts,
    /// The final report of the decision kernel about the job.
    pub report: JobReport,
    /// The number of inputs that the decision kernel received.
    pub inputs: u64,
}

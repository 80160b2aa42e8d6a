//! What comes of a simulated job: what was done to it, what it did, and what must not have happened.

use super::chaos::FaultKind;
use crate::detect::Fault;
use crate::job::{CommandId, Domain, Generation, IncidentId, JobTime, NodeId, OrderId, ProcId, Rank, Ready, Role};
use crate::kernel::{Command, Counts, Drop, Held, JobReport, Order};
use std::collections::BTreeMap;

/// An invariant that was broken, with its witnesses.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The kernel's time went back.
    #[error("time went back from {from} to {to}")]
    TimeWentBack {
        /// What it was.
        from: JobTime,
        /// What it became.
        to: JobTime,
    },
    /// Something was commanded after the end.
    #[error("the job finished at {finished}, and then the kernel commanded {command:?}")]
    CommandAfterFinish {
        /// When the job finished.
        finished: JobTime,
        /// The command.
        command: Box<Command>,
    },
    /// The kernel wants to be called again and again at one instant.
    #[error("the kernel spins at {at}, its deadline is {deadline:?}")]
    Spins {
        /// When.
        at: JobTime,
        /// Its deadline.
        deadline: Option<JobTime>,
    },
    /// Two recoveries at a time touch one domain.
    #[error("{first} touches {touches} while {second} touches {touches_too}")]
    RecoveriesOverlap {
        /// The one that ran.
        first: IncidentId,
        /// What it touches.
        touches: Domain,
        /// The one that began.
        second: IncidentId,
        /// What that touches.
        touches_too: Domain,
    },
    /// One process was ordered by two commands.
    #[error("{proc} was started twice")]
    StartedTwice {
        /// The process.
        proc: ProcId,
    },
    /// A process was ordered while a wanted one of its rank lives.
    #[error("{ordered} was started while {wanted} lives and nobody has stopped it")]
    TwoAlive {
        /// The one that lives.
        wanted: ProcId,
        /// The one that was ordered.
        ordered: ProcId,
    },
    /// A stage ended well before its processes were there.
    #[error("stage {stage} ended well, but {proc} is not {until:?} in its world")]
    StartNotDone {
        /// The stage.
        stage: String,
        /// A process that is not there.
        proc: ProcId,
        /// As what it was awaited.
        until: Ready,
    },
    /// Something was done for no reason.
    #[error("no incident, request or start is behind {command:?}")]
    WithoutReason {
        /// What was done.
        command: Box<Command>,
    },
    /// A counted recovery without a token.
    #[error("{incident} took recovery {taken} of {allowed}")]
    Overdrawn {
        /// For which incident.
        incident: IncidentId,
        /// Tokens taken and not given back.
        taken: u32,
        /// How many there are.
        allowed: u32,
    },
    /// Somebody was blamed to whom nothing was done.
    #[error("{incident} blames an innocent: {fault:?}")]
    InnocentBlamed {
        /// Which incident.
        incident: IncidentId,
        /// The fault that was put on it.
        fault: Box<Fault>,
    },
    /// A rank is blamed in the end to which nothing was done.
    #[error("the report of {incident} blames {rank}, to which nothing was done")]
    InnocentReported {
        /// Which incident.
        incident: IncidentId,
        /// The rank.
        rank: Rank,
    },
    /// Nobody decided about an injected fault.
    #[error("{} of {domain} at {since} was never decided about", kind.as_str())]
    Unanswered {
        /// What was injected.
        kind: FaultKind,
        /// Where.
        domain: Domain,
        /// When.
        since: JobTime,
    },
    /// What had to be dropped was not, or was not counted.
    #[error("{} of {} must have been dropped, {counted} were counted", must, what.as_str())]
    DropsDiffer {
        /// Which kind.
        what: Drop,
        /// How many by our account.
        must: u64,
        /// How many by the kernel's.
        counted: u64,
    },
    /// An order had no answer, or more than one.
    #[error("{order} was answered {replies} times")]
    NotAnsweredOnce {
        /// Which.
        order: OrderId,
        /// How many answers there were.
        replies: usize,
    },
    /// An order was followed that had to be denied, or had another effect than it should.
    #[error("{order:?} must not be followed like that")]
    WronglyFollowed {
        /// What was ordered.
        order: Box<Order>,
    },
    /// Something new was started on a host that was left.
    #[error("{proc} was started on {node}, which was left")]
    StartedOnLeft {
        /// What was started.
        proc: ProcId,
        /// Where.
        node: NodeId,
    },
    /// Ranks were to leave a host, that is said to be done, and some are still there.
    #[error("{incident} is over, and {node} was not left")]
    NotLeft {
        /// Which host.
        node: NodeId,
        /// In which incident it was to be left.
        incident: IncidentId,
    },
    /// A decision was carried out that had to be held, or the other way round.
    #[error("{incident} is held for {held:?}, and must be for {must:?}")]
    WronglyHeld {
        /// Which incident.
        incident: IncidentId,
        /// For what it is held.
        held: Option<Held>,
        /// For what it must be.
        must: Option<Held>,
    },
    /// The recovery budget paid for what an operator wanted, or for what was not carried out.
    #[error("{incident} is held or an operator's wish, and the budget went from {from} to {to}")]
    WishPaid {
        /// Which incident.
        incident: IncidentId,
        /// What was left before.
        from: u32,
        /// What is left.
        to: u32,
    },
    /// Something was done in a job that is only observed.
    #[error("the job is only observed, and the kernel commanded {command:?}")]
    NotOnlyObserved {
        /// What was done.
        command: Box<Command>,
    },
    /// A process was told what it could not do: out of order, of another world, or with the process id of somebody else.
    #[error("{proc} was told to {directive} in {generation}, which it could not do then")]
    WronglyTold {
        /// Which process.
        proc: ProcId,
        /// What it was told.
        directive: &'static str,
        /// In which world.
        generation: Generation,
    },
    /// Nobody is left who could answer, and the recovery does not go on.
    #[error("nobody is left to answer {command}, and its stage goes on")]
    WaitsForNobody {
        /// The directives.
        command: CommandId,
    },
    /// A recovery has stopped or replaced somebody whom it said to keep.
    #[error("{incident} was to keep {proc}, and does not")]
    NotKept {
        /// For which incident.
        incident: IncidentId,
        /// The process.
        proc: ProcId,
    },
    /// A recovery that keeps who lives starts somebody who was not lost.
    #[error("{incident} starts {role}, which was not lost")]
    StartedUnlost {
        /// For which incident.
        incident: IncidentId,
        /// The rank.
        role: Role,
    },
    /// Ranks begin to train together with states of different steps, or of none, or in different worlds.
    #[error("{first} and {other} begin {generation} with states that differ or are torn")]
    ReplicasDiffer {
        /// One.
        first: Rank,
        /// Another.
        other: Rank,
        /// The world.
        generation: Generation,
    },
    /// A rank trains, or is said to, that was not told to go on in this world.
    #[error("{rank} has not resumed in {generation}")]
    NotResumed {
        /// The rank.
        rank: Rank,
        /// The world.
        generation: Generation,
    },
    /// A step that a living replica had committed is lost.
    #[error("step {had} was committed and whole, and the job goes on from {has}")]
    StepLost {
        /// What a replica had.
        had: u64,
        /// What all have now.
        has: u64,
    },
    /// Without chaos the job neither stepped nor ended.
    #[error("stuck since {since}: {open} incidents open")]
    Stuck {
        /// Since when.
        since: JobTime,
        /// How many incidents are open.
        open: usize,
    },
    /// The job ended although nothing had happened that ends a job.
    #[error("the job was given up for no good reason: {reason}")]
    GivenUp {
        /// What its report says.
        reason: String,
    },
    /// The launcher refused the job's first start, and the job did not end by that.
    #[error("the first start was refused, and yet: {reason}")]
    NotRefused {
        /// What its report says.
        reason: String,
    },
    /// The job is over, and a process still runs.
    #[error("{proc} still runs after the end")]
    LeftRunning {
        /// The process.
        proc: ProcId,
    },
    /// The job is over, and an incident is not.
    #[error("{incident} is open after the end")]
    LeftOpen {
        /// The incident.
        incident: IncidentId,
    },
    /// The job completed, but a rank took fewer steps than the program has.
    #[error("rank {rank} took {taken} steps of {steps}")]
    StepsMissing {
        /// The rank.
        rank: usize,
        /// Steps that it took.
        taken: u64,
        /// Steps of the program.
        steps: u64,
    },
    /// The simulation itself fell short: too few faults struck.
    #[error("only {faults} faults of {kinds} kinds struck")]
    TooQuiet {
        /// How many.
        faults: u32,
        /// Of how many kinds.
        kinds: usize,
    },
}

impl Violation {
    /// A stable short name of the broken invariant.
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

/// What came of one seed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The first invariant that was broken, and when.
    pub violation: Option<(JobTime, Violation)>,
    /// How many ranks the job had.
    pub ranks: u32,
    /// Steps that were taken, over all ranks and all their lives.
    pub rank_steps: u64,
    /// What struck, and how often.
    pub faults: BTreeMap<FaultKind, u32>,
    /// What the kernel counted.
    pub counts: Counts,
    /// The account of the job.
    pub report: JobReport,
    /// Inputs that the kernel took.
    pub inputs: u64,
}

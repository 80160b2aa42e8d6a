//! What comes out of the kernel: commands, and the events that explain them.

use super::order::Held;
use crate::detect::{Clue, Fault};
use crate::job::{CommandId, Domain, Generation, IncidentId, JobTime, Name, Seq};
use crate::recover::{Action, Cost, Incident, Proposal};
use serde::{Deserialize, Serialize};

/// One thing for the shell to do. Its answers come back under its id; time limits are the kernel's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Command {
    /// Identifies it, from 1.
    pub id: CommandId,
    /// The world in force when it was given.
    pub generation: Generation,
    /// For which incident.
    pub incident: Option<IncidentId>,
    /// What to do.
    pub action: Action,
}

/// What people and dashboards are told. Events are commands, so a replay covers verdicts and losers as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// A fault opened an incident, or joined one.
    Found {
        /// Which incident.
        incident: IncidentId,
        /// The fault.
        fault: Fault,
        /// Whether the incident is new.
        opened: bool,
    },
    /// The arbiter has decided what to do about an incident.
    Decided(Box<Decision>),
    /// A recovery is given up for a new fault; its commands' answers will be late.
    Cancelled {
        /// Of which incident.
        incident: IncidentId,
        /// Whose proposal it was.
        strategy: Name,
        /// Which new fault.
        reason: String,
    },
    /// A stage of a recovery has ended well.
    StageDone {
        /// Of which incident; `None` for the job's first start.
        incident: Option<IncidentId>,
        /// Name of the stage.
        stage: Name,
    },
    /// A recovery has failed.
    Failed {
        /// Of which incident.
        incident: IncidentId,
        /// Whose proposal it was.
        strategy: Name,
        /// Why.
        reason: String,
    },
    /// An incident is over.
    Closed {
        /// Which.
        incident: IncidentId,
        /// How: recovered, or cleared by its detector.
        how: String,
    },
    /// An incident turned out to be a part of another one, under whose number everything goes on.
    Merged {
        /// Which.
        incident: IncidentId,
        /// Of which it is a part.
        into: IncidentId,
    },
    /// Another world is in force.
    Entered {
        /// Which.
        generation: Generation,
        /// How many restarts have led here.
        restarts: u32,
    },
    /// A detector has noticed something that is no fault, such as a process that is busy and gives no heartbeat.
    Noted {
        /// About what.
        about: Domain,
        /// What was noticed.
        clue: Clue,
    },
}

/// What was decided about an incident, on which evidence, and against what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Decision {
    /// When.
    pub at: JobTime,
    /// The incident with its faults, their evidence, and what was tried before.
    pub incident: Incident,
    /// The inputs between which its evidence arrived, first and last: where to look in the observation log.
    pub rests_on: (Seq, Seq),
    /// The winner; `None`: nothing is left, the job ends.
    pub chosen: Option<Chosen>,
    /// Proposals that lost, with their cost.
    pub lost: Vec<Lost>,
    /// Strategies that did not propose, or were not allowed to, with their reasons.
    pub refused: Vec<Refusal>,
    /// What the recovery budget holds after this decision.
    pub budget_left: u32,
    /// Why it was decided so, in one sentence.
    pub reason: String,
    /// Why it is not carried out, if it is not.
    #[serde(default)]
    pub held: Option<Held>,
}

/// The proposal that won.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Chosen {
    /// Whose it is.
    pub strategy: Name,
    /// The proposal.
    pub proposal: Proposal,
}

/// A proposal that lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lost {
    /// Whose it is.
    pub strategy: Name,
    /// What it would have cost.
    pub cost: Cost,
    /// Why it lost.
    pub reason: String,
}

/// A strategy that was not in question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    /// Which.
    pub strategy: Name,
    /// Why.
    pub reason: String,
}

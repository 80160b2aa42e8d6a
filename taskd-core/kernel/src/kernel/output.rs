//! Output of the kernel: commands, and the events that explain them.

use super::order::{HoldReason, OrderAccepted, OrderRejected};
use crate::detect::{Evidence, Fault};
use crate::job::{CommandId, Domain, Generation, IncidentId, JobTime, Name, OrderId, ProcId, Seq};
use crate::recover::{Action, Cost, Incident, Proposal};
use crate::trace::switches::Requested;
use serde::de::value::EnumAccessDeserializer;
use serde::de::{DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// A command from the decision kernel to the shell, the asynchronous part of the runtime. The shell carries the
/// command out, and its answers carry the command's id. The kernel enforces all time limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Command {
    /// Identifier of the command, counted from 1. The shell's answers to the command carry it.
    pub id: CommandId,
    /// Generation (number) of the ranks' world that was current when the command was issued.
    pub generation: Generation,
    /// Identifier of the incident that the command is for, if there is one.
    pub incident: Option<IncidentId>,
    /// What the command is to do.
    #[serde(rename = "action")]
    pub effect: Effect,
}

/// What a command is to do: an [`Action`], or one of the effects that only the kernel may command. A strategy's
/// proposal consists of actions alone, so no strategy can acknowledge an exit, publish an event, or answer an
/// operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Notify the launcher that the exit of this process is in the job's log, so that the launcher may forget it.
    Acknowledge(ProcId),
    /// Publish an event to the listeners of the runtime, such as dashboards.
    Publish(Box<Event>),
    /// Answer an operator's order.
    Reply {
        /// Identifier of the order that is answered.
        order: OrderId,
        /// The accepted order's effect, or the reason why the order is rejected.
        result: Result<OrderAccepted, OrderRejected>,
    },
    /// Set which kinds of trace record the trace recorders of all ranks record.
    Switch {
        /// On or off for each kind of trace record.
        kinds: Requested,
        /// Name of the operator or program that ordered this setting of the trace recorders.
        by: Name,
        /// True if an operator ordered the setting under an earlier supervisor and this supervisor repeats it now. If this
        /// supervisor has received an order itself, that order is newer.
        again: bool,
    },
    /// An action of a recovery, of the job's first start, or of the job's end.
    #[serde(untagged)]
    Act(Action),
}

impl From<Action> for Effect {
    fn from(action: Action) -> Effect {
        Effect::Act(action)
    }
}

impl Effect {
    /// Returns the action of an `Effect::Act`; `None` for an effect that only the kernel may command.
    #[must_use]
    pub const fn action(&self) -> Option<&Action> {
        match self {
            Effect::Act(action) => Some(action),
            _ => None,
        }
    }
}

/// Reads the form of logs and JSON, in which actions and the kernel's own effects are variants of one enum, as in the
/// first version. A derived implementation would buffer a whole command to find out which of the two it is; this one
/// reads the variant's name first.
impl<'de> Deserialize<'de> for Effect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Effect, D::Error> {
        deserializer.deserialize_enum("Effect", &[], EffectVisitor)
    }
}

struct EffectVisitor;

impl<'de> Visitor<'de> for EffectVisitor {
    type Value = Effect;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an action or an effect of the kernel")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Effect, A::Error> {
        let (name, content): (String, A::Variant) = access.variant()?;
        let is_of_kernel = matches!(name.as_str(), "acknowledge" | "publish" | "announce" | "reply" | "switch");
        let named = EnumAccessDeserializer::new(Named { name, content });
        if is_of_kernel {
            OfKernel::deserialize(named).map(Effect::from)
        } else {
            Action::deserialize(named).map(Effect::Act)
        }
    }
}

/// A variant whose name has been read.
struct Named<V> {
    name: String,
    content: V,
}

impl<'de, V: VariantAccess<'de>> EnumAccess<'de> for Named<V> {
    type Error = V::Error;
    type Variant = V;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, V), V::Error> {
        Ok((seed.deserialize(self.name.into_deserializer())?, self.content))
    }
}

/// The effects that are no actions, as they are read.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OfKernel {
    Acknowledge(ProcId),
    #[serde(alias = "announce")]
    Publish(Box<Event>),
    Reply {
        order: OrderId,
        result: Result<OrderAccepted, OrderRejected>,
    },
    Switch {
        kinds: Requested,
        by: Name,
        again: bool,
    },
}

impl From<OfKernel> for Effect {
    fn from(effect: OfKernel) -> Effect {
        match effect {
            OfKernel::Acknowledge(proc) => Effect::Acknowledge(proc),
            OfKernel::Publish(event) => Effect::Publish(event),
            OfKernel::Reply { order, result } => Effect::Reply { order, result },
            OfKernel::Switch { kinds, by, again } => Effect::Switch { kinds, by, again },
        }
    }
}

/// An event of a job, for people and dashboards. The kernel publishes events by commands, so a replay of the job's
/// log also covers the kernel's verdicts and the proposals that it did not choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// A fault opened an incident, or joined an open one.
    Found {
        /// Identifier of the incident that the fault opened or joined.
        incident: IncidentId,
        /// The fault that a detector found.
        fault: Fault,
        /// True if the fault opened the incident; false if it joined an open one.
        opened: bool,
    },
    /// The kernel has decided what to do about an incident.
    Decided(Box<Decision>),
    /// A recovery was cancelled because of a new fault. Answers to its commands count as late.
    Cancelled {
        /// Identifier of the incident for which the recovery was begun.
        incident: IncidentId,
        /// Name of the strategy whose recovery was cancelled.
        strategy: Name,
        /// Reason for the cancellation, for example the new fault.
        reason: String,
    },
    /// A stage of a recovery, or of the job's first start or end, has succeeded.
    StageDone {
        /// Identifier of the incident; `None` for the first start and the end of the job.
        incident: Option<IncidentId>,
        /// Name of the stage that succeeded.
        stage: Name,
    },
    /// A recovery has failed.
    Failed {
        /// Identifier of the incident for which the recovery was begun.
        incident: IncidentId,
        /// Name of the strategy whose recovery failed.
        strategy: Name,
        /// Reason why the recovery failed.
        reason: String,
    },
    /// An incident was closed.
    Closed {
        /// Identifier of the incident that was closed.
        incident: IncidentId,
        /// How the incident ended, for example recovered by a strategy, or cleared by its detector.
        how: String,
    },
    /// An incident was merged into another open incident, and continues under the number of the other incident.
    Merged {
        /// Identifier of the incident that was merged.
        incident: IncidentId,
        /// Identifier of the other incident, into which the incident was merged.
        into: IncidentId,
    },
    /// A new world became the current one: the set of ranks that train together, or the set of their processes, has
    /// changed.
    Entered {
        /// Generation (number) of the new world.
        generation: Generation,
        /// Number of recoveries of the job so far that counted as restarts.
        restarts: u32,
    },
    /// A detector reported an observation that is not a fault, for example a busy process without heartbeats.
    Noted {
        /// What the observation is about, for example a rank.
        about: Domain,
        /// The observation, with its figures.
        clue: Evidence,
    },
}

/// The decision about an incident, with its evidence and the rejected alternatives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Decision {
    /// Job time of the decision.
    pub at: JobTime,
    /// The incident with its faults, their evidence, and previous attempts.
    pub incident: Incident,
    /// Sequence numbers of the first and last input that carried the incident's evidence: the range to look up in the
    /// observation log.
    pub rests_on: (Seq, Seq),
    /// The proposed recovery that was chosen. `None`: no proposal is left, and the job ends, unless it can continue
    /// without a recovery.
    pub chosen: Option<Chosen>,
    /// Proposed recoveries that were not chosen, with their cost.
    pub lost: Vec<Lost>,
    /// Refusals: the strategies of which no proposal could be chosen, each with the reason.
    pub refused: Vec<Refusal>,
    /// Number of recoveries that the job's recovery budget still allows after this decision.
    pub budget_left: u32,
    /// Reason for the decision, in one sentence.
    pub reason: String,
    /// Reason why the decision is held, that is, not carried out for now; `None` if it is carried out.
    #[serde(default)]
    pub held: Option<HoldReason>,
}

/// The proposed recovery that was chosen for an incident, with its strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Chosen {
    /// Name of the strategy that made the proposal.
    pub strategy: Name,
    /// The proposed recovery: its stages, cost and reason.
    pub proposal: Proposal,
}

/// Record of a proposed recovery that was not chosen for an incident: its strategy, its cost, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lost {
    /// Name of the strategy that made the proposal.
    pub strategy: Name,
    /// Expected cost of the proposed recovery.
    pub cost: Cost,
    /// Reason why the proposal was not chosen.
    pub reason: String,
}

/// Record of why no proposal of a strategy could be chosen for an incident: the strategy refused, was not allowed to
/// propose, or made a proposal that is not eligible, for example because the recovery budget is spent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    /// Name of the strategy of which no proposal could be chosen.
    pub strategy: Name,
    /// Reason why no proposal of the strategy could be chosen.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recover::Stage;
    use std::time::Duration;

    #[test]
    fn a_logged_proposal_with_a_verb_of_the_kernel_is_not_read() {
        let acknowledge = Effect::Acknowledge(ProcId::rank(0, 1));
        let switch = Effect::Switch { kinds: Requested::NONE, by: Name::new("plugin"), again: false };
        let reply = Effect::Reply { order: OrderId(1), result: Err(OrderRejected::Refused("no".into())) };
        let finish = Action::Finish { ok: false, reason: "enough".into() };
        let stage = Stage::new("stage", Duration::from_secs(1), vec![finish.clone()]);
        let mut logged = serde_json::to_value(&stage).expect("a stage has a form");
        assert_eq!(serde_json::from_value::<Stage>(logged.clone()).expect("its own form"), stage);
        for effect in [acknowledge, switch, reply] {
            logged["actions"][0] = serde_json::to_value(&effect).expect("an effect has a form");
            let error = serde_json::from_value::<Stage>(logged.clone()).expect_err("no action").to_string();
            assert!(error.contains("unknown variant"), "{error}");
        }
    }
}

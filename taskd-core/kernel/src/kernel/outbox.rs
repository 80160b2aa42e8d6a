//! Numbers the commands of a step, and collects them.
//!
//! It knows no process and no plan: their part of a command is done by `commands`.

use super::{Command, Effect, Event};
use crate::job::{CommandId, Generation, IncidentId};

/// Collects the commands of a step: each has a number of its own, and the generation in force.
pub(super) struct Outbox<'a> {
    pub(super) out: &'a mut Vec<Command>,
    /// Number of commands of the job so far.
    pub(super) commands: &'a mut u64,
    pub(super) generation: Generation,
}

impl Outbox<'_> {
    /// Adds an effect that no plan waits for: an acknowledgement, an answer, a switch of recorders.
    pub(super) fn effect(&mut self, effect: Effect) {
        self.number(None, effect);
    }

    /// Adds the publication of an event.
    pub(super) fn announce(&mut self, incident: Option<IncidentId>, event: Event) {
        self.number(incident, Effect::Publish(Box::new(event)));
    }

    /// Adds an effect for an incident. Returns the number of the command.
    pub(super) fn number(&mut self, incident: Option<IncidentId>, effect: Effect) -> CommandId {
        *self.commands += 1;
        let id = CommandId(*self.commands);
        self.again(id, incident, effect);
        id
    }

    /// Adds a command that was issued before, under the number that it has.
    pub(super) fn again(&mut self, id: CommandId, incident: Option<IncidentId>, effect: Effect) {
        self.out.push(Command { id, generation: self.generation, incident, effect });
    }
}

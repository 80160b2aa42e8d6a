//! Every action belongs to a decided incident, the job's first start, its end, or a stray process.

use super::super::outcome::Violation;
use super::Moment;
use super::books::Books;
use crate::job::{CommandId, Incarnation, ProcId, Role, Termination};
use crate::kernel::Effect;
use crate::kernel::{Command, Input};
use crate::recover::{Action, Failure};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Reasons {
    given: BTreeSet<CommandId>,
    /// The latest ordered incarnation of each role: other processes are strays.
    newest: BTreeMap<Role, Incarnation>,
    stopped: BTreeSet<ProcId>,
    /// Processes that were ordered and missing from a supervisor's listing: they count as lost, unless ordered again.
    missing: BTreeSet<ProcId>,
    /// True if an operator has requested the end, or the first start was refused.
    to_end: bool,
}

impl Reasons {
    pub(super) fn input(&mut self, m: &Moment<'_>, books: &Books) {
        match m.input {
            input if input.is_stop() => self.to_end = true,
            Input::Answered { results, .. } if books.starting => {
                self.to_end |= results.iter().any(|(_, r)| matches!(r, Err(Failure::Refused(_))));
            }
            Input::Listed(listing) => {
                let ordered = self.newest.iter();
                self.missing = ordered.map(|(role, n)| ProcId { role: role.clone(), incarnation: *n }).collect();
                listing.procs.iter().for_each(|status| _ = self.missing.remove(&status.proc));
            }
            _ => {}
        }
    }

    pub(super) fn check(&mut self, m: &Moment<'_>, command: &Command, books: &Books) -> Result<(), Violation> {
        let again = !self.given.insert(command.id);
        let reason = match (&command.effect, command.incident) {
            (Effect::Act(Action::Finish { .. }), _) => self.may_end(m, books),
            (action, Some(id)) => is_talk(action) || books.running.contains_key(&id),
            (action, None) => match action {
                Effect::Act(Action::Start { .. }) | Effect::Act(Action::Enter(_)) => {
                    !books.training && books.open.is_empty()
                }
                Effect::Act(Action::Stop { procs, .. }) => {
                    self.may_end(m, books) || procs.iter().all(|p| self.is_stray(m, p))
                }
                _ => true,
            },
        };
        self.follow(&command.effect);
        if reason || again { Ok(()) } else { Err(Violation::WithoutReason { command: Box::new(command.clone()) }) }
    }

    /// Returns true if a process exists but is not wanted: replaced, never ordered, already stopped, missing in a
    /// listing, or ended.
    fn is_stray(&self, m: &Moment<'_>, proc: &ProcId) -> bool {
        let is_newest = self.newest.get(&proc.role) == Some(&proc.incarnation);
        let was_dismissed = self.stopped.contains(proc) || self.missing.contains(proc);
        !is_newest || was_dismissed || m.fleet.procs.get(proc).is_some_and(|p| !p.is_alive())
    }

    fn may_end(&self, m: &Moment<'_>, books: &Books) -> bool {
        let done = |proc: &ProcId| {
            let process = m.fleet.procs.get(proc);
            process.and_then(|p| p.phase.termination()).is_some_and(Termination::is_success)
        };
        let completed = || {
            let world = &m.kernel.view().world;
            world.members().keys().all(|rank| world.proc(*rank).is_some_and(|p| done(&p)))
        };
        self.to_end || books.decided_to_end || completed()
    }

    fn follow(&mut self, action: &Effect) {
        match action {
            Effect::Act(Action::Start { batch, .. }) => {
                for order in &batch.starts {
                    self.missing.remove(&order.proc);
                    self.newest.insert(order.proc.role.clone(), order.proc.incarnation);
                }
            }
            Effect::Act(Action::Stop { procs, .. }) => self.stopped.extend(procs.iter().cloned()),
            _ => {}
        }
    }
}

fn is_talk(action: &Effect) -> bool {
    matches!(action, Effect::Publish(_) | Effect::Acknowledge(_))
}

//! No two recoveries touch one domain at the same time.

use super::super::outcome::Violation;
use super::Moment;
use super::books::{Books, event};
use crate::job::{Domain, Role};
use crate::kernel::Effect;
use crate::kernel::{Chosen, Command, Event};
use crate::recover::Action;

pub(super) fn check(m: &Moment<'_>, command: &Command, books: &Books) -> Result<(), Violation> {
    let Some(Event::Decided(decision)) = event(command) else { return Ok(()) };
    let begins = |c: &&Chosen| decision.held.is_none() && !c.proposal.cost.ends_job;
    let Some(chosen) = decision.chosen.as_ref().filter(begins) else { return Ok(()) };
    let id = decision.incident.id;
    let view = m.kernel.view();
    // The host of a process that this step orders is known only after the decision.
    let ordered =
        |domain: &Domain| matches!(domain, Domain::Process(role) if m.commands.iter().any(|c| orders(c, role)));
    let overlap = |a: &Domain, b: &Domain| a == b || (view.overlap(a, b) && !ordered(a) && !ordered(b));
    for (other, running) in books.running.iter().filter(|(other, _)| **other != id) {
        for ours in &chosen.proposal.affected_domains {
            if let Some(theirs) = running.touches.iter().find(|t| overlap(ours, t)) {
                return Err(Violation::RecoveriesOverlap {
                    first: *other,
                    touches: theirs.clone(),
                    second: id,
                    touches_too: ours.clone(),
                });
            }
        }
    }
    Ok(())
}

fn orders(command: &Command, role: &Role) -> bool {
    matches!(&command.effect, Effect::Act(Action::Start { batch, .. }) if batch.starts.iter().any(|o| o.proc.role == *role))
}

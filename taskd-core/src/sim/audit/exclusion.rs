//! No two recoveries touch one domain at a time.

use super::super::outcome::Violation;
use super::Moment;
use super::books::{Books, event};
use crate::kernel::{Command, Event};

pub(super) fn check(m: &Moment<'_>, command: &Command, books: &Books) -> Result<(), Violation> {
    let Some(Event::Decided(decision)) = event(command) else { return Ok(()) };
    let Some(chosen) = decision.chosen.as_ref().filter(|c| !c.proposal.cost.ends_job) else { return Ok(()) };
    let id = decision.incident.id;
    for (other, running) in books.running.iter().filter(|(other, _)| **other != id) {
        for ours in &chosen.proposal.touches {
            if let Some(theirs) = running.touches.iter().find(|t| m.kernel.view().overlap(ours, t)) {
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

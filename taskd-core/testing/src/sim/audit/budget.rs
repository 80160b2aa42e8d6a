//! Every counted recovery takes a token, by the audit's own count; operators' orders and held decisions take none.

use super::super::outcome::Violation;
use super::Moment;
use super::books::{Books, event};
use crate::job::{Counted, IncidentId, JobTime};
use crate::kernel::{Command, Event};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Tokens taken and not returned.
    taken: u32,
    saved: Duration,
    until: JobTime,
    /// Remaining tokens that the kernel has reported last.
    pub(super) reported: u32,
    /// Number of causes and failed attempts that have been charged for each incident.
    paid: BTreeMap<IncidentId, usize>,
}

impl Budget {
    /// Returns tokens for healthy training since the last step.
    pub(super) fn pass(&mut self, m: &Moment<'_>, books: &Books) {
        let policy = &m.kernel.view().spec.policy.budget;
        let passed = m.now.since(self.until);
        self.until = m.now;
        let healthy = books.training && books.open.is_empty();
        if healthy && self.taken > 0 {
            self.saved += passed;
            while self.saved >= policy.refill_every && self.taken > 0 {
                self.saved -= policy.refill_every;
                self.taken -= 1;
            }
        }
    }

    pub(super) fn check(&mut self, m: &Moment<'_>, command: &Command, books: &Books) -> Result<(), Violation> {
        if let Some(Event::Merged { incident, into }) = event(command) {
            let paid = self.paid.remove(incident).unwrap_or(0);
            *self.paid.entry(*into).or_default() += paid;
        }
        let Some(Event::Decided(decision)) = event(command) else { return Ok(()) };
        let reported = std::mem::replace(&mut self.reported, decision.budget_left);
        let is_wish = books.is_mere_wish(decision);
        if is_wish || decision.held.is_some() {
            // Tokens may have been returned since the last report: then there are more.
            return match decision.budget_left < reported {
                true => Err(Violation::WishPaid {
                    incident: decision.incident.id,
                    from: reported,
                    to: decision.budget_left,
                }),
                false => Ok(()),
            };
        }
        let Some(chosen) = &decision.chosen else { return Ok(()) };
        if chosen.proposal.counted == Counted::No || chosen.proposal.cost.ends_job {
            return Ok(());
        }
        let incident = &decision.incident;
        let causes = incident.faults.iter().filter(|f| f.primary_suspect().is_cause()).count();
        let worth = (causes + incident.attempts.len()).max(1);
        let paid = self.paid.entry(incident.id).or_default();
        if worth <= *paid {
            return Ok(()); // planned again because of victims
        }
        *paid = worth;
        self.taken += 1;
        let allowed = m.kernel.view().spec.policy.budget.recoveries_max;
        if self.taken > allowed {
            return Err(Violation::Overdrawn { incident: decision.incident.id, taken: self.taken, allowed });
        }
        Ok(())
    }
}

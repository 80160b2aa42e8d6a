//! When an incident's time has come: what the arbiter says becomes a decision that is told, paid for, and begun.
//!
//! It judges no proposal: that is the `arbiter`'s part.

use super::arbiter::{Bench, Price, Verdict, arbitrate};
use super::incidents::Open;
use super::plans::PlanId;
use super::{Branch, Decision, Event, Kernel};
use crate::detect::Fault;
use crate::job::{Domain, IncidentId, JobTime, Role};

impl Kernel {
    /// Decides one incident whose time has come. False: there is none.
    pub(super) fn decide_one(&mut self) -> bool {
        let now = self.now();
        let due = |o: &&Open| o.decide_at.is_some_and(|at| at <= now);
        let Some(id) = self.state.incidents.values().find(due).map(|o| o.incident.id) else { return false };
        if self.state.life.is_ending() {
            self.set_decide_at(id, None);
            return true;
        }
        let open = &self.state.incidents[&id];
        if open.incident.faults.iter().all(|f| matches!(f.prime().domain, Domain::Plugin(_))) {
            self.state.counts.branch(Branch::Noted);
            self.close(id, "noted: it concerns the runtime, not the job", None);
            return true;
        }
        if self.is_overtaken(open) {
            self.state.counts.branch(Branch::Overtaken);
            self.close(id, "another recovery has replaced what was blamed", None);
            return true;
        }
        let bench = self.bench(open);
        let verdict = arbitrate(&open.incident, &bench);
        let price = verdict.chosen.as_ref().map_or(Price::Nothing, |c| bench.price(&c.proposal));
        self.rule(id, verdict, price);
        true
    }

    /// Whether everything that was blamed has a newer process in its place, which another recovery has started.
    fn is_overtaken(&self, open: &Open) -> bool {
        let view = &self.state.view;
        let stands = |fault: &Fault| {
            let member = match &fault.prime().domain {
                Domain::Process(Role::Rank(rank)) => view.world.members().get(rank),
                _ => None,
            };
            member.is_none_or(|m| fault.incarnation().is_none_or(|of| of >= m.incarnation))
        };
        let own_failed = !open.incident.attempts.is_empty();
        !own_failed && view.stopped_for(open.incident.id).next().is_none() && !open.incident.faults.iter().any(stands)
    }

    fn bench(&self, open: &Open) -> Bench<'_> {
        let touched = self.state.plans.values().flat_map(|p| p.run.proposal.touches.iter().cloned()).collect();
        Bench {
            view: &self.state.view,
            strategies: &self.strategies,
            budget_left: self.state.budget.left(),
            free_in_row: self.state.free_in_row,
            paid: open.paid >= open.worth(),
            touched,
            checks: &self.checks,
        }
    }

    /// Turns a verdict into a plan, a wait, or the end.
    fn rule(&mut self, id: IncidentId, verdict: Verdict, price: Price) {
        self.set_decide_at(id, None);
        for plugin in verdict.panicked {
            let fault =
                super::intake::plugin_fault(&self.state.view, plugin, "the strategy panicked in propose".into());
            self.found.blame(fault);
        }
        if verdict.waits {
            return self.state.counts.branch(Branch::Excluded); // asked again when a plan ends
        }
        verdict.branches.into_iter().for_each(|b| self.state.counts.branch(b));
        let at = self.now();
        let Some(open) = self.state.incidents.get_mut(&id) else { return };
        match price {
            Price::Nothing => {}
            Price::Token => {
                open.paid = open.worth();
                self.state.budget.withdraw();
                self.state.free_in_row = 0;
            }
            Price::FreeRetry => {
                open.paid = open.worth();
                self.state.counts.branch(Branch::FreeRetry);
                self.state.free_in_row += 1;
            }
        }
        let decision = Decision {
            at,
            incident: open.incident.clone(),
            rests_on: open.rests_on,
            chosen: verdict.chosen.clone(),
            lost: verdict.lost,
            refused: verdict.refused,
            budget_left: self.state.budget.left(),
            reason: verdict.reason,
        };
        self.state.ledger.decided(&decision);
        let last_words = decision.last_words();
        self.announce(Some(id), Event::Decided(Box::new(decision)));
        match verdict.chosen {
            None => self.end(false, &last_words),
            Some(chosen) => {
                if chosen.proposal.cost.ends_job {
                    self.state.life = super::ending::Life::Ending;
                    self.drop_other_plans(PlanId::Recovery(id));
                }
                self.begin(PlanId::Recovery(id), chosen.strategy, chosen.proposal);
            }
        }
    }

    pub(super) fn set_decide_at(&mut self, id: IncidentId, at: Option<JobTime>) {
        if let Some(open) = self.state.incidents.get_mut(&id) {
            open.decide_at = at;
        }
    }
}

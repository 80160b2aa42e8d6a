//! When an incident's time has come: what the arbiter says becomes a decision that is told, paid for, and begun.
//!
//! It judges no proposal: that is the `arbiter`'s part.

use super::arbiter::{Bench, Price, Verdict, arbitrate};
use super::incidents::{Hold, Open};
use super::plans::PlanId;
use super::{Branch, Chosen, Decision, Event, Held, Kernel, Proc, View};
use crate::detect::Fault;
use crate::job::{Domain, IncidentId, JobTime, Name, NodeId, Permission, RemovalCap, Role};
use crate::recover::Action;
use std::collections::BTreeSet;
use std::time::Duration;

/// How an incident ends that another one's recovery has made void.
pub(crate) const REPLACED: &str = "another recovery has replaced what was blamed";
/// Most removals of hosts that are remembered for the cap: the oldest go first, and a cap above it is none.
const REMOVALS_KEPT_MAX: usize = 1024;

/// Whether an incident is an operator's wish for which nothing was stopped yet.
fn is_wish(open: &Open) -> bool {
    open.incident.is_ordered() && !open.begun
}

/// Whether the job goes on though nothing is done for an incident, for which nothing was stopped yet.
fn harms_nobody(open: &Open, view: &View) -> bool {
    !open.begun && open.incident.harms_nobody(view)
}

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
        if let Some(spares) = self.broken_spares(open) {
            return self.take_out(id, &spares);
        }
        if self.is_overtaken(open) {
            if self.observes() {
                self.state.ledger.judged(&open.incident, &self.state.view); // others were so quick that it was never decided
            }
            self.state.counts.branch(Branch::Overtaken);
            self.close(id, REPLACED, None);
            return true;
        }
        if self.awaits_guard(id) {
            self.set_decide_at(id, None);
            return true;
        }
        if let Some(until) = self.awaits_word(id) {
            self.state.counts.branch(Branch::AwaitedWord);
            self.set_decide_at(id, Some(until));
            return true;
        }
        self.charge_closed(id);
        let open = &self.state.incidents[&id];
        let bench = self.bench(open);
        let verdict = arbitrate(&open.incident, &bench);
        let price = verdict.chosen.as_ref().map_or(Price::Nothing, |c| bench.price(&c.proposal));
        self.rule(id, verdict, price);
        true
    }

    /// Whether everything that was blamed has a newer process in its place, which another recovery has started.
    pub(super) fn is_overtaken(&self, open: &Open) -> bool {
        let view = &self.state.view;
        let stands = |fault: &Fault| {
            if let Domain::Node(node) | Domain::Device(node, _) = &fault.prime().domain {
                return !self.ranks_on(node).is_empty();
            }
            if let Domain::Guard(node) = &fault.prime().domain {
                let ends_with_it = |proc: &Proc| proc.unguarded && proc.node.as_ref() == Some(node);
                return fault.prime().damage.still_trains() || view.procs.values().any(ends_with_it);
            }
            let member = match &fault.prime().domain {
                Domain::Process(Role::Rank(rank)) => view.world.members().get(rank),
                _ => None,
            };
            member.is_none_or(|m| fault.incarnation().is_none_or(|of| of >= m.incarnation))
        };
        let is_half_done = self.state.trial.as_ref().is_some_and(|trial| trial.leaves_ranks_waiting(open.incident.id));
        !open.has_failed()
            && !is_half_done
            && view.stopped_for(open.incident.id).next().is_none()
            && !open.incident.faults.iter().any(stands)
    }

    /// Hosts without ranks, if that is all that an incident is about, and one of them does not work and is not left yet.
    fn broken_spares(&self, open: &Open) -> Option<BTreeSet<NodeId>> {
        let is_of_a_spare = |fault: &Fault| match &fault.prime().domain {
            Domain::Node(node) | Domain::Device(node, _) => self.ranks_on(node).is_empty(),
            _ => false,
        };
        let mut spares = open.incident.broken_hosts();
        spares.retain(|node| self.state.view.is_ready(node));
        let is_untouched = !open.begun && open.incident.attempts.is_empty();
        let is_all = is_untouched && open.incident.faults.iter().all(is_of_a_spare);
        (is_all && !spares.is_empty()).then_some(spares)
    }

    /// Takes hosts out on which nothing runs, where this runtime may act. True: the incident is settled.
    fn take_out(&mut self, id: IncidentId, spares: &BTreeSet<NodeId>) -> bool {
        let by = self.state.incidents[&id].incident.root().map_or(Name::new("somebody"), |fault| fault.by.clone());
        let how = match (self.observes(), self.state.paused.is_some(), self.over_the_cap(spares.len())) {
            (true, ..) => "nothing runs on it: would be taken out".to_owned(),
            (_, true, _) => "nothing runs on it: not taken out, as the runtime is paused".to_owned(),
            (.., Some(cap)) => format!("nothing runs on it: not taken out, as {cap}"),
            _ => {
                let reason = format!("{by} found it broken");
                self.command(None, Action::Cordon { nodes: spares.clone(), reason }, Duration::MAX);
                self.note_removals(spares.len());
                "nothing runs on it: taken out".to_owned()
            }
        };
        self.close(id, &how, None);
        true
    }

    fn bench<'a>(&'a self, open: &'a Open) -> Bench<'a> {
        let touched = self.state.plans.values().flat_map(|p| p.run.proposal.touches.iter().cloned()).collect();
        Bench {
            view: &self.state.view,
            strategies: &self.strategies,
            budget_left: self.state.budget.left(),
            free_in_row: self.state.free_in_row,
            paid: open.paid >= open.worth(),
            let_off: open.let_off >= open.worth(),
            ordered: is_wish(open),
            harms_nobody: harms_nobody(open, &self.state.view),
            declined: &open.declined,
            charged: &open.charged,
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
            if let Some(open) = self.state.incidents.get_mut(&id) {
                open.held = None; // decided anew when a plan ends
            }
            return self.state.counts.branch(Branch::Excluded);
        }
        verdict.branches.into_iter().for_each(|b| self.state.counts.branch(b));
        let Some(open) = self.state.incidents.get(&id) else { return };
        let (is_wish, harms_nobody) = (is_wish(open), harms_nobody(open, &self.state.view));
        let is_none = verdict.chosen.is_none();
        let held = if is_none && (harms_nobody || is_wish) { None } else { self.hold(id, verdict.chosen.as_ref()) };
        let is_dropped = is_none && (is_wish || harms_nobody);
        let at = self.now();
        self.book(id, held.as_ref().map(|(why, _)| Hold { why: *why, chosen: verdict.chosen.clone() }), price);
        let Some(open) = self.state.incidents.get(&id) else { return };
        let decision = Decision {
            at,
            incident: open.incident.clone(),
            rests_on: open.rests_on,
            chosen: verdict.chosen.clone(),
            lost: verdict.lost,
            refused: verdict.refused,
            budget_left: self.state.budget.left(),
            reason: verdict.reason + held.as_ref().map_or("", |(_, text)| text),
            held: held.as_ref().map(|(why, _)| *why),
        };
        self.state.ledger.decided(&decision, &self.state.view);
        let last_words = decision.last_words();
        self.announce(Some(id), Event::Decided(Box::new(decision)));
        if let Some((why, _)) = held {
            self.maybe_complete = true; // all ranks may have finished while this was undecided
            return self.state.counts.branch(match why {
                Held::Observing => Branch::HeldObserving,
                Held::Paused => Branch::HeldPaused,
                Held::Asking => Branch::HeldAsking,
            });
        }
        match verdict.chosen {
            None if is_dropped => {
                self.state.counts.branch(Branch::WishDropped);
                self.close(id, &format!("not done: {last_words}"), None);
            }
            None => self.end(false, &last_words),
            Some(chosen) => {
                self.note_removals(chosen.proposal.cost.nodes_removed as usize);
                if chosen.proposal.cost.ends_job {
                    self.state.life = super::ending::Life::Ending;
                    self.drop_other_plans(PlanId::Recovery(id));
                }
                self.begin(PlanId::Recovery(id), chosen.strategy, chosen.proposal);
            }
        }
    }

    /// Notes that a decision is held, or takes what it costs from the budget.
    fn book(&mut self, id: IncidentId, hold: Option<Hold>, price: Price) {
        let Some(open) = self.state.incidents.get_mut(&id) else { return };
        (open.held, open.word_until) = (hold, None);
        if open.held.is_some() {
            return;
        }
        match price {
            Price::Nothing => {}
            Price::Token => {
                open.paid = open.worth();
                self.state.budget.withdraw();
                self.state.free_in_row = 0;
            }
            Price::FreeRetry => {
                open.let_off = open.worth();
                self.state.counts.branch(Branch::FreeRetry);
                self.state.free_in_row += 1;
            }
        }
    }

    /// Why a verdict is not carried out, if it is not: the reason, and how it is told.
    fn hold(&mut self, id: IncidentId, chosen: Option<&Chosen>) -> Option<(Held, String)> {
        let question = chosen.and_then(|chosen| self.question(id, chosen));
        if self.observes() {
            let asks = question.map_or(String::new(), |question| format!(", and would ask: {question}"));
            return Some((Held::Observing, format!("; not done: this runtime only observes{asks}")));
        }
        if let Some(paused) = &self.state.paused {
            return Some((Held::Paused, format!("; held: {} has paused the runtime ({})", paused.by, paused.reason)));
        }
        question.map(|question| (Held::Asking, format!("; held: {question}")))
    }

    /// Why an operator has to approve it first, if one has to.
    fn question(&mut self, id: IncidentId, chosen: &Chosen) -> Option<String> {
        let Chosen { strategy, proposal } = chosen;
        if self.state.incidents.get(&id)?.approved.contains(strategy) {
            return None;
        }
        let policy = &self.state.view.spec.policy;
        if policy.permission(strategy) == Permission::Ask {
            return Some(format!("{strategy} is carried out when an operator approves it"));
        }
        self.over_the_cap(proposal.cost.nodes_removed as usize)
    }

    /// Why an operator has to approve that so many more hosts are taken out, if one has to.
    fn over_the_cap(&mut self, nodes: usize) -> Option<String> {
        let RemovalCap { nodes_max, within } = self.state.view.spec.policy.node_removals;
        let since = self.now().since(JobTime::START).saturating_sub(within);
        self.state.removals.retain(|at| at.since(JobTime::START) >= since);
        let removed = self.state.removals.len();
        (nodes > 0 && removed.saturating_add(nodes) > nodes_max as usize).then(|| {
            format!("{removed} hosts were taken out within {within:?}, and {nodes_max} may be without an approval")
        })
    }

    pub(super) fn note_removals(&mut self, nodes: usize) {
        let now = self.now();
        self.state.removals.extend((0..nodes.min(REMOVALS_KEPT_MAX)).map(|_| now));
        while self.state.removals.len() > REMOVALS_KEPT_MAX {
            self.state.removals.pop_front();
        }
    }

    pub(super) fn set_decide_at(&mut self, id: IncidentId, at: Option<JobTime>) {
        if let Some(open) = self.state.incidents.get_mut(&id) {
            open.decide_at = at;
        }
    }
}

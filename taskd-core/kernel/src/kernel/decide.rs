//! Decides incidents that are due: turns the arbiter's verdict into a decision, which is published, paid for and begun.
//!
//! A decision can end the job and concerns every part, so it is made on the whole kernel; what it rests on are functions
//! of the few parts that they read. This file judges no proposal: that is the part of the `arbiter`.

use super::arbiter::{ArbiterContext, Price, Verdict, arbitrate};
use super::budget::Account;
use super::incidents::{Hold, Open};
use super::lifecycle::Life;
use super::links::{AwaitedReports, WORD_WITHIN};
use super::operator::ranks_on;
use super::plans::PlanId;
use super::plugins::plugin_fault;
use super::probation::Trial;
use super::{Branch, Chosen, Decision, Event, HoldReason, Kernel, State};
use crate::detect::{Fault, Health};
use crate::job::strategy::EXIT;
use crate::job::{Domain, IncidentId, JobTime, Name, NodeId, Permission, ProcId, Role};
use crate::recover::Action;
use crate::state::{NodeState, Proc, View, placement};
use std::collections::BTreeSet;
use std::time::Duration;

/// Text with which an incident is closed after the recovery of another incident has replaced its blamed processes.
#[doc(hidden)]
pub const REPLACED: &str = "another recovery has replaced the blamed processes";

/// Time for which a job that would end waits for the return of hosts that it has lost. On overloaded machines hosts lose
/// their leases, and are back seconds later.
const RETURNS_WITHIN: Duration = Duration::from_secs(30);

/// Returns true if the incident is an operator's request for which no process was stopped yet.
fn is_wish(open: &Open) -> bool {
    open.incident.is_requested_by_operator() && !open.begun
}

/// Returns true if the job continues even if nothing is done for the incident, and no process was stopped for it yet.
fn is_non_disruptive(open: &Open, view: &View) -> bool {
    !open.begun && open.incident.is_non_disruptive(view)
}

/// Returns true if another incident's recovery has started newer processes in the place of all that was blamed.
fn is_overtaken(open: &Open, view: &View, trial: Option<&Trial>) -> bool {
    let stands = |fault: &Fault| {
        if let Domain::Node(node) | Domain::Device(node, _) = &fault.primary_suspect().domain {
            return !ranks_on(node, view).is_empty();
        }
        if let Domain::Guard(node) = &fault.primary_suspect().domain {
            let ends_with_it = |proc: &Proc| proc.unguarded && proc.node.as_ref() == Some(node);
            return fault.primary_suspect().damage.is_still_training() || view.procs.values().any(ends_with_it);
        }
        let member = match &fault.primary_suspect().domain {
            Domain::Topology(_) => return false, // the faults of its hosts stand or not
            Domain::Process(Role::Rank(rank)) => view.world.members().get(rank),
            _ => None,
        };
        member.is_none_or(|m| fault.incarnation().is_none_or(|of| of >= m.incarnation))
    };
    let is_half_done = trial.is_some_and(|trial| trial.leaves_ranks_waiting(open.incident.id));
    !open.has_failed()
        && !is_half_done
        && view.stopped_for(open.incident.id).next().is_none()
        && !open.incident.faults.iter().any(stands)
}

/// Returns true if the job would end although its program is sound and no operator or detector has asked for its end.
fn ends_job(verdict: &Verdict, open: &Open, view: &View) -> bool {
    let ends = match &verdict.chosen {
        Some(chosen) => chosen.proposal.cost.ends_job,
        None => !verdict.waits && !is_wish(open) && !is_non_disruptive(open, view),
    };
    let is_final = |fault: &Fault| {
        fault.advice.as_ref() == Some(&EXIT) || fault.primary_suspect().damage.program == Health::Faulty
    };
    ends && !open.incident.faults.iter().any(is_final)
}

/// Returns the faulty hosts to cordon, if the incident concerns only hosts without ranks.
///
/// `None` unless at least one of these hosts is faulty and still in use.
fn broken_spares(open: &Open, view: &View) -> Option<BTreeSet<NodeId>> {
    let is_of_a_spare = |fault: &Fault| match &fault.primary_suspect().domain {
        Domain::Node(node) | Domain::Device(node, _) => ranks_on(node, view).is_empty(),
        _ => false,
    };
    let mut spares = open.incident.broken_hosts();
    spares.retain(|node| view.is_ready(node));
    let is_untouched = !open.begun && open.incident.attempts.is_empty();
    let is_all = is_untouched && open.incident.faults.iter().all(is_of_a_spare);
    (is_all && !spares.is_empty()).then_some(spares)
}

impl Kernel {
    /// Decides one incident that is due. Returns false if there is none.
    pub(super) fn decide_one(&mut self) -> bool {
        let Some(id) = self.agenda().due() else { return false };
        if self.state.life.is_ending() {
            self.agenda().set(id, None);
            return true;
        }
        let State { incidents, view, counts, ledger, trial, .. } = &mut self.state;
        let open = &incidents[&id];
        if open.incident.faults.iter().all(|f| matches!(f.primary_suspect().domain, Domain::Plugin(_))) {
            counts.branch(Branch::Noted);
            self.close(id, "noted: it concerns the runtime, not the job", None);
            return true;
        }
        if let Some(spares) = broken_spares(open, view) {
            return self.take_out(id, &spares);
        }
        if is_overtaken(open, view, trial.as_ref()) {
            if view.is_dry_run() {
                ledger.judged(&open.incident, view); // replaced before it was decided
            }
            counts.branch(Branch::Overtaken);
            self.close(id, REPLACED, None);
            return true;
        }
        if self.silent_guards().delay(&self.state.incidents[&id]) {
            self.agenda().set(id, None);
            return true;
        }
        let is_fenced = self.state.incidents[&id].incident.is_fenced();
        let awaited = self.awaits_hosts(id).or_else(|| self.awaits_word(id));
        if let Some(until) = awaited.or_else(|| self.awaits_sight(id, Duration::ZERO).filter(|_| is_fenced)) {
            return self.postpone(id, until);
        }
        self.probation().charge_closed(id);
        let open = &self.state.incidents[&id];
        let context = self.arbiter_context(open);
        let verdict = arbitrate(&open.incident, &context);
        let price = verdict.chosen.as_ref().map_or(Price::Nothing, |c| context.price(&c.proposal));
        if let Some(until) =
            self.awaits_sight(id, RETURNS_WITHIN).filter(|_| ends_job(&verdict, open, &self.state.view))
        {
            return self.postpone(id, until);
        }
        self.rule(id, verdict, price);
        true
    }

    /// Returns the time at which the decision is due again, if it waits because another supervisor has left ranks of which
    /// nothing was reported yet: whether they can be kept is not known. The launcher reports each of them, once it has
    /// found or lost the host. Until then the incident takes in the faults that are found meanwhile.
    fn awaits_hosts(&mut self, id: IncidentId) -> Option<JobTime> {
        let State { unseen, view, incidents, .. } = &mut self.state;
        let is_member = |proc: &ProcId| {
            let member = proc.role.rank().and_then(|rank| view.world.members().get(&rank));
            member.is_some_and(|member| member.incarnation == proc.incarnation)
        };
        if view.is_dry_run() || !unseen.iter().any(is_member) {
            return None;
        }
        let until = view.now + WORD_WITHIN;
        incidents.get_mut(&id)?.word_until = Some(until);
        Some(until)
    }

    /// Decides later, at `until`. Returns true: nothing else is to be done for the incident now.
    fn postpone(&mut self, id: IncidentId, until: JobTime) -> bool {
        self.state.counts.branch(Branch::AwaitedWord);
        self.agenda().set(id, Some(until));
        true
    }

    /// Returns the time at which the decision is due again, if it waits for hosts of the world: one that is out of sight is
    /// back or lost before long, and one that was lost because it gave no sign of life may be back at once. No host is waited
    /// for without end, and a lost one for `lost`.
    fn awaits_sight(&self, id: IncidentId, lost: Duration) -> Option<JobTime> {
        let State { view, incidents, .. } = &self.state;
        let opened = incidents.get(&id)?.incident.opened;
        let within = |host: &NodeId| match view.nodes.get(host)?.state {
            NodeState::OutOfSight => Some(view.spec.policy.start_timeout),
            NodeState::Left => Some(lost),
            _ => None,
        };
        let seats = placement::current(view);
        let within = seats.values().filter_map(|seat| within(seat.node.as_ref()?)).max()?;
        (!view.is_dry_run() && view.now < opened + within).then(|| view.now + WORD_WITHIN)
    }

    /// Returns the time until which the decision waits for a report of a rank, if it does.
    fn awaits_word(&mut self, id: IncidentId) -> Option<JobTime> {
        let State { incidents, view, unread, .. } = &mut self.state;
        AwaitedReports { view, unread }.delay(incidents.get_mut(&id)?)
    }

    /// Cordons hosts on which nothing runs, if the runtime may act. Always returns true: the incident is settled.
    fn take_out(&mut self, id: IncidentId, spares: &BTreeSet<NodeId>) -> bool {
        let by = self.state.incidents[&id].incident.root().map_or(Name::new("a detector"), |fault| fault.by.clone());
        let how = match (
            self.state.view.is_dry_run(),
            self.state.paused.is_some(),
            self.hosts().over_the_cap(spares.len()),
        ) {
            (true, ..) => "no process runs on it: would be cordoned".to_owned(),
            (_, true, _) => "no process runs on it: not cordoned, as the runtime is paused".to_owned(),
            (.., Some(cap)) => format!("no process runs on it: not cordoned, as {cap}"),
            _ => {
                let reason = format!("reported as broken by {by}");
                self.command(None, Action::Cordon { nodes: spares.clone(), reason }, Duration::MAX);
                self.hosts().note_removals(spares.len());
                "no process runs on it: cordoned".to_owned()
            }
        };
        self.host_incidents().decided(id);
        self.close(id, &how, None);
        true
    }

    fn arbiter_context<'a>(&'a self, open: &'a Open) -> ArbiterContext<'a> {
        let touched = self.state.plans.values().flat_map(|p| p.run.proposal.affected_domains.iter().cloned()).collect();
        ArbiterContext {
            view: &self.state.view,
            strategies: &self.strategies,
            budget_left: self.state.budget.left(),
            free_in_row: self.state.free_in_row,
            paid: open.paid >= open.worth(),
            let_off: open.let_off >= open.worth(),
            fenced: open.incident.is_fenced(),
            ordered: is_wish(open),
            is_non_disruptive: is_non_disruptive(open, &self.state.view),
            declined: &open.declined,
            charged: &open.charged,
            touched,
            checks: &self.checks,
        }
    }

    /// Turns a verdict into a plan, a wait, or the end of the job.
    fn rule(&mut self, id: IncidentId, verdict: Verdict, price: Price) {
        self.agenda().set(id, None);
        for plugin in verdict.panicked {
            let fault = plugin_fault(&self.state.view, plugin, "the strategy panicked in `propose`".into());
            self.found.blame(fault);
        }
        if verdict.waits {
            if let Some(open) = self.state.incidents.get_mut(&id) {
                open.held = None; // decided again when a plan ends
            }
            return self.state.counts.branch(Branch::Excluded);
        }
        verdict.branches.into_iter().for_each(|b| self.state.counts.branch(b));
        let Some(open) = self.state.incidents.get(&id) else { return };
        let (is_wish, is_non_disruptive) = (is_wish(open), is_non_disruptive(open, &self.state.view));
        let is_none = verdict.chosen.is_none();
        let held =
            if is_none && (is_non_disruptive || is_wish) { None } else { self.hold(id, verdict.chosen.as_ref()) };
        let is_dropped = is_none && (is_wish || is_non_disruptive);
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
        self.host_incidents().decided(id);
        self.outbox().announce(Some(id), Event::Decided(Box::new(decision)));
        if let Some((why, _)) = held {
            self.maybe_complete = true; // all ranks may have finished while this was undecided
            return self.state.counts.branch(match why {
                HoldReason::DryRun => Branch::HeldObserving,
                HoldReason::Paused => Branch::HeldPaused,
                HoldReason::AwaitingApproval => Branch::HeldAsking,
            });
        }
        match verdict.chosen {
            None if is_dropped => {
                self.state.counts.branch(Branch::WishDropped);
                self.close(id, &format!("not done: {last_words}"), None);
            }
            None => self.end(false, &last_words),
            Some(chosen) => {
                self.hosts().note_removals(chosen.proposal.cost.nodes_removed as usize);
                if chosen.proposal.cost.ends_job {
                    self.state.life = Life::Ending;
                    self.plans().cancel_others(PlanId::Recovery(id));
                }
                self.begin(PlanId::Recovery(id), chosen.strategy, chosen.proposal);
            }
        }
    }

    /// Records that a decision is held (not carried out for now), or charges its price to the recovery budget.
    fn book(&mut self, id: IncidentId, hold: Option<Hold>, price: Price) {
        let State { incidents, budget, free_in_row, counts, .. } = &mut self.state;
        let Some(open) = incidents.get_mut(&id) else { return };
        (open.held, open.word_until) = (hold, None);
        if open.held.is_none() {
            Account { budget, free_in_row, counts }.pay(open, price);
        }
    }

    /// Returns the reason why a verdict is held, with its text. `None` if it is carried out.
    fn hold(&mut self, id: IncidentId, chosen: Option<&Chosen>) -> Option<(HoldReason, String)> {
        let question = chosen.and_then(|chosen| self.question(id, chosen));
        if self.state.view.is_dry_run() {
            let asks = question.map_or(String::new(), |question| format!(", and would ask: {question}"));
            return Some((HoldReason::DryRun, format!("; not done: this runtime only observes{asks}")));
        }
        if let Some(paused) = &self.state.paused {
            return Some((
                HoldReason::Paused,
                format!("; held: {} has paused the runtime ({})", paused.by, paused.reason),
            ));
        }
        question.map(|question| (HoldReason::AwaitingApproval, format!("; held: {question}")))
    }

    /// Returns the reason why an operator has to approve the proposal first, if one has to.
    fn question(&mut self, id: IncidentId, chosen: &Chosen) -> Option<String> {
        let Chosen { strategy, proposal } = chosen;
        if self.state.incidents.get(&id)?.approved.contains(strategy) {
            return None;
        }
        let policy = &self.state.view.spec.policy;
        if policy.permission(strategy) == Permission::Ask {
            return Some(format!("{strategy} needs the approval of an operator"));
        }
        self.hosts().over_the_cap(proposal.cost.nodes_removed as usize)
    }
}

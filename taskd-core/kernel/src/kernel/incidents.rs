//! Turns findings into incidents: correlates related faults, absorbs parts, and withdraws blame.
//!
//! It never proposes a recovery: when the correlation window of an incident is over, the `arbiter` is asked.

use super::guards::is_silence_of_guard;
use super::{Branch, Chosen, DropReason, Effect, Event, HoldReason, Kernel, State, plans};
use crate::detect::{Damage, Fault, FaultClass, Finding, Health, OPERATOR};
use crate::job::{Domain, IncidentId, JobTime, Name, Role, Seq, Termination};
use crate::kernel::plans::PlanId;
use crate::recover::FAULTS_PER_INCIDENT_MAX;
use crate::recover::{Action, Failure, Incident, TargetReply};
use crate::state::{LoopPosition, Proc, View};
use crate::trace::{Observation, Probe, ProbeReply, ProbeResult, Signal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of detector probes that may wait for replies at a time. Further ones are not sent, but counted.
pub const QUESTIONS_MAX: usize = 1024;

/// Number of cancelled recoveries of one incident after which their strategy is charged with one failure.
///
/// Recoveries are cancelled because of new faults. Ranks that die one after the other are not a failure of the
/// strategy, but a strategy that is cancelled again and again would never end.
const CANCELS_PER_FAILURE: u32 = 8;

/// An open incident.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) incident: Incident,
    /// Time at which it is decided. `None` while a recovery runs, or while it waits for the end of another one.
    pub(super) decide_at: Option<JobTime>,
    /// First and last input that carried its evidence.
    pub(super) rests_on: (Seq, Seq),
    /// Number of causes and failed attempts for which the budget has paid.
    pub(super) paid: usize,
    /// Number of causes and failed attempts for which a free recovery was begun.
    #[serde(default)]
    pub(super) let_off: usize,
    /// True if a recovery has begun to stop or start processes: some recovery then has to complete that.
    pub(super) begun: bool,
    /// Time until which its decision waits for a report of ranks whose control link has closed.
    #[serde(default)]
    pub(super) word_until: Option<JobTime>,
    /// The decision that is held, if any.
    #[serde(default)]
    pub(super) held: Option<Hold>,
    /// Strategies that an operator has approved for it.
    #[serde(default)]
    pub(super) approved: BTreeSet<Name>,
    /// Strategies that an operator has declined for it.
    #[serde(default)]
    pub(super) declined: BTreeSet<Name>,
    /// Number of attempts per strategy that were not failed runs, but charges for failures beside or after a recovery.
    #[serde(default)]
    pub(super) charged: BTreeMap<Name, u32>,
    /// Number of recoveries per strategy that were cancelled because of a new fault.
    #[serde(default)]
    pub(super) cancelled: BTreeMap<Name, u32>,
    /// True if the recovery on trial at the time of its opening has been charged.
    #[serde(default)]
    pub(super) tried: bool,
}

/// A decision that is held.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) why: HoldReason,
    /// The proposal held. `None`: the job would have been ended.
    pub(super) chosen: Option<Chosen>,
}

impl Hold {
    /// Returns true if the held proposal would also recover from this fault.
    fn covers(&self, fault: &Fault) -> bool {
        self.chosen.as_ref().is_some_and(|chosen| plans::replaces(&chosen.proposal, &[], fault))
    }
}

impl Open {
    /// Returns the number of causes and failed attempts, at least 1. A recovery that is planned again only because of
    /// more victims is not paid for again: otherwise one death in a large job would use up the budget for many.
    pub(super) fn worth(&self) -> usize {
        let causes =
            self.incident.faults.iter().filter(|f| f.primary_suspect().is_cause() && !is_silence_of_guard(f)).count();
        (causes + self.incident.attempts.len()).max(1)
    }

    /// Counts a recovery that was cancelled because of a new fault. Returns the number of cancelled recoveries of this
    /// strategy if they amount to one more failure of it.
    fn count_cancelled(&mut self, strategy: &Name) -> Option<u32> {
        let times = self.cancelled.entry(strategy.clone()).or_default();
        *times = times.saturating_add(1);
        times.is_multiple_of(CANCELS_PER_FAILURE).then_some(*times)
    }

    /// Returns true if the fault can be kept, if necessary in the place of another one, which is removed.
    ///
    /// A cause takes the place of the last victim, and any fault that of the last one whose process was replaced since.
    fn has_room_for(&mut self, fault: &Fault, view: &View) -> bool {
        let faults = &mut self.incident.faults;
        if faults.len() < FAULTS_PER_INCIDENT_MAX {
            return true;
        }
        let newest = |f: &Fault| view.proc_of(&f.primary_suspect().domain).map(|p| p.incarnation);
        let is_over = |f: &Fault| f.incarnation().is_some() && f.incarnation() < newest(f);
        let victim =
            faults.iter().rposition(|f| !f.primary_suspect().is_cause()).filter(|_| fault.primary_suspect().is_cause());
        let place = victim.or_else(|| faults.iter().rposition(is_over));
        place.map(|at| faults.remove(at)).is_some()
    }
}

impl Kernel {
    pub(super) fn take_findings(&mut self) {
        for finding in self.found.drain().collect::<Vec<_>>() {
            match finding {
                Finding::Blame(fault) => self.blame(fault),
                Finding::Clear(domain, class) => self.clear(&domain, &class),
                Finding::Probe(ask) => self.ask(ask),
                Finding::Note(about, clue) => self.announce(None, Event::Noted { about, clue }),
            }
        }
    }

    fn blame(&mut self, fault: Fault) {
        let known = self.state.view.proc_of(&fault.primary_suspect().domain).map(|p| p.incarnation);
        if fault.incarnation().is_some() && fault.incarnation() < known || self.has_left(&fault) {
            return self.state.counts.drop(DropReason::OutdatedFault);
        }
        let of = fault.incarnation().or(known);
        let fault = fault.with_incarnation(of);
        if self.retell(&fault) {
            return;
        }
        if self.state.life.is_ending() {
            return self.state.counts.drop(DropReason::FaultAtEnd);
        }
        let is_mending = || self.state.incidents.values().any(|open| open.held.is_none());
        if fault.is_mere_advice() && is_mending() {
            return self.state.counts.drop(DropReason::AdviceMeanwhile);
        }
        let id = self.incident_for(&fault);
        self.join(id, fault);
    }

    /// Returns true if the fault concerns a rank that has left the world, so that nothing has to be recovered.
    ///
    /// For example, the exit of a rank is reported after its death.
    fn has_left(&self, fault: &Fault) -> bool {
        let Domain::Process(Role::Rank(rank)) = &fault.primary_suspect().domain else { return false };
        let absent = self.state.view.world.absent().get(rank);
        absent.is_some_and(|member| fault.incarnation().is_none_or(|of| of <= member.incarnation))
    }

    /// Handles a fault that is known already: it is dropped, or replaces the known one if it has more information.
    /// Returns false if it is not known.
    fn retell(&mut self, fault: &Fault) -> bool {
        let State { incidents, counts, view, seq, ledger, trial, .. } = &mut self.state;
        for open in incidents.values_mut() {
            let covers = |known: &Fault| {
                known.is_duplicate_of(fault) || (takes_in(view, known, fault) && known.incarnation().is_none())
            };
            let faults = &mut open.incident.faults;
            let says_the_same = |known: &Fault| {
                known.is_duplicate_of(fault)
                    && known.primary_suspect().damage == fault.primary_suspect().damage
                    && known.advice == fault.advice
            };
            let at = faults.iter().position(|k| covers(k) && says_the_same(k));
            let Some(at) = at.or_else(|| faults.iter().position(covers)) else { continue };
            let before: Vec<&Fault> = faults.iter().filter(|known| known.is_duplicate_of(fault)).collect();
            let trial = trial.as_ref().filter(|trial| trial.is_under_way(open.incident.id));
            if !before.is_empty() && trial.is_some_and(|trial| trial.is_new(fault, &before)) {
                return false; // it has failed again
            }
            let known = &mut faults[at];
            if known.is_duplicate_of(fault) && !says_the_same(known) {
                return false; // joins as a fault of its own, to be decided again
            }
            let knows_more = fault.error.is_some() && known.error.is_none()
                || fault.evidence.len() > known.evidence.len()
                || fault.primary_suspect().confidence_permille != known.primary_suspect().confidence_permille;
            // A rank that another detector has found to be a victim stays one.
            let was_charged = known.is_charged();
            let is_absolved = !known.primary_suspect().is_cause() && fault.primary_suspect().is_cause();
            let was_absolved = is_absolved && (known.by != fault.by || was_charged);
            if !known.is_duplicate_of(fault) || !knows_more || was_absolved {
                counts.drop(DropReason::RepeatedFault);
                return true;
            }
            *known = fault.clone();
            open.rests_on.1 = *seq;
            if open.decide_at.is_none() {
                ledger.judged(&open.incident, view);
            }
            counts.branch(Branch::Refined);
            return true;
        }
        false
    }

    /// Returns the incident that a fault belongs to: an open one, or a new one.
    ///
    /// In this order: one that overlaps the fault; one whose correlation window is open; for a victim, the newest.
    fn incident_for(&mut self, fault: &Fault) -> IncidentId {
        let domain = &fault.primary_suspect().domain;
        let concerns_job = |d: &Domain| !matches!(d, Domain::Plugin(_));
        let same_kind = |open: &Open| {
            concerns_job(domain) == open.incident.faults.iter().any(|f| concerns_job(&f.primary_suspect().domain))
        };
        let in_window = |open: &Open| open.decide_at.is_some() && !self.state.plans.contains_key(&PlanId::of(open));
        let open = || self.state.incidents.values();
        let overlapping: Vec<IncidentId> = open().filter(|o| self.overlaps(o, domain)).map(|o| o.incident.id).collect();
        let windowed = open().find(|o| same_kind(o) && in_window(o)).map(|o| o.incident.id);
        let newest = open().rfind(|o| same_kind(o) && !fault.primary_suspect().is_cause()).map(|o| o.incident.id);
        if let Some((first, others)) = overlapping.split_first() {
            self.state.counts.branch(Branch::Overlapped);
            others.iter().for_each(|other| self.merge(*first, *other));
            return *first;
        }
        if let Some(id) = windowed {
            self.state.counts.branch(Branch::Correlated);
            return id;
        }
        if let Some(id) = newest {
            self.state.counts.branch(Branch::Explained);
            return id;
        }
        self.state.incident_ids += 1;
        IncidentId(self.state.incident_ids)
    }

    fn overlaps(&self, open: &Open, domain: &Domain) -> bool {
        let plan = self.state.plans.get(&PlanId::of(open));
        let held = open.held.iter().filter_map(|hold| hold.chosen.as_ref()).map(|chosen| &chosen.proposal);
        let touched = plan.iter().map(|p| &p.run.proposal).chain(held).flat_map(|proposal| &proposal.affected_domains);
        let blamed = open.incident.faults.iter().map(|f| &f.primary_suspect().domain);
        touched.chain(blamed).any(|d| self.state.view.overlap(d, domain))
    }

    /// Merges two incidents that one fault overlaps.
    fn merge(&mut self, into: IncidentId, from: IncidentId) {
        self.cancel(PlanId::Recovery(from), &format!("merged into {into}"));
        let Some(other) = self.state.incidents.remove(&from) else { return };
        self.state.ledger.merged(into, from);
        self.trial_merged(into, from);
        self.state.orders.merged(into, from);
        self.hand_over(from, Some(into));
        self.announce(Some(from), Event::Merged { incident: from, into });
        let window = self.now() + self.state.view.spec.policy.correlation_window;
        if let Some(open) = self.state.incidents.get_mut(&into) {
            open.rests_on.0 = open.rests_on.0.min(other.rests_on.0);
            open.paid += other.paid;
            open.let_off += other.let_off;
            open.begun |= other.begun;
            open.approved.extend(other.approved);
            open.declined.extend(other.declined);
            open.tried |= other.tried;
            for (strategy, times) in other.charged {
                *open.charged.entry(strategy).or_default() += times;
            }
            for (strategy, times) in other.cancelled {
                *open.cancelled.entry(strategy).or_default() += times;
            }
            open.incident.faults.extend(other.incident.faults);
            open.incident.attempts.extend(other.incident.attempts);
            if open.held.take().is_some() {
                open.decide_at = open.decide_at.or(Some(window)); // the held proposal covered only a part of it
            }
        }
    }

    fn join(&mut self, id: IncidentId, fault: Fault) {
        let fault = self.charge_running(id, fault);
        let (now, seq) = (self.now(), self.state.seq);
        let window =
            if self.is_all_there_is(id, &fault) { now } else { now + self.state.view.spec.policy.correlation_window };
        let opened = !self.state.incidents.contains_key(&id);
        let State { incidents, plans, counts, view, ledger, .. } = &mut self.state;
        let open = incidents.entry(id).or_insert_with(|| Open {
            incident: Incident { id, opened: now, faults: Vec::new(), attempts: Vec::new() },
            decide_at: None,
            rests_on: (seq, seq),
            paid: 0,
            let_off: 0,
            word_until: None,
            begun: false,
            held: None,
            approved: BTreeSet::new(),
            declined: BTreeSet::new(),
            charged: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            tried: false,
        });
        open.rests_on.1 = seq;
        let before = open.incident.faults.len();
        open.incident.faults.retain(|part| !takes_in(view, &fault, part));
        if open.incident.faults.len() < before {
            counts.branch(Branch::Absorbed);
        }
        let changes_nothing = plans.get(&PlanId::Recovery(id)).is_some_and(|plan| plan.replaces(&fault))
            || open.held.as_ref().is_some_and(|hold| hold.covers(&fault)) && !is_more_than_a_wish(open, &fault)
            || plans.contains_key(&PlanId::Recovery(id)) && is_silence_of_guard(&fault); // it waits for the guard
        if open.incident.faults.len() >= FAULTS_PER_INCIDENT_MAX {
            counts.drop(DropReason::IncidentBound);
        }
        if open.has_room_for(&fault, view) {
            open.incident.faults.push(fault.clone());
        }
        if !changes_nothing {
            open.decide_at = Some(open.decide_at.map_or(window, |at| at.min(window)));
        }
        ledger.found(id, now, &fault, view);
        if opened {
            counts.branch(Branch::Opened);
        }
        self.announce(Some(id), Event::Found { incident: id, fault: fault.clone(), opened });
        if changes_nothing {
            return self.state.counts.branch(Branch::Covered);
        }
        let reason = format!("new fault in {}: {}", fault.primary_suspect().domain, fault.primary_suspect().class);
        if let Some(strategy) = self.cancel(PlanId::Recovery(id), &reason)
            && let Some(open) = self.state.incidents.get_mut(&id)
        {
            open.decide_at = Some(window);
            if fault.by != OPERATOR
                && let Some(times) = open.count_cancelled(&strategy)
            {
                open.charge(&strategy, format!("cancelled {times} times, last for a {reason}"));
                self.state.counts.branch(Branch::Charged);
            }
        }
        // The recovery starts what is still missing; an operator's request waits for the start, and the start waits for
        // a guard.
        if !matches!(fault.primary_suspect().domain, Domain::Plugin(_))
            && fault.by != OPERATOR
            && !is_silence_of_guard(&fault)
        {
            self.cancel(PlanId::Start, &reason);
        }
    }

    /// Returns true if the correlation window can be skipped, because no further fault could change the decision.
    ///
    /// That is the case if processes were killed, or are gone with their whole host, and all other ranks are in step
    /// loops that can be aborted. Failures that those ranks report of the aborted world do not matter, and a rank that
    /// is lost as well is planned for again, at no loss. The window is kept for an error of the program itself, because
    /// its peers may be about to make the same one, and for an incident that is decided again, or beside another one.
    fn is_all_there_is(&self, id: IncidentId, fault: &Fault) -> bool {
        let State { incidents, plans, view, .. } = &self.state;
        let open = incidents.get(&id);
        let is_new =
            open.is_none_or(|open| open.decide_at.is_some() && open.incident.attempts.is_empty() && !open.begun);
        if !is_new || plans.contains_key(&PlanId::Recovery(id)) || incidents.keys().any(|other| *other != id) {
            return false;
        }
        let known = open.into_iter().flat_map(|open| &open.incident.faults);
        let Some(lost) = lost_for_sure([fault].into_iter().chain(known), view) else { return false };
        let in_loop = |role: &Role| {
            let link = view.proc(role).and_then(|proc| proc.link.as_ref());
            link.is_some_and(|link| link.position == LoopPosition::InLoop)
        };
        let all = view.world.members().keys().map(|rank| Role::Rank(*rank));
        let mut others = all.filter(|role| !lost.contains(role)).peekable();
        others.peek().is_some() && others.all(|role| in_loop(&role))
    }

    fn clear(&mut self, domain: &Domain, class: &FaultClass) {
        let State { incidents, plans, .. } = &mut self.state;
        let stays = |f: &Fault| f.primary_suspect().domain != *domain || f.primary_suspect().class != *class;
        let mut empty = Vec::new();
        for open in incidents.values_mut().filter(|o| !plans.contains_key(&PlanId::of(o))) {
            let nothing_is_left = !open.incident.faults.iter().any(stays);
            match nothing_is_left {
                true if open.begun => {} // the cause is gone, but not the effect of the stops
                true => empty.push(open.incident.id),
                false => open.incident.faults.retain(stays),
            }
        }
        for id in empty {
            self.state.counts.branch(Branch::Cleared);
            self.close(id, "its detector withdrew the fault", None);
        }
    }

    /// Closes an incident.
    pub(super) fn close(&mut self, id: IncidentId, how: &str, strategy: Option<&Name>) {
        if self.state.incidents.remove(&id).is_none() {
            return;
        }
        self.maybe_complete = true; // it may have been all that kept a completed job running
        self.hand_over(id, None);
        self.trial_closed(id);
        self.state.ledger.closed(id, self.state.view.now, how, strategy, &mut self.state.counts);
        self.state.orders.closed(id, how);
        self.announce(Some(id), Event::Closed { incident: id, how: how.to_owned() });
        self.reconsider(); // also if no plan has ended, because it was cancelled
    }

    fn ask(&mut self, ask: Probe) {
        let open = self.state.pending.values().filter(|p| matches!(p.action, Action::Collect(_))).count();
        if open >= QUESTIONS_MAX {
            return self.state.counts.drop(DropReason::QuestionBound);
        }
        self.state.counts.branch(Branch::Asked);
        let within = ask.timeout;
        self.command(None, Action::Collect(ask), within);
    }

    /// Passes an answer to a probe, or the lack of one, to the detectors as an observation.
    pub(super) fn deliver_probe_reply(&mut self, ask: &Probe, about: &Domain, result: &Result<TargetReply, Failure>) {
        let exhibit = match result {
            Ok(TargetReply::ProbeResult(exhibit)) => exhibit.clone(),
            Ok(TargetReply::Accepted | TargetReply::Directive(_)) => {
                ProbeResult::Unavailable("answered without evidence".into())
            }
            Err(Failure::Refused(why) | Failure::Unreachable(why)) => ProbeResult::Unavailable(why.clone()),
            Err(Failure::TimedOut | Failure::Gone) => {
                self.state.counts.branch(Branch::SilentEvidence);
                ProbeResult::Silence
            }
        };
        let Probe { by, tag, what, .. } = ask.clone();
        let evidence = ProbeReply { by, tag, what, about: about.clone(), result: exhibit };
        let signal = Signal::ProbeReply(Arc::new(evidence));
        let (at, about) = (self.now(), about.clone());
        self.tell(&Observation { at, about, incarnation: None, generation: None, signal });
    }

    pub(super) fn announce(&mut self, incident: Option<IncidentId>, event: Event) {
        self.effect(incident.map(PlanId::Recovery), Effect::Publish(Box::new(event)));
    }
}

/// Returns the roles whose processes are lost according to these faults, if there is no doubt of any.
///
/// A process is lost without doubt if it was killed, or if everything on its host is gone with the guard. `None` while
/// a process still seems to run on that host, because the other ends there have yet to be reported.
fn lost_for_sure<'a>(faults: impl Iterator<Item = &'a Fault>, view: &View) -> Option<BTreeSet<&'a Role>> {
    let (mut lost, mut gone) = (BTreeSet::new(), BTreeSet::new());
    for suspect in faults.map(Fault::primary_suspect) {
        if let Domain::Guard(node) = &suspect.domain
            && suspect.damage.process == Health::Faulty
        {
            gone.insert(node);
            continue;
        }
        let Domain::Process(role) = &suspect.domain else { return None };
        let proc = view.proc(role).filter(|_| suspect.damage == Damage::PROCESS_GONE)?;
        match proc.phase.termination() {
            Some(_) if proc.unguarded => _ = gone.insert(proc.node.as_ref()?),
            Some(Termination::Unknown) => _ = gone.insert(proc.node.as_ref()?),
            _ if suspect.is_certain() => {}
            _ => return None,
        }
        lost.insert(role);
    }
    let seems_to_run =
        |proc: &Proc| !proc.phase.is_over() && proc.node.as_ref().is_some_and(|node| gone.contains(node));
    (gone.is_empty() || !view.procs.values().any(seems_to_run)).then_some(lost)
}

/// Returns true if the fault turns an incident that was only an operator's request into a failure. What is held for the
/// request is then decided again, so that it is not declined as a request.
fn is_more_than_a_wish(open: &Open, fault: &Fault) -> bool {
    open.incident.is_requested_by_operator() && fault.by != OPERATOR && fault.primary_suspect().is_cause()
}

/// Returns true if `whole` explains `part`: a larger domain whose processes are gone.
fn takes_in(view: &View, whole: &Fault, part: &Fault) -> bool {
    let (outer, inner) = (whole.primary_suspect(), part.primary_suspect());
    matches!(outer.domain, Domain::Node(_) | Domain::Device(..) | Domain::Group(_))
        && outer.damage.process == Health::Faulty
        && outer.domain != inner.domain
        && view.contains(&outer.domain, &inner.domain)
}

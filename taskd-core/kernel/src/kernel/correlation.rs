//! Finds the incident that a fault belongs to: correlates related faults, absorbs parts, and withdraws blame.
//!
//! It ends nothing and issues nothing: what a fault means for plans and other incidents is returned to `incidents`.

use super::guards::is_silence_of_guard;
use super::incidents::Open;
use super::ledger::Ledger;
use super::lifecycle::Life;
use super::plans::{Plan, PlanId};
use super::probation::Trial;
use super::{Branch, Counts, DropReason};
use crate::detect::{Damage, Evidence, Fault, FaultClass, Health, INTERRUPTED, OPERATOR};
use crate::job::{Domain, IncidentId, JobTime, Name, Role, Seq, Termination};
use crate::recover::FAULTS_PER_INCIDENT_MAX;
use crate::state::{LoopPosition, Proc, View};
use std::collections::{BTreeMap, BTreeSet};

/// Assigns faults to open incidents.
pub(super) struct Correlation<'a> {
    pub(super) view: &'a View,
    pub(super) life: Life,
    /// Number of the input that is handled.
    pub(super) seq: Seq,
    pub(super) plans: &'a BTreeMap<PlanId, Plan>,
    pub(super) trial: Option<&'a Trial>,
    pub(super) incidents: &'a mut BTreeMap<IncidentId, Open>,
    /// Number of incidents so far.
    pub(super) incident_ids: &'a mut u64,
    pub(super) counts: &'a mut Counts,
    pub(super) ledger: &'a mut Ledger,
}

/// The incident that a fault belongs to.
pub(super) struct Place {
    pub(super) fault: Fault,
    pub(super) incident: IncidentId,
    /// Other incidents that the fault overlaps: they become one with it.
    pub(super) others: Vec<IncidentId>,
}

/// What a fault has changed in its incident.
pub(super) struct Joined {
    /// True if the fault has opened the incident.
    pub(super) opened: bool,
    /// True if the recovery that is running or held is right for this fault as well.
    pub(super) changes_nothing: bool,
    /// End of the correlation window.
    pub(super) window: JobTime,
}

impl Correlation<'_> {
    /// Returns the incident that a fault belongs to. `None` if the fault is outdated, known, or does not matter.
    pub(super) fn place(&mut self, fault: Fault) -> Option<Place> {
        let known = self.view.proc_of(&fault.primary_suspect().domain).map(|p| p.incarnation);
        if fault.incarnation().is_some() && fault.incarnation() < known || self.has_left(&fault) {
            self.counts.drop(DropReason::OutdatedFault);
            return None;
        }
        let of = fault.incarnation().or(known);
        let fault = fault.with_incarnation(of);
        if self.retell(&fault) {
            return None;
        }
        if self.life.is_ending() {
            self.counts.drop(DropReason::FaultAtEnd);
            return None;
        }
        let is_mending = || self.incidents.values().any(|open| open.held.is_none());
        if fault.is_mere_advice() && is_mending() {
            self.counts.drop(DropReason::AdviceMeanwhile);
            return None;
        }
        let (incident, others) = self.incident_for(&fault);
        Some(Place { fault, incident, others })
    }

    /// Returns true if the fault concerns a rank that has left the world, so that nothing has to be recovered.
    ///
    /// For example, the exit of a rank is reported after its death.
    fn has_left(&self, fault: &Fault) -> bool {
        let Domain::Process(Role::Rank(rank)) = &fault.primary_suspect().domain else { return false };
        let absent = self.view.world.absent().get(rank);
        absent.is_some_and(|member| fault.incarnation().is_none_or(|of| of <= member.incarnation))
    }

    /// Handles a fault that is known already: it is dropped, or replaces the known one if it has more information.
    /// Returns false if it is not known.
    fn retell(&mut self, fault: &Fault) -> bool {
        let Correlation { incidents, counts, view, seq, ledger, trial, .. } = self;
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
            let trial = trial.filter(|trial| trial.is_under_way(open.incident.id));
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

    /// Returns the incident that a fault belongs to, an open one or a new one, and the others that it overlaps.
    ///
    /// In this order: one that overlaps the fault; one whose correlation window is open; for a victim, the newest.
    fn incident_for(&mut self, fault: &Fault) -> (IncidentId, Vec<IncidentId>) {
        let domain = &fault.primary_suspect().domain;
        let concerns_job = |d: &Domain| !matches!(d, Domain::Plugin(_));
        let same_kind = |open: &Open| {
            concerns_job(domain) == open.incident.faults.iter().any(|f| concerns_job(&f.primary_suspect().domain))
        };
        let in_window = |open: &Open| open.decide_at.is_some() && !self.plans.contains_key(&PlanId::of(open));
        let open = || self.incidents.values();
        let overlapping: Vec<IncidentId> = open().filter(|o| self.overlaps(o, domain)).map(|o| o.incident.id).collect();
        let windowed = open().find(|o| same_kind(o) && in_window(o)).map(|o| o.incident.id);
        let newest = open().rfind(|o| same_kind(o) && !fault.primary_suspect().is_cause()).map(|o| o.incident.id);
        if let Some((first, others)) = overlapping.split_first() {
            self.counts.branch(Branch::Overlapped);
            return (*first, others.to_vec());
        }
        if let Some(id) = windowed {
            self.counts.branch(Branch::Correlated);
            return (id, Vec::new());
        }
        if let Some(id) = newest {
            self.counts.branch(Branch::Explained);
            return (id, Vec::new());
        }
        *self.incident_ids += 1;
        (IncidentId(*self.incident_ids), Vec::new())
    }

    fn overlaps(&self, open: &Open, domain: &Domain) -> bool {
        let plan = self.plans.get(&PlanId::of(open));
        let held = open.held.iter().filter_map(|hold| hold.chosen.as_ref()).map(|chosen| &chosen.proposal);
        let touched = plan.iter().map(|p| &p.run.proposal).chain(held).flat_map(|proposal| &proposal.affected_domains);
        let blamed = open.incident.faults.iter().map(|f| &f.primary_suspect().domain);
        touched.chain(blamed).any(|d| self.view.overlap(d, domain))
    }

    /// Adds a fault to its incident, which it may open.
    pub(super) fn join(&mut self, id: IncidentId, fault: &Fault) -> Joined {
        let now = self.view.now;
        let opened = !self.incidents.contains_key(&id);
        let window = if self.is_all_there_is(id, fault) { now } else { now + self.view.spec.policy.correlation_window };
        let Correlation { incidents, plans, counts, view, ledger, seq, .. } = self;
        let open = incidents.entry(id).or_insert_with(|| Open::new(id, now, *seq));
        open.rests_on.1 = *seq;
        let before = open.incident.faults.len();
        open.incident.faults.retain(|part| !takes_in(view, fault, part));
        if open.incident.faults.len() < before {
            counts.branch(Branch::Absorbed);
        }
        let changes_nothing = plans.get(&PlanId::Recovery(id)).is_some_and(|plan| plan.replaces(fault))
            || open.held.as_ref().is_some_and(|hold| hold.covers(fault)) && !is_more_than_a_wish(open, fault)
            || plans.contains_key(&PlanId::Recovery(id)) && is_silence_of_guard(fault); // it waits for the guard
        if open.incident.faults.len() >= FAULTS_PER_INCIDENT_MAX {
            counts.drop(DropReason::IncidentBound);
        }
        if open.has_room_for(fault, view) {
            open.incident.faults.push(fault.clone());
        }
        if !changes_nothing {
            open.decide_at = Some(open.decide_at.map_or(window, |at| at.min(window)));
        }
        ledger.found(id, now, fault, view);
        if opened {
            counts.branch(Branch::Opened);
        }
        if changes_nothing {
            counts.branch(Branch::Covered);
        }
        Joined { opened, changes_nothing, window }
    }

    /// Handles the cancellation of an incident's recovery because of a new fault.
    pub(super) fn cancelled(&mut self, id: IncidentId, strategy: &Name, why: &str, by_operator: bool, again: JobTime) {
        let Some(open) = self.incidents.get_mut(&id) else { return };
        open.decide_at = Some(again);
        if by_operator {
            return;
        }
        if let Some(times) = open.count_cancelled(strategy) {
            open.charge(strategy, format!("cancelled {times} times, last for a {why}"));
            self.counts.branch(Branch::Charged);
        }
    }

    /// Returns true if the correlation window can be skipped, because no further fault could change the decision.
    ///
    /// That is the case if processes were killed, or are gone with their whole host, and all other ranks are in step
    /// loops that can be aborted. Failures that those ranks report of the aborted world do not matter, and a rank that
    /// is lost as well is planned for again, at no loss. The window is kept for an error of the program itself, because
    /// its peers may be about to make the same one, and for an incident that is decided again, or beside another one.
    fn is_all_there_is(&self, id: IncidentId, fault: &Fault) -> bool {
        let Correlation { incidents, plans, view, .. } = self;
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

    /// Withdraws the faults of a domain and class. Returns the incidents of which nothing is left.
    pub(super) fn clear(&mut self, domain: &Domain, class: &FaultClass) -> Vec<IncidentId> {
        let Correlation { incidents, plans, .. } = self;
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
        empty
    }

    /// Withdraws the blame from ranks that were interrupted when the job was asked to stop: both had the same reason.
    pub(super) fn absolve_interrupted(&mut self) {
        let Correlation { incidents, view, ledger, .. } = self;
        for open in incidents.values_mut() {
            let causes = || open.incident.faults.iter().filter(|fault| fault.primary_suspect().is_cause());
            if causes().next().is_none() || !causes().all(|fault| is_interrupted(fault, view)) {
                continue;
            }
            let why =
                Evidence::text(INTERRUPTED, "the supervisor was asked to stop as well: no rank caused the interrupt");
            for fault in &mut open.incident.faults {
                *fault = fault.clone().charged(why.clone());
            }
            ledger.judged(&open.incident, view);
        }
    }
}

/// Returns true if the fault is the end of a process that was interrupted.
fn is_interrupted(fault: &Fault, view: &View) -> bool {
    let proc =
        view.proc_of(&fault.primary_suspect().domain).filter(|proc| fault.incarnation() == Some(proc.incarnation));
    let how = proc.and_then(|proc| proc.phase.termination());
    how.is_some_and(|how| how.is_interrupt(fault.error.as_deref()))
}

/// Returns the roles whose processes are lost according to these faults, if there is no doubt of any.
///
/// A process is lost without doubt if it was killed, or if everything on its host is gone with the guard. `None` while
/// a process still seems to run on that host, because the other ends there have yet to be reported.
fn lost_for_sure<'a>(faults: impl Iterator<Item = &'a Fault>, view: &View) -> Option<BTreeSet<&'a Role>> {
    let (mut lost, mut gone) = (BTreeSet::new(), BTreeSet::new());
    for suspect in faults.map(Fault::primary_suspect) {
        if let Domain::Guard(node) | Domain::Node(node) = &suspect.domain
            && (matches!(suspect.domain, Domain::Guard(_)) || suspect.class == FaultClass::NodeLost)
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

//! Findings become incidents: faults that belong together are correlated, parts absorbed, blame taken back.
//!
//! It never proposes a recovery: when an incident's window is over, the `arbiter` is asked.

use super::guards::is_silence_of_guard;
use super::{Branch, Chosen, Drop, Event, Held, Kernel, Proc, State, View, plans};
use crate::detect::{Damage, Fault, FaultClass, Finding, OPERATOR, Sound};
use crate::job::{Domain, IncidentId, JobTime, Name, Role, Seq, Termination};
use crate::kernel::plans::PlanId;
use crate::launch::Point;
use crate::recover::{Action, Failure, Incident, Output};
use crate::trace::{Ask, Evidence, Exhibit, Observation, Signal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Most faults that one incident keeps. Beyond them the last that matters least makes room, which is counted: the first ones
/// explain more. No fault goes without effect by it.
pub const FAULTS_PER_INCIDENT_MAX: usize = 256;

/// Most questions of detectors that may be open at a time. Further ones are not asked, and counted.
pub const QUESTIONS_MAX: usize = 1024;

/// After so many recoveries of one incident that were cancelled for new faults, their strategy has failed once more. Ranks that die one after
/// the other are no failure of it; a strategy that is cancelled again and again never ends.
const CANCELS_PER_FAILURE: u32 = 8;

/// An incident that is not over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) incident: Incident,
    /// When it is to be decided; `None` while a recovery runs, or while it waits for another one's end.
    pub(super) decide_at: Option<JobTime>,
    /// Inputs between which its evidence arrived.
    pub(super) rests_on: (Seq, Seq),
    /// Causes and failed attempts for which the budget has paid.
    pub(super) paid: usize,
    /// Of how many of them a recovery was begun that the budget need not pay for.
    #[serde(default)]
    pub(super) let_off: usize,
    /// A recovery of it has begun to stop or start processes: somebody has to carry that through.
    pub(super) begun: bool,
    /// Until when its decision waits for word of ranks whose control link has gone.
    #[serde(default)]
    pub(super) word_until: Option<JobTime>,
    /// What was decided and is not carried out.
    #[serde(default)]
    pub(super) held: Option<Hold>,
    /// Strategies that an operator has approved for it.
    #[serde(default)]
    pub(super) approved: BTreeSet<Name>,
    /// Strategies that an operator has declined for it.
    #[serde(default)]
    pub(super) declined: BTreeSet<Name>,
    /// How many of the attempts were not runs that failed, but were charged with what failed beside or after them.
    #[serde(default)]
    pub(super) charged: BTreeMap<Name, u32>,
    /// How often each strategy's recovery was given up for a new fault.
    #[serde(default)]
    pub(super) cancelled: BTreeMap<Name, u32>,
    /// The recovery that was on trial when it was opened has been charged.
    #[serde(default)]
    pub(super) tried: bool,
}

/// A decision that is not carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) why: Held,
    /// `None`: the job would have been ended.
    pub(super) chosen: Option<Chosen>,
}

impl Hold {
    /// Whether what is held would have mended the fault as well.
    fn covers(&self, fault: &Fault) -> bool {
        self.chosen.as_ref().is_some_and(|chosen| plans::replaces(&chosen.proposal, &[], fault))
    }
}

impl Open {
    /// Causes and failed attempts. A recovery that is planned anew only because of more victims is not paid for again:
    /// one death in a large job would use up what is there for many.
    pub(super) fn worth(&self) -> usize {
        let causes = self.incident.faults.iter().filter(|f| f.prime().is_cause() && !is_silence_of_guard(f)).count();
        (causes + self.incident.attempts.len()).max(1)
    }

    /// Counts a recovery that was cancelled for a new fault. Returns how many there were, where they are one more failure of the strategy.
    fn count_cancelled(&mut self, strategy: &Name) -> Option<u32> {
        let times = self.cancelled.entry(strategy.clone()).or_default();
        *times = times.saturating_add(1);
        times.is_multiple_of(CANCELS_PER_FAILURE).then_some(*times)
    }

    /// Whether the fault can be kept, if need be in the place of another: a cause in that of the last victim, any in that of
    /// the last one whose process was replaced since.
    fn has_room_for(&mut self, fault: &Fault, view: &View) -> bool {
        let faults = &mut self.incident.faults;
        if faults.len() < FAULTS_PER_INCIDENT_MAX {
            return true;
        }
        let newest = |f: &Fault| view.proc_of(&f.prime().domain).map(|p| p.incarnation);
        let is_over = |f: &Fault| f.incarnation().is_some() && f.incarnation() < newest(f);
        let victim = faults.iter().rposition(|f| !f.prime().is_cause()).filter(|_| fault.prime().is_cause());
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
                Finding::Ask(ask) => self.ask(ask),
                Finding::Note(about, clue) => self.announce(None, Event::Noted { about, clue }),
            }
        }
    }

    fn blame(&mut self, fault: Fault) {
        let known = self.state.view.proc_of(&fault.prime().domain).map(|p| p.incarnation);
        if fault.incarnation().is_some() && fault.incarnation() < known || self.has_left(&fault) {
            return self.state.counts.drop(Drop::OutdatedFault);
        }
        let of = fault.incarnation().or(known);
        let fault = fault.of(of);
        if self.retell(&fault) {
            return;
        }
        if self.state.life.is_ending() {
            return self.state.counts.drop(Drop::FaultAtEnd);
        }
        let is_mending = || self.state.incidents.values().any(|open| open.held.is_none());
        if fault.is_mere_advice() && is_mending() {
            return self.state.counts.drop(Drop::AdviceMeanwhile);
        }
        let id = self.incident_for(&fault);
        self.join(id, fault);
    }

    /// Whether it is about a rank that has left the world, in which nobody misses it: its exit is told after its death, for instance.
    fn has_left(&self, fault: &Fault) -> bool {
        let Domain::Process(Role::Rank(rank)) = &fault.prime().domain else { return false };
        let absent = self.state.view.world.absent().get(rank);
        absent.is_some_and(|member| fault.incarnation().is_none_or(|of| of <= member.incarnation))
    }

    /// A fault that is known already: dropped, or taken in the place of what is known if it knows more.
    fn retell(&mut self, fault: &Fault) -> bool {
        let State { incidents, counts, view, seq, ledger, trial, .. } = &mut self.state;
        for open in incidents.values_mut() {
            let covers =
                |known: &Fault| known.same_as(fault) || (takes_in(view, known, fault) && known.incarnation().is_none());
            let faults = &mut open.incident.faults;
            let says_the_same = |known: &Fault| {
                known.same_as(fault) && known.prime().damage == fault.prime().damage && known.advice == fault.advice
            };
            let at = faults.iter().position(|k| covers(k) && says_the_same(k));
            let Some(at) = at.or_else(|| faults.iter().position(covers)) else { continue };
            let before: Vec<&Fault> = faults.iter().filter(|known| known.same_as(fault)).collect();
            let trial = trial.as_ref().filter(|trial| trial.is_under_way(open.incident.id));
            if !before.is_empty() && trial.is_some_and(|trial| trial.is_new(fault, &before)) {
                return false; // it has failed again
            }
            let known = &mut faults[at];
            if known.same_as(fault) && !says_the_same(known) {
                return false; // joins as a fault of its own, which decides anew
            }
            let knows_more = fault.error.is_some() && known.error.is_none()
                || fault.clues.len() > known.clues.len()
                || fault.prime().confidence_permille != known.prime().confidence_permille;
            // Whom another detector knows to be a victim stays one.
            let was_charged = known.is_charged();
            let is_absolved = !known.prime().is_cause() && fault.prime().is_cause();
            let was_absolved = is_absolved && (known.by != fault.by || was_charged);
            if !known.same_as(fault) || !knows_more || was_absolved {
                counts.drop(Drop::RepeatedFault);
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

    /// The incident that a fault belongs to: one that overlaps it, one whose window is open, for a victim the newest;
    /// else a new one.
    fn incident_for(&mut self, fault: &Fault) -> IncidentId {
        let domain = &fault.prime().domain;
        let concerns_job = |d: &Domain| !matches!(d, Domain::Plugin(_));
        let same_kind =
            |open: &Open| concerns_job(domain) == open.incident.faults.iter().any(|f| concerns_job(&f.prime().domain));
        let in_window = |open: &Open| open.decide_at.is_some() && !self.state.plans.contains_key(&PlanId::of(open));
        let open = || self.state.incidents.values();
        let overlapping: Vec<IncidentId> = open().filter(|o| self.overlaps(o, domain)).map(|o| o.incident.id).collect();
        let windowed = open().find(|o| same_kind(o) && in_window(o)).map(|o| o.incident.id);
        let newest = open().rfind(|o| same_kind(o) && !fault.prime().is_cause()).map(|o| o.incident.id);
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
        let touched = plan.iter().map(|p| &p.run.proposal).chain(held).flat_map(|proposal| &proposal.touches);
        let blamed = open.incident.faults.iter().map(|f| &f.prime().domain);
        touched.chain(blamed).any(|d| self.state.view.overlap(d, domain))
    }

    /// One fault overlaps two incidents: they were one all along.
    fn merge(&mut self, into: IncidentId, from: IncidentId) {
        self.cancel(PlanId::Recovery(from), &format!("it belongs to {into}"));
        let Some(other) = self.state.incidents.remove(&from) else { return };
        self.state.ledger.merged(into, from);
        self.trial_merged(into, from);
        self.state.orders.merged(into, from);
        self.hand_over(from, Some(into));
        self.announce(Some(from), Event::Merged { incident: from, into });
        let window = self.now() + self.state.view.spec.policy.correlate;
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
                open.decide_at = open.decide_at.or(Some(window)); // what was held answered only a part of it
            }
        }
    }

    fn join(&mut self, id: IncidentId, fault: Fault) {
        let fault = self.charge_running(id, fault);
        let (now, seq) = (self.now(), self.state.seq);
        let window = if self.is_all_there_is(id, &fault) { now } else { now + self.state.view.spec.policy.correlate };
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
            || plans.contains_key(&PlanId::Recovery(id)) && is_silence_of_guard(&fault); // what is under way waits for it
        if open.incident.faults.len() >= FAULTS_PER_INCIDENT_MAX {
            counts.drop(Drop::IncidentBound);
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
        let reason = format!("new fault in {}: {}", fault.prime().domain, fault.prime().class);
        if let Some(strategy) = self.cancel(PlanId::Recovery(id), &reason)
            && let Some(open) = self.state.incidents.get_mut(&id)
        {
            open.decide_at = Some(window);
            if fault.by != OPERATOR
                && let Some(times) = open.count_cancelled(&strategy)
            {
                open.charge(&strategy, format!("given up {times} times, last for a {reason}"));
                self.state.counts.branch(Branch::Charged);
            }
        }
        // The recovery starts what is still missing; a wish waits for the start, and the start for a guard.
        if !matches!(fault.prime().domain, Domain::Plugin(_)) && fault.by != OPERATOR && !is_silence_of_guard(&fault) {
            self.cancel(PlanId::Start, &reason);
        }
    }

    /// Whether waiting for more faults would tell nothing: processes were killed, or are gone with all of their host, and all other
    /// ranks are in step loops that can be told to give up. What these say of the world that is given up counts for nothing, and one
    /// that is lost as well is planned for anew, at no loss. A program's own error is waited for: its peers may be about to make it,
    /// too. So is what is decided anew, or beside something else.
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
            link.is_some_and(|link| link.at == Point::Loop)
        };
        let all = view.world.members().keys().map(|rank| Role::Rank(*rank));
        let mut others = all.filter(|role| !lost.contains(role)).peekable();
        others.peek().is_some() && others.all(|role| in_loop(&role))
    }

    fn clear(&mut self, domain: &Domain, class: &FaultClass) {
        let State { incidents, plans, .. } = &mut self.state;
        let stays = |f: &Fault| f.prime().domain != *domain || f.prime().class != *class;
        let mut empty = Vec::new();
        for open in incidents.values_mut().filter(|o| !plans.contains_key(&PlanId::of(o))) {
            let nothing_is_left = !open.incident.faults.iter().any(stays);
            match nothing_is_left {
                true if open.begun => {} // well again, but not what was stopped for it
                true => empty.push(open.incident.id),
                false => open.incident.faults.retain(stays),
            }
        }
        for id in empty {
            self.state.counts.branch(Branch::Cleared);
            self.close(id, "its detector took the blame back", None);
        }
    }

    /// Ends an incident.
    pub(super) fn close(&mut self, id: IncidentId, how: &str, strategy: Option<&Name>) {
        if self.state.incidents.remove(&id).is_none() {
            return;
        }
        self.maybe_complete = true; // it may have been all that kept a finished job
        self.hand_over(id, None);
        self.trial_closed(id);
        self.state.ledger.closed(id, self.state.view.now, how, strategy, &mut self.state.counts);
        self.state.orders.closed(id, how);
        self.announce(Some(id), Event::Closed { incident: id, how: how.to_owned() });
        self.reconsider(); // also where no plan has ended: it was cancelled, and came to nothing
    }

    fn ask(&mut self, ask: Ask) {
        let open = self.state.pending.values().filter(|p| matches!(p.action, Action::Collect(_))).count();
        if open >= QUESTIONS_MAX {
            return self.state.counts.drop(Drop::QuestionBound);
        }
        self.state.counts.branch(Branch::Asked);
        let within = ask.within;
        self.command(None, Action::Collect(ask), within);
    }

    /// An answer to a question, or the lack of one, becomes an observation.
    pub(super) fn testify(&mut self, ask: &Ask, about: &Domain, result: &Result<Output, Failure>) {
        let exhibit = match result {
            Ok(Output::Exhibit(exhibit)) => exhibit.clone(),
            Ok(Output::Accepted | Output::Answered(_)) => Exhibit::Unavailable("answered without evidence".into()),
            Err(Failure::Refused(why) | Failure::Unreachable(why)) => Exhibit::Unavailable(why.clone()),
            Err(Failure::TimedOut | Failure::Gone) => {
                self.state.counts.branch(Branch::SilentEvidence);
                Exhibit::Silence
            }
        };
        let Ask { by, tag, what, .. } = ask.clone();
        let evidence = Evidence { by, tag, what, about: about.clone(), exhibit };
        let signal = Signal::Evidence(Arc::new(evidence));
        let (at, about) = (self.now(), about.clone());
        self.tell(&Observation { at, about, incarnation: None, generation: None, signal });
    }

    pub(super) fn announce(&mut self, incident: Option<IncidentId>, event: Event) {
        self.command(incident.map(PlanId::Recovery), Action::Announce(Box::new(event)), Duration::MAX);
    }
}

/// Whose processes these faults say are gone, if there is no doubt of any: it was killed, or everything on its host is gone with its
/// guard. While something seems to run there the rest of the host's ends is still to be told.
fn lost_for_sure<'a>(faults: impl Iterator<Item = &'a Fault>, view: &View) -> Option<BTreeSet<&'a Role>> {
    let (mut lost, mut gone) = (BTreeSet::new(), BTreeSet::new());
    for suspect in faults.map(Fault::prime) {
        if let Domain::Guard(node) = &suspect.domain
            && suspect.damage.process == Sound::No
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

/// Whether a fault makes a matter of its own of what only an operator wants: what is held for the wish is to be decided anew,
/// lest it be declined as one.
fn is_more_than_a_wish(open: &Open, fault: &Fault) -> bool {
    open.incident.is_ordered() && fault.by != OPERATOR && fault.prime().is_cause()
}

/// Whether `whole` explains `part`: a larger domain whose processes are gone.
fn takes_in(view: &View, whole: &Fault, part: &Fault) -> bool {
    let (outer, inner) = (whole.prime(), part.prime());
    matches!(outer.domain, Domain::Node(_) | Domain::Device(..) | Domain::Group(_))
        && outer.damage.process == Sound::No
        && outer.domain != inner.domain
        && view.contains(&outer.domain, &inner.domain)
}

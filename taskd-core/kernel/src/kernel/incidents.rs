//! Turns findings into incidents.
//!
//! A fault can cancel plans and merge incidents, so this file calls the parts that do each: `correlation`, `plans` and
//! `closing`. It never proposes a recovery: when the correlation window of an incident is over, the `arbiter` is asked.

use super::correlation::{Joined, Place};
use super::guards::is_silence_of_guard;
use super::plans::PlanId;
use super::{Branch, Chosen, DropReason, Event, HoldReason, Kernel, State, plans};
use crate::detect::host_history::HOST_INCIDENTS;
use crate::detect::{Fault, FaultClass, Finding, OPERATOR};
use crate::job::{Domain, IncidentId, JobTime, Name, NodeId, Seq};
use crate::recover::FAULTS_PER_INCIDENT_MAX;
use crate::recover::{Action, Incident};
use crate::state::View;
use crate::trace::Probe;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of detector probes that may wait for replies at a time. Further probes are not sent, but counted
/// ([`DropReason::QuestionBound`]).
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
    /// Hosts against which the incident was recorded.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) recorded_hosts: BTreeSet<NodeId>,
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
    pub(super) fn covers(&self, fault: &Fault) -> bool {
        self.chosen.as_ref().is_some_and(|chosen| plans::replaces(&chosen.proposal, &[], fault))
    }
}

impl Open {
    /// Creates an incident without faults, which the input `seq` has opened.
    pub(super) fn new(id: IncidentId, opened: JobTime, seq: Seq) -> Open {
        Open {
            incident: Incident { id, opened, faults: Vec::new(), attempts: Vec::new() },
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
            recorded_hosts: BTreeSet::new(),
        }
    }

    /// Adds what another incident consists of, which is one with this. A held decision is made again, at `window`.
    pub(super) fn take_over(&mut self, other: Open, window: JobTime) {
        self.rests_on.0 = self.rests_on.0.min(other.rests_on.0);
        self.paid += other.paid;
        self.let_off += other.let_off;
        self.begun |= other.begun;
        self.approved.extend(other.approved);
        self.declined.extend(other.declined);
        self.tried |= other.tried;
        self.recorded_hosts.extend(other.recorded_hosts);
        for (strategy, times) in other.charged {
            *self.charged.entry(strategy).or_default() += times;
        }
        for (strategy, times) in other.cancelled {
            *self.cancelled.entry(strategy).or_default() += times;
        }
        self.incident.faults.extend(other.incident.faults);
        self.incident.attempts.extend(other.incident.attempts);
        if self.held.take().is_some() {
            self.decide_at = self.decide_at.or(Some(window)); // the held proposal covered only a part of it
        }
    }

    /// Returns the number of causes and failed attempts, at least 1. A recovery that is planned again only because of
    /// more victims is not paid for again: otherwise one death in a large job would use up the budget for many.
    pub(super) fn worth(&self) -> usize {
        let causes =
            self.incident.faults.iter().filter(|f| f.primary_suspect().is_cause() && !is_silence_of_guard(f)).count();
        (causes + self.incident.attempts.len()).max(1)
    }

    /// Counts a recovery that was cancelled because of a new fault. Returns the number of cancelled recoveries of this
    /// strategy if they amount to one more failure of it.
    pub(super) fn count_cancelled(&mut self, strategy: &Name) -> Option<u32> {
        let times = self.cancelled.entry(strategy.clone()).or_default();
        *times = times.saturating_add(1);
        times.is_multiple_of(CANCELS_PER_FAILURE).then_some(*times)
    }

    /// Returns true if the fault can be kept, if necessary in the place of another one, which is removed.
    ///
    /// A cause takes the place of the last victim, and any fault that of the last one whose process was replaced since.
    pub(super) fn has_room_for(&mut self, fault: &Fault, view: &View) -> bool {
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

/// Adds the history of the host at fault as evidence, if the job has a history and the host had incidents. An open
/// incident states it once for a host, not for each of its ranks.
fn with_host_history(fault: Fault, State { view, incidents, .. }: &State) -> Fault {
    let evidence = || {
        let (history, host) = (view.host_history.as_ref()?, fault.host_at_fault(view)?);
        let evidence = history.evidence(host, view.wall?)?;
        let states_it = |known: &Fault| {
            let has = known.evidence.iter().any(|clue| clue.what == HOST_INCIDENTS);
            has && known.host_at_fault(view) == Some(host)
        };
        let is_stated = incidents.values().flat_map(|open| &open.incident.faults).any(states_it);
        (!is_stated).then_some(evidence)
    };
    match evidence() {
        Some(evidence) => fault.with_evidence(evidence),
        None => fault,
    }
}

impl Kernel {
    pub(super) fn take_findings(&mut self) {
        for finding in self.found.drain().collect::<Vec<_>>() {
            match finding {
                Finding::Blame(fault) => self.blame(fault),
                Finding::Clear(domain, class) => self.clear(&domain, &class),
                Finding::Probe(ask) => self.ask(ask),
                Finding::Note(about, clue) => self.outbox().announce(None, Event::Noted { about, clue }),
            }
        }
    }

    fn blame(&mut self, fault: Fault) {
        let fault = with_host_history(fault, &self.state);
        let Some(Place { fault, incident, others }) = self.correlation().place(fault) else { return };
        others.into_iter().for_each(|other| self.merge(incident, other));
        self.join(incident, fault);
    }

    fn merge(&mut self, into: IncidentId, from: IncidentId) {
        self.plans().cancel(PlanId::Recovery(from), &format!("merged into {into}"));
        if self.closing().merge(into, from) {
            self.commands().hand_over(from, Some(into));
        }
    }

    fn join(&mut self, id: IncidentId, fault: Fault) {
        let fault = self.probation().charge_running(id, fault);
        let Joined { opened, changes_nothing, window } = self.correlation().join(id, &fault);
        self.outbox().announce(Some(id), Event::Found { incident: id, fault: fault.clone(), opened });
        if changes_nothing {
            return;
        }
        let by_operator = fault.by == OPERATOR;
        let reason = format!("new fault in {}: {}", fault.primary_suspect().domain, fault.primary_suspect().class);
        if let Some(strategy) = self.plans().cancel(PlanId::Recovery(id), &reason) {
            self.correlation().cancelled(id, &strategy, &reason, by_operator, window);
        }
        // The recovery starts what is still missing; an operator's request waits for the start, and the start waits for
        // a guard.
        let concerns_runtime = matches!(fault.primary_suspect().domain, Domain::Plugin(_));
        if !concerns_runtime && !by_operator && !is_silence_of_guard(&fault) {
            self.plans().cancel(PlanId::Start, &reason);
        }
    }

    fn clear(&mut self, domain: &Domain, class: &FaultClass) {
        for id in self.correlation().clear(domain, class) {
            self.state.counts.branch(Branch::Cleared);
            self.close(id, "its detector withdrew the fault", None);
        }
    }

    /// Closes an incident.
    pub(super) fn close(&mut self, id: IncidentId, how: &str, strategy: Option<&Name>) {
        if self.closing().close(id, how, strategy) {
            self.commands().hand_over(id, None);
            self.maybe_complete = true; // it may have been all that kept a completed job running
        }
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
}

//! Handling of the hosts' guards: the end of a guard is the cause of the ends of the processes that it guarded. While a
//! guard does not respond, the kernel waits for it, whatever else is wrong with the processes on its host.
//!
//! This module starts and stops nothing, and considers no process dead: the launcher reports that.

use super::commands::Pending;
use super::incidents::Open;
use super::plans::PlanId;
use super::{Kernel, State};
use crate::detect::{Damage, Evidence, Fault, FaultClass, Health, Suspect};
use crate::job::{Domain, ErrorReport, IncidentId, JobTime, Name, NodeId};
use crate::recover::Action;
use crate::state::{GuardEnd, GuardState, GuardStatus};
use std::time::Duration;

/// Detector name for faults of guards.
const GUARD: Name = Name::new("guard");

/// Delay of the decision about a host's faults after its guard responds again.
///
/// In that time a fault may turn out to be a mere delay: for example, a rank that waited until its output was read.
const RECONSIDER_AFTER: Duration = Duration::from_secs(5);

impl Kernel {
    /// Handles the status of a guard that the launcher reported.
    pub(super) fn guard_told(&mut self, status: &GuardStatus) {
        let node = &status.node;
        let known = self.state.view.guards.insert(node.clone(), status.clone());
        let replaced = known.filter(|old| old.instance != status.instance && !matches!(old.state, GuardState::Gone(_)));
        let silent_since = match status.state {
            GuardState::Silent(_) => None,
            GuardState::Answers | GuardState::Gone(_) => self.state.silent_guards.remove(node),
        };
        if let Some(old) = replaced {
            let unknown = || GuardEnd {
                why: format!("guard {} has ended, and its exit status is unknown", old.pid),
                was_agreed: false,
            };
            self.guard_gone(&old, &status.before.clone().unwrap_or_else(unknown));
        }
        match &status.state {
            GuardState::Silent(why) => self.guard_silent(status, why),
            GuardState::Gone(end) => self.guard_gone(status, end),
            GuardState::Answers => {}
        }
        if let Some(since) = silent_since {
            self.guard_speaks(node, since);
        }
    }

    /// Blames the guard for the end of the processes that it guarded, which end with it.
    fn guard_gone(&mut self, guard: &GuardStatus, end: &GuardEnd) {
        let ends_with_it = self.state.view.procs.values_mut().filter(|proc| proc.node.as_ref() == Some(&guard.node));
        let mut number = 0;
        for proc in ends_with_it.filter(|proc| proc.wanted && !proc.phase.is_over() && proc.pid.is_some()) {
            proc.unguarded = true;
            number += 1;
        }
        if number == 0 {
            return; // nothing was lost
        }
        let damage = Damage { program: Health::Healthy, ..Damage::PROCESS_GONE };
        let suspect = Suspect::certain(Domain::Guard(guard.node.clone()), FaultClass::Exit, damage);
        let what = format!("its {number} processes end with it");
        let agreed = end.was_agreed.then(|| Box::new(agreed(&end.why)));
        let fault = Fault::new(GUARD, self.now(), suspect).with_evidence(Evidence::text("ended", end.why.clone()));
        self.found.blame(fault.with_evidence(Evidence::text("guarded", what)).with_error(agreed));
    }

    fn guard_silent(&mut self, guard: &GuardStatus, why: &str) {
        let now = self.now();
        if self.state.silent_guards.contains_key(&guard.node) {
            return;
        }
        self.state.silent_guards.insert(guard.node.clone(), now);
        let damage = Damage { process: Health::Healthy, state: Health::Healthy, ..Damage::default() };
        let suspect = Suspect::certain(Domain::Guard(guard.node.clone()), FaultClass::Silence, damage);
        let what = "its processes are left as they are; no process is started or stopped there until it answers";
        let fault = Fault::new(GUARD, now, suspect).with_evidence(Evidence::text("silent", why.to_owned()));
        self.found.blame(fault.with_evidence(Evidence::text("waits", what)));
    }

    /// Handles a guard that responds again, or is gone: the time in which nothing could be done is not charged to any
    /// process.
    fn guard_speaks(&mut self, node: &NodeId, since: JobTime) {
        let now = self.now();
        let silent = now.since(since);
        self.slept(u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX));
        let guard = Domain::Guard(node.clone());
        let is_silence = |fault: &Fault| is_silence_of_guard(fault) && fault.primary_suspect().domain == guard;
        let State { incidents, plans, view, .. } = &mut self.state;
        let mut over = Vec::new();
        for open in incidents.values_mut() {
            if !open.incident.faults.iter().any(|fault| view.overlap(&fault.primary_suspect().domain, &guard)) {
                continue; // it has not waited for this guard
            }
            let is_under_way = plans.contains_key(&PlanId::of(open)) || open.held.is_some();
            match open.incident.faults.iter().all(is_silence) && !open.begun {
                true => over.push(open.incident.id),
                false if is_under_way => {}
                false => open.decide_at = open.decide_at.or(Some(now + RECONSIDER_AFTER)),
            }
        }
        for id in over {
            self.close(id, &format!("the guard of {node} answers again, after {:.1} s", silent.as_secs_f64()), None);
        }
    }

    /// Returns true if the decision of an incident has to wait because a guard does not respond. The faults on its host
    /// may be caused by that, and could not be repaired there.
    pub(super) fn awaits_guard(&self, id: IncidentId) -> bool {
        let State { incidents, silent_guards, view, .. } = &self.state;
        let concerns = |open: &Open, node: &NodeId| {
            let guard = Domain::Guard(node.clone());
            open.incident.faults.iter().any(|fault| view.overlap(&fault.primary_suspect().domain, &guard))
        };
        let open = incidents.get(&id).filter(|_| !self.observes());
        open.is_some_and(|open| silent_guards.keys().any(|node| concerns(open, node)))
    }

    /// Returns true if a command waits for a guard that does not respond. Such a command does not time out as long as
    /// the job is not ending.
    pub(super) fn is_held_up(&self, pending: &Pending) -> bool {
        let State { silent_guards, view, life, .. } = &self.state;
        let touches = matches!(pending.action, Action::Start { .. } | Action::Stop { .. });
        let on_its_host = |target: &Domain| view.node_of(target).is_some_and(|node| silent_guards.contains_key(node));
        touches && !silent_guards.is_empty() && !life.is_ending() && pending.waiting.keys().any(on_its_host)
    }
}

/// Returns true if the fault only reports that a guard does not respond.
pub(super) fn is_silence_of_guard(fault: &Fault) -> bool {
    fault.primary_suspect().class == FaultClass::Silence && matches!(fault.primary_suspect().domain, Domain::Guard(_))
}

/// Returns an error report for a guard that ended as it had been configured to. Its recovery is free.
fn agreed(why: &str) -> ErrorReport {
    ErrorReport {
        family: GUARD,
        code: Name::new("keep-expired"),
        text: why.to_owned(),
        follow_up: false,
        retry_free: true,
        step: None,
    }
}

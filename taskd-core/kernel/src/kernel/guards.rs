//! Handling of the hosts' guards: the end of a guard is the cause of the ends of the processes that it guarded. While a
//! guard does not respond, the kernel waits for it, whatever else is wrong with the processes on its host.
//!
//! This module starts and stops nothing, and considers no process dead: the launcher reports that.

use super::commands::Pending;
use super::incidents::Open;
use super::lifecycle::Life;
use crate::detect::{Damage, Evidence, Fault, FaultClass, Findings, Health, Suspect};
use crate::job::{Domain, ErrorReport, JobTime, Name, NodeId, Role};
use crate::recover::Action;
use crate::state::{GuardEnd, GuardState, GuardStatus, Proc, View};
use std::collections::BTreeMap;

/// Detector name for faults of guards.
const GUARD: Name = Name::new("guard");

/// Handles what the launcher reports of guards.
pub(super) struct Guards<'a> {
    pub(super) now: JobTime,
    pub(super) known: &'a mut BTreeMap<NodeId, GuardStatus>,
    pub(super) silent: &'a mut BTreeMap<NodeId, JobTime>,
    /// The processes, to mark those that end with their guard.
    pub(super) procs: &'a mut BTreeMap<Role, Proc>,
    pub(super) found: &'a mut Findings,
}

impl Guards<'_> {
    /// Handles the status of a guard. Returns the time since which it was silent, if it responds again or is gone.
    pub(super) fn told(&mut self, status: &GuardStatus) -> Option<JobTime> {
        let node = &status.node;
        let known = self.known.insert(node.clone(), status.clone());
        let replaced = known.filter(|old| old.instance != status.instance && !matches!(old.state, GuardState::Gone(_)));
        let silent_since = match status.state {
            GuardState::Silent(_) => None,
            GuardState::Answers | GuardState::Gone(_) => self.silent.remove(node),
        };
        if let Some(old) = replaced {
            let unknown = || GuardEnd {
                why: format!("guard {} has ended, and its exit status is unknown", old.pid),
                was_agreed: false,
            };
            self.gone(&old, &status.before.clone().unwrap_or_else(unknown));
        }
        match &status.state {
            GuardState::Silent(why) => self.is_silent(status, why),
            GuardState::Gone(end) => self.gone(status, end),
            GuardState::Answers => {}
        }
        silent_since
    }

    /// Blames the guard for the end of the processes that it guarded, which end with it.
    fn gone(&mut self, guard: &GuardStatus, end: &GuardEnd) {
        let ends_with_it = self.procs.values_mut().filter(|proc| proc.node.as_ref() == Some(&guard.node));
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
        let fault = Fault::new(GUARD, self.now, suspect).with_evidence(Evidence::text("ended", end.why.clone()));
        self.found.blame(fault.with_evidence(Evidence::text("guarded", what)).with_error(agreed));
    }

    fn is_silent(&mut self, guard: &GuardStatus, why: &str) {
        if self.silent.contains_key(&guard.node) {
            return;
        }
        self.silent.insert(guard.node.clone(), self.now);
        let damage = Damage { process: Health::Healthy, state: Health::Healthy, ..Damage::default() };
        let suspect = Suspect::certain(Domain::Guard(guard.node.clone()), FaultClass::Silence, damage);
        let what = "its processes are left as they are; no process is started or stopped there until it answers";
        let fault = Fault::new(GUARD, self.now, suspect).with_evidence(Evidence::text("silent", why.to_owned()));
        self.found.blame(fault.with_evidence(Evidence::text("waits", what)));
    }
}

/// Reads what has to wait because a guard does not respond.
pub(super) struct SilentGuards<'a> {
    pub(super) view: &'a View,
    pub(super) silent: &'a BTreeMap<NodeId, JobTime>,
    pub(super) life: Life,
}

impl SilentGuards<'_> {
    /// Returns true if the decision of an incident has to wait. The faults on its host may be caused by the silence, and
    /// could not be repaired there.
    pub(super) fn delay(&self, open: &Open) -> bool {
        !self.view.is_dry_run() && self.silent.keys().any(|node| concerns(open, node, self.view))
    }

    /// Returns true if a command waits for a guard that does not respond. Such a command does not time out as long as
    /// the job is not ending.
    pub(super) fn hold_up(&self, pending: &Pending) -> bool {
        let touches = matches!(pending.action, Action::Start { .. } | Action::Stop { .. });
        let on_its_host =
            |target: &Domain| self.view.node_of(target).is_some_and(|node| self.silent.contains_key(node));
        touches && !self.silent.is_empty() && !self.life.is_ending() && pending.waiting.keys().any(on_its_host)
    }
}

/// Returns true if the incident has a fault on the host of a guard.
pub(super) fn concerns(open: &Open, node: &NodeId, view: &View) -> bool {
    let guard = Domain::Guard(node.clone());
    open.incident.faults.iter().any(|fault| view.overlap(&fault.primary_suspect().domain, &guard))
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

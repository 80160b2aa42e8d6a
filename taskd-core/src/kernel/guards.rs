//! The guards of the hosts' processes: the end of one is the cause of the ends of what it guarded, and one that does not answer is
//! waited for, whatever is wrong meanwhile with what it guards.
//!
//! It starts and stops nothing, and takes no process for dead: that is told by the launcher.

use super::commands::Pending;
use super::incidents::Open;
use super::plans::PlanId;
use super::{Kernel, State};
use crate::detect::{Clue, Damage, Fault, FaultClass, Sound, Suspect};
use crate::job::{Domain, ErrorReport, IncidentId, JobTime, Name, NodeId};
use crate::launch::{GuardEnd, GuardState, GuardStatus};
use crate::recover::Action;
use std::time::Duration;

/// Under this name stands what is found of guards.
const GUARD: Name = Name::new("guard");

/// How long what was blamed on a host whose guard answers again has to show that it was only held up: a rank that waited until its
/// output was taken, for instance.
const RECONSIDER_AFTER: Duration = Duration::from_secs(5);

impl Kernel {
    /// What the launcher says of a guard.
    pub(super) fn guard_told(&mut self, status: &GuardStatus) {
        let node = &status.node;
        let known = self.state.view.guards.insert(node.clone(), status.clone());
        let replaced = known.filter(|old| old.instance != status.instance && !matches!(old.state, GuardState::Gone(_)));
        let silent_since = match status.state {
            GuardState::Silent(_) => None,
            GuardState::Answers | GuardState::Gone(_) => self.state.silent_guards.remove(node),
        };
        if let Some(old) = replaced {
            let unknown =
                || GuardEnd { why: format!("guard {} has ended, and nothing tells how", old.pid), was_agreed: false };
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

    /// What it guarded ends with it, and the guard is blamed for that.
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
        let damage = Damage { program: Sound::Yes, ..Damage::PROCESS_GONE };
        let suspect = Suspect::certain(Domain::Guard(guard.node.clone()), FaultClass::Exit, damage);
        let what = format!("the {number} processes that it guarded end with it");
        let agreed = end.was_agreed.then(|| Box::new(agreed(&end.why)));
        let fault = Fault::new(GUARD, self.now(), suspect).because(Clue::text("ended", end.why.clone()));
        self.found.blame(fault.because(Clue::text("guarded", what)).with_error(agreed));
    }

    fn guard_silent(&mut self, guard: &GuardStatus, why: &str) {
        let now = self.now();
        if self.state.silent_guards.contains_key(&guard.node) {
            return;
        }
        self.state.silent_guards.insert(guard.node.clone(), now);
        let damage = Damage { process: Sound::Yes, state: Sound::Yes, ..Damage::default() };
        let suspect = Suspect::certain(Domain::Guard(guard.node.clone()), FaultClass::Silence, damage);
        let what = "what it guards is left as it is; until it answers nothing is started or stopped there";
        let fault = Fault::new(GUARD, now, suspect).because(Clue::text("silent", why.to_owned()));
        self.found.blame(fault.because(Clue::text("waits", what)));
    }

    /// It answers again, or is gone: the time in which nothing could be done is nobody's.
    fn guard_speaks(&mut self, node: &NodeId, since: JobTime) {
        let now = self.now();
        let silent = now.since(since);
        self.slept(u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX));
        let guard = Domain::Guard(node.clone());
        let is_silence = |fault: &Fault| is_silence_of_guard(fault) && fault.prime().domain == guard;
        let State { incidents, plans, view, .. } = &mut self.state;
        let mut over = Vec::new();
        for open in incidents.values_mut() {
            if !open.incident.faults.iter().any(|fault| view.overlap(&fault.prime().domain, &guard)) {
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

    /// Whether nothing is decided about an incident yet, because a guard does not answer: what is wrong on its host may come of that,
    /// and could not be mended there.
    pub(super) fn awaits_guard(&self, id: IncidentId) -> bool {
        let State { incidents, silent_guards, view, .. } = &self.state;
        let concerns = |open: &Open, node: &NodeId| {
            let guard = Domain::Guard(node.clone());
            open.incident.faults.iter().any(|fault| view.overlap(&fault.prime().domain, &guard))
        };
        let open = incidents.get(&id).filter(|_| !self.observes());
        open.is_some_and(|open| silent_guards.keys().any(|node| concerns(open, node)))
    }

    /// Whether a command waits for a guard that does not answer: that is not too late as long as the job is not being ended.
    pub(super) fn is_held_up(&self, pending: &Pending) -> bool {
        let State { silent_guards, view, life, .. } = &self.state;
        let touches = matches!(pending.action, Action::Start { .. } | Action::Stop { .. });
        let on_its_host = |target: &Domain| view.node_of(target).is_some_and(|node| silent_guards.contains_key(node));
        touches && !silent_guards.is_empty() && !life.is_ending() && pending.waiting.keys().any(on_its_host)
    }
}

/// Whether all that a fault says is that a guard does not answer.
pub(super) fn is_silence_of_guard(fault: &Fault) -> bool {
    fault.prime().class == FaultClass::Silence && matches!(fault.prime().domain, Domain::Guard(_))
}

/// That a guard ended as it had been told to, as an error whose recovery is free.
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

//! A recovery that keeps processes neither stops nor replaces them, and starts only ranks that were lost.

use super::super::outcome::Violation;
use super::Moment;
use super::books::event;
use crate::detect::{Fault, Health};
use crate::job::{Domain, IncidentId, ProcId, Role};
use crate::kernel::Effect;
use crate::kernel::{Command, Decision, Event};
use crate::launch::Directive;
use crate::recover::Action;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The kept processes of each recovery in progress.
    by: BTreeMap<IncidentId, BTreeSet<ProcId>>,
    stopped: BTreeSet<ProcId>,
}

impl Kept {
    pub(super) fn check(&mut self, m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
        match (&command.effect, command.incident) {
            (Effect::Act(Action::Stop { procs, .. }), Some(incident)) => {
                self.stopped.extend(procs.iter().cloned());
                self.is_kept(incident, |kept| procs.contains(kept))?;
            }
            (Effect::Act(Action::Stop { procs, .. }), None) => self.stopped.extend(procs.iter().cloned()),
            (Effect::Act(Action::Start { batch, .. }), Some(incident)) => {
                let orders = &batch.starts;
                self.is_kept(incident, |kept| orders.iter().any(|order| order.proc.role == kept.role))?;
            }
            _ => {}
        }
        match event(command) {
            Some(Event::Decided(decision)) if decision.held.is_none() => self.decided(m, decision)?,
            Some(
                Event::Cancelled { incident, .. } | Event::Failed { incident, .. } | Event::Closed { incident, .. },
            ) => _ = self.by.remove(incident),
            _ => {}
        }
        Ok(())
    }

    fn is_kept(&self, incident: IncidentId, touched: impl Fn(&ProcId) -> bool) -> Result<(), Violation> {
        match self.by.get(&incident).into_iter().flatten().find(|kept| touched(kept)) {
            Some(proc) => Err(Violation::NotKept { incident, proc: proc.clone() }),
            None => Ok(()),
        }
    }

    fn decided(&mut self, m: &Moment<'_>, decision: &Decision) -> Result<(), Violation> {
        let Some(chosen) = &decision.chosen else { return Ok(()) };
        let id = decision.incident.id;
        let actions = || chosen.proposal.stages.iter().flat_map(|stage| &stage.actions);
        let sent = actions().filter_map(|action| match action {
            Action::SendDirectives(batch) => Some(&batch.directives),
            _ => None,
        });
        let gives_up = |what: &Directive| matches!(what, Directive::Abort {});
        let kept: BTreeSet<ProcId> =
            sent.flatten().filter(|(_, what)| gives_up(what)).map(|(proc, _)| proc.clone()).collect();
        if kept.is_empty() {
            return Ok(());
        }
        for action in actions() {
            let Action::Start { batch, .. } = action else { continue };
            let starts = batch.starts.iter().map(|order| &order.proc.role);
            if let Some(role) = starts.clone().find(|role| !self.was_lost(m, decision, role)) {
                return Err(Violation::StartedUnlost { incident: id, role: role.clone() });
            }
        }
        self.by.insert(id, kept);
        Ok(())
    }

    /// Returns true if a rank's process is gone or stopped, if the incident states that it does not run, or if it had
    /// to join and has not.
    fn was_lost(&self, m: &Moment<'_>, decision: &Decision, role: &Role) -> bool {
        let before = m.fleet.procs.iter().rfind(|(proc, _)| proc.role == *role);
        let gone = before.is_none_or(|(proc, process)| !process.is_alive() || self.stopped.contains(proc));
        let has_reported = m.kernel.view().proc(role).is_some_and(|proc| proc.step.is_some() || proc.link.is_some());
        let trains = |(proc, _): (&ProcId, _)| m.training.seat(proc).is_some_and(|seat| seat.stepped.is_some());
        let has_come = has_reported && before.is_some_and(trains);
        if !decision.incident.attempts.is_empty() && !has_come {
            return true; // an earlier attempt has failed, and no observable fact shows that the rank has joined
        }
        let about = Domain::Process(role.clone());
        let blames = |domain: &Domain| m.kernel.view().contains(domain, &about);
        // It may be alive, have recorded its failure, and not be to blame: the failure is charged to the previous
        // recovery.
        let is_lost = |fault: &Fault| {
            fault.primary_suspect().is_cause() || fault.primary_suspect().damage.process == Health::Faulty
        };
        gone || decision.incident.faults.iter().any(|f| blames(&f.primary_suspect().domain) && is_lost(f))
    }
}

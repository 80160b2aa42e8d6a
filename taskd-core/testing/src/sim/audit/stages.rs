//! A stage that starts processes succeeds only when as many of them as required really exist.

use super::super::outcome::Violation;
use super::Moment;
use super::books::event;
use crate::job::{Generation, IncidentId, ProcId, Ready, Termination};
use crate::kernel::Effect;
use crate::kernel::{Command, Event};
use crate::recover::{Action, Quorum, Stage};
use std::collections::{BTreeMap, VecDeque};

/// The progress of one plan.
#[derive(Debug, Default)]
struct Progress {
    /// The remaining stages, if known: a strategy may have replaced them.
    stages: VecDeque<Stage>,
    /// Processes that the stage in progress starts.
    starts: Vec<(ProcId, Ready, Generation)>,
}

#[derive(Debug, Default)]
pub(super) struct Stages {
    plans: BTreeMap<Option<IncidentId>, Progress>,
}

impl Stages {
    pub(super) fn check(&mut self, m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
        if let Effect::Act(Action::Start { batch, until }) = &command.effect {
            let plan = self.plans.entry(command.incident).or_default();
            plan.starts.extend(batch.starts.iter().map(|o| (o.proc.clone(), *until, batch.world.generation())));
        }
        match event(command) {
            Some(Event::Decided(decision)) if decision.held.is_none() => {
                let stages = decision.chosen.iter().flat_map(|c| c.proposal.stages.clone()).collect();
                self.plans.insert(Some(decision.incident.id), Progress { stages, starts: Vec::new() });
            }
            Some(
                Event::Cancelled { incident, .. } | Event::Failed { incident, .. } | Event::Closed { incident, .. },
            ) => {
                self.plans.remove(&Some(*incident));
            }
            Some(Event::StageDone { incident, stage }) => return self.stage_done(m, *incident, stage.as_str()),
            _ => {}
        }
        Ok(())
    }

    fn stage_done(&mut self, m: &Moment<'_>, incident: Option<IncidentId>, name: &str) -> Result<(), Violation> {
        let Some(plan) = self.plans.get_mut(&incident) else { return Ok(()) };
        let known = plan.stages.pop_front().filter(|s| s.name == name);
        let first_start = incident.is_none() && name == "start"; // the kernel's own stages have other names
        let all = first_start || known.is_some_and(|s| s.quorum == Quorum::All);
        for (proc, until, generation) in std::mem::take(&mut plan.starts) {
            if all && !is_there(m, &proc, until, generation) {
                return Err(Violation::StartNotDone { stage: name.to_owned(), proc, until });
            }
        }
        Ok(())
    }
}

fn is_there(m: &Moment<'_>, proc: &ProcId, until: Ready, generation: Generation) -> bool {
    let Some(process) = m.fleet.procs.get(proc) else { return false };
    if process.phase.termination().is_some_and(Termination::is_success) {
        return true;
    }
    match until {
        Ready::Accepted => true,
        Ready::Parked => m.loops.get(proc).is_some_and(|known| known.parked),
        Ready::Running => process.ran,
        Ready::Stepping if proc.role.rank().is_none() => process.ran,
        Ready::Training => process.ran, // the kernel waits for a step only if it has seen one, and with a time limit
        Ready::Stepping => m.training.seat(proc).is_none_or(|s| s.stepped >= Some(generation)),
    }
}

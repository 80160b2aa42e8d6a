//! Repeats the step in the same processes with new groups, when no rank is lost.

use super::{
    ABORT, JOIN, Limits, cannot_meet, compare_replicas, join_if_of_use, meet_anew, missing_services, repair_and_resume,
    survivors,
};
use crate::detect::{Damage, Health};
use crate::job::strategy::RETRY as NAME;
use crate::job::{Counted, Domain, Name};
use crate::recover::{
    Advance, Cost, Incident, JobProfile, PlanExecution, Proposal, RecoveryStrategy, RefusalError, possible,
};
use crate::state::View;
use crate::state::current_name;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Expected downtime.
const DOWNTIME: Duration = Duration::from_millis(100);

/// Recovery strategy `retry`: all ranks repeat the step after a failure that every process survived, such as a
/// failed collective, a bad step or a memory error. The job loses the step in flight, and no rank is started.
///
/// - Stages: `abort`, `join`, `sync-state` (ranks whose step was aborted during the optimizer's update, and ranks
///   that are a step behind, copy the state of a replica), `resume`.
/// - A lost rendezvous service is started again; it is the only new process.
/// - The strategy refuses if a rank is lost, if a rank has no control link, if another service is missing, if ranks
///   would stay on a broken host, and if no rank has reported a failed step: a rank that is only slow would be slow
///   again.
/// - The recovery fails between stages if a rank that has to copy state has no replica, for example after the update of
///   a sharded optimizer was aborted.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    limits: Limits,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry::new()
    }
}

impl Retry {
    /// Creates the strategy.
    #[must_use]
    pub const fn new() -> Retry {
        Retry { limits: Limits::USUAL }
    }
}

impl RecoveryStrategy for Retry {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        self.limits.text()
    }

    fn unsupported_reason(&self, job: &JobProfile) -> Option<String> {
        cannot_meet(job)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        possible(self, view)?;
        if !incident.lost_ranks(view).is_empty() {
            return Err("a rank is lost, and this strategy starts no replacement".into());
        }
        let failed = |damage: &Damage| damage.process == Health::Healthy && damage.state != Health::Healthy;
        let damages = || incident.faults.iter().map(|fault| &fault.primary_suspect().damage);
        if damages().any(|damage| damage.program == Health::Faulty) {
            return Err("the program is broken: it would fail again".into());
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |_| ()));
        let services = missing_services(view, &world)?;
        if !damages().any(failed) && services.is_empty() {
            return Err("no process has reported a failed step".into());
        }
        let kept = survivors(incident, view, &BTreeSet::new())?;
        let stages = meet_anew(view, &world, &kept, Vec::new(), services, &self.limits);
        let reason = format!("all {} ranks are alive: they repeat the step", kept.len());
        Ok(Proposal::new(stages, vec![Domain::Job], Cost::downtime(DOWNTIME), Counted::Yes, reason))
    }

    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        match run.ended_stage().map(|stage| current_name(&stage.name)) {
            Some(name) if name == JOIN => repair_and_resume(run, view, &self.limits),
            Some(name) if name == ABORT => join_if_of_use(run, view, &self.limits),
            _ => compare_replicas(run, view),
        }
    }
}

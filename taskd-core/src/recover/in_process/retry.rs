//! Nobody is lost: the step is done again, by the same processes in new groups.

use super::{
    GIVE_UP, JOIN, Limits, cannot_meet, compare_replicas, join_if_of_use, meet_anew, missing_services,
    repair_and_resume, survivors,
};
use crate::detect::{Damage, Sound};
use crate::job::{Counted, Domain, Name};
use crate::kernel::View;
use crate::recover::{Beforehand, Cost, Incident, Next, Proposal, RecoveryStrategy, Run, possible};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const NAME: Name = Name::new("retry");

/// What it is expected to keep the job from training.
const DOWNTIME: Duration = Duration::from_millis(100);

/// Does the step again after a failure that every process has survived: a failed collective, a bad step, a memory error. The
/// job loses the step in flight, and nobody is started.
///
/// - Stages: `give-up`, `join`, `repair` (ranks that were torn, or are a step behind, copy from a replica), `resume`.
/// - The service at which ranks meet is started again, if it is lost: nobody but it is new.
/// - It refuses when a rank is lost, when somebody has no control link, when another service is missing, when ranks would stay
///   on a broken host, and when nobody has said that its step failed: who is only slow would be slow again.
/// - It gives up between stages when who has to copy finds no replica, such as of a sharded optimizer that was torn.
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
    /// The strategy.
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

    fn cannot(&self, job: &Beforehand) -> Option<String> {
        cannot_meet(job)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        possible(self, view)?;
        if !incident.lost(view).is_empty() {
            return Err("a rank is lost, and nobody would take its place".into());
        }
        let failed = |damage: &Damage| damage.process == Sound::Yes && damage.state != Sound::Yes;
        let damages = || incident.faults.iter().map(|fault| &fault.prime().damage);
        if damages().any(|damage| damage.program == Sound::No) {
            return Err("the program itself is broken: it would fail again".into());
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |_| ()));
        let services = missing_services(view, &world)?;
        if !damages().any(failed) && services.is_empty() {
            return Err("no process says that its step has failed".into());
        }
        let kept = survivors(incident, view, &BTreeSet::new())?;
        let stages = meet_anew(view, &world, &kept, Vec::new(), services, &self.limits);
        Ok(Proposal {
            stages,
            touches: vec![Domain::Job],
            cost: Cost::downtime(DOWNTIME),
            counted: Counted::Yes,
            reason: format!("all {} ranks live: they do the step again", kept.len()),
        })
    }

    fn advance(&self, run: &Run, view: &View) -> Next {
        match run.ended_stage().map(|stage| &stage.name) {
            Some(name) if *name == JOIN => repair_and_resume(run, view, &self.limits),
            Some(name) if *name == GIVE_UP => join_if_of_use(run, view, &self.limits),
            _ => compare_replicas(run, view),
        }
    }
}

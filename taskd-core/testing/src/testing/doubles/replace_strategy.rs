//! A correct strategy, short enough to be read in a minute.

use crate::job::{Counted, Domain, Name, ProcId, Role};
use crate::launch::{Place, StartBatch, StartOrder};
use crate::recover::{Action, Cost, Incident, Proposal, RecoveryStrategy, RefusalError, Stage};
use crate::state::View;
use std::sync::Arc;
use std::time::Duration;

/// Recovery strategy that stops what is left of the lost ranks' processes, and starts new processes for these ranks
/// in a new world (the set of ranks that train together).
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaceStrategy;

impl RecoveryStrategy for ReplaceStrategy {
    fn name(&self) -> Name {
        Name::new("double.replace")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let lost = incident.lost_ranks(view);
        if lost.is_empty() {
            return Err("no rank has lost its process".into());
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for rank in &lost {
                let incarnation = view.next_incarnation(&Role::Rank(*rank));
                members.entry(*rank).and_modify(|member| member.incarnation = incarnation);
            }
        }));
        let left: Vec<ProcId> =
            view.alive().filter(|proc| proc.role.rank().is_some_and(|rank| lost.contains(&rank))).collect();
        let orders = lost
            .iter()
            .filter_map(|rank| world.proc(*rank))
            .map(|proc| StartOrder::new(proc, Place::anywhere(), Arc::clone(&view.spec.worker)));
        let batch = StartBatch::new(Arc::clone(&world), orders.collect());
        let stop = Action::Stop { procs: left, grace: Duration::ZERO, exact: true };
        let start = Action::Start { batch, until: view.spec.policy.ready };
        let stages = vec![
            Stage::new("stop", Duration::from_secs(30), vec![stop]),
            Stage::new("start", view.spec.policy.start_timeout, vec![Action::Enter(world), start]),
        ];
        let affected = vec![Domain::Job]; // every rank has to receive the new world
        let cost = Cost::downtime(Duration::from_secs(10));
        let reason = format!("{} ranks have lost their process and get another", lost.len());
        Ok(Proposal::new(stages, affected, cost, Counted::Yes, reason))
    }
}

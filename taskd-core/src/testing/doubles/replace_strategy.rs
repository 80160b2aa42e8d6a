//! A good strategy, small enough to be read in a minute.

use crate::job::{Counted, Domain, Name, ProcId, Role};
use crate::kernel::View;
use crate::launch::{Place, StartBatch, StartOrder};
use crate::recover::{Action, Cost, Incident, Proposal, RecoveryStrategy, Stage};
use std::sync::Arc;
use std::time::Duration;

/// Stops what is left of the lost ranks, and starts others in their place, in a new world.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaceStrategy;

impl RecoveryStrategy for ReplaceStrategy {
    fn name(&self) -> Name {
        Name::new("double.replace")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        let lost = incident.lost(view);
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
        let orders = lost.iter().filter_map(|rank| world.proc(*rank)).map(|proc| StartOrder {
            proc,
            place: Place::anywhere(),
            spec: Arc::clone(&view.spec.worker),
        });
        let batch = StartBatch { world: Arc::clone(&world), orders: orders.collect() };
        let stop = Action::Stop { procs: left, grace: Duration::ZERO, exact: true };
        let start = Action::Start { batch, until: view.spec.policy.ready };
        Ok(Proposal {
            stages: vec![
                Stage::new("stop", Duration::from_secs(30), vec![stop]),
                Stage::new("start", view.spec.policy.start_within, vec![Action::Enter(world), start]),
            ],
            touches: vec![Domain::Job], // everybody has to learn of the new world
            cost: Cost::downtime(Duration::from_secs(10)),
            counted: Counted::Yes,
            reason: format!("{} ranks have lost their process and get another", lost.len()),
        })
    }
}

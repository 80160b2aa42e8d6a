use std::{sync::Arc, time::Duration};
use taskd_core::{job::*, launch::*, recover::*, state::View};

/// Recovery strategy that restarts only the lost ranks, for jobs whose ranks are independent of each other.
pub struct StartLost;

impl RecoveryStrategy for StartLost {
    fn name(&self) -> Name {
        Name::new("acme.start-lost")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let lost = incident.lost_ranks(view);
        if lost.is_empty() {
            return Err("no rank has lost its process".into());
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for (rank, member) in members.iter_mut().filter(|(rank, _)| lost.contains(rank)) {
                member.incarnation = view.next_incarnation(&Role::Rank(*rank));
            }
        }));
        let is_lost = |proc: &ProcId| proc.role.rank().is_some_and(|rank| lost.contains(&rank));
        let stop = Action::Stop { procs: view.alive().filter(is_lost).collect(), grace: Duration::ZERO, exact: true };
        let order = |proc| StartOrder::new(proc, Place::anywhere(), Arc::clone(&view.spec.worker));
        let orders = lost.iter().filter_map(|rank| world.proc(*rank)).map(order).collect();
        let batch = StartBatch::new(Arc::clone(&world), orders);
        let start = Action::Start { batch, until: view.spec.policy.ready };
        Ok(Proposal::new(
            vec![
                Stage::new("stop", Duration::from_secs(30), vec![stop]),
                Stage::new("start", view.spec.policy.start_timeout, vec![Action::Enter(world), start]),
            ],
            lost.iter().map(|rank| Domain::Process(Role::Rank(*rank))).collect(),
            Cost::downtime(Duration::from_secs(10)),
            Counted::Yes,
            format!("of {} ranks only {} must start again", view.world.size(), lost.len()),
        ))
    }
}

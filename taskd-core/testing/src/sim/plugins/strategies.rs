//! Strategies for features that a whole restart does not use: survivors, narrow domains, failures, changed plans.

use super::super::dice::Dice;
use super::REPLACE;
use crate::detect::Health;
use crate::job::{Counted, Domain, Name, NodeId, Rank, Role, World};
use crate::launch::{Place, StartBatch, StartOrder};
use crate::recover::{
    Action, Advance, Cost, Failure, Incident, PlanExecution, Proposal, RecoveryStrategy, RefusalError, Stage,
    TargetReply,
};
use crate::state::View;
use crate::trace::{PROCESS_STATE, Probe, ProbeResult};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn draw(dice: &mut Dice, into: &mut Vec<Box<dyn RecoveryStrategy>>) {
    if dice.chance(700) {
        into.push(Box::new(Replace));
    }
    if dice.chance(500) {
        into.push(Box::new(Reboot));
    }
    if dice.chance(250) {
        into.push(Box::new(Look));
    }
    if dice.chance(250) {
        into.push(Box::new(Hopeless { gives_up: dice.chance(500) }));
    }
    if dice.chance(100) {
        into.push(Box::new(Jumpy));
    }
}

/// Returns an error if the job's program has a step loop of taskd, whose surviving ranks rejoin only on a directive.
fn meet_by_themselves(view: &View) -> Result<(), String> {
    match view.spec.worker.argv.iter().any(|argument| argument == super::super::step_loop::ARGUMENT) {
        true => Err("survivors join only on a directive, and this strategy sends none".into()),
        false => Ok(()),
    }
}

fn cost(downtime_s: u64) -> Cost {
    Cost::downtime(Duration::from_secs(downtime_s))
}

fn processes<'a>(ranks: impl IntoIterator<Item = &'a Rank>) -> Vec<Domain> {
    ranks.into_iter().map(|rank| Domain::Process(Role::Rank(*rank))).collect()
}

/// Returns a recovery stage whose only action is a probe of these domains.
fn asking(name: &'static str, by: Name, incident: &Incident, what: Name, about: &[Domain], within: Duration) -> Stage {
    let ask = Probe::new(by, what, about.to_vec(), within).with_tag(incident.id.0);
    Stage::new(name, within, vec![Action::Collect(ask)])
}

/// Returns an error if new processes cannot resolve the incident: a service is missing, the program itself fails, or a
/// host is broken, which these strategies cannot leave.
fn mendable(incident: &Incident, view: &View) -> Result<(), String> {
    if let Some(service) = view.missing_services().next() {
        return Err(format!("service {service} is missing, and this strategy starts only ranks"));
    }
    if incident.faults.iter().any(|f| f.primary_suspect().damage.program == Health::Faulty) {
        return Err("the program itself fails".into());
    }
    match incident.broken_hosts().first() {
        Some(host) => Err(format!("{host} is broken, and this strategy cannot leave a host")),
        None => Ok(()),
    }
}

/// Returns the next world, in which these ranks have new processes on usable hosts and all other ranks survive.
fn with_new(view: &View, ranks: &BTreeSet<Rank>, counted: Counted) -> Arc<World> {
    let spare = view.ready_nodes().next().cloned();
    let usable = |node: &NodeId| view.ready_nodes().any(|n| n == node);
    Arc::new(view.world.successor(counted, |members| {
        for rank in ranks {
            let next = view.next_incarnation(&Role::Rank(*rank));
            members.entry(*rank).and_modify(|m| {
                m.incarnation = next;
                if m.node.as_ref().is_some_and(|n| !usable(n)) {
                    m.node.clone_from(&spare);
                }
            });
        }
    }))
}

/// Returns two stages: the first stops the remaining processes of these ranks, the second starts new ones in the given
/// world.
fn replacing(view: &View, ranks: &BTreeSet<Rank>, world: Arc<World>) -> Vec<Stage> {
    let policy = &view.spec.policy;
    let old = view.alive().filter(|p| p.role.rank().is_some_and(|r| ranks.contains(&r))).collect();
    let stop = Action::Stop { procs: old, grace: policy.termination_grace_period, exact: true };
    let orders = ranks.iter().filter_map(|r| {
        let place = world.members().get(r)?.node.clone().map_or(Place::anywhere(), Place::On);
        Some(StartOrder::new(world.proc(*r)?, place, Arc::clone(&view.spec.worker)))
    });
    let batch = StartBatch::new(Arc::clone(&world), orders.collect());
    let start = Action::Start { batch, until: policy.ready };
    vec![
        Stage::new("stop", policy.termination_grace_period + Duration::from_secs(30), vec![stop]),
        Stage::new("start", policy.start_timeout, vec![Action::Enter(world), start]),
    ]
}

/// Replaces lost ranks only; the others survive in the new world. Touches only the lost processes.
struct Replace;

impl RecoveryStrategy for Replace {
    fn name(&self) -> Name {
        REPLACE
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        mendable(incident, view)?;
        meet_by_themselves(view)?;
        let lost = incident.lost_ranks(view);
        if lost.is_empty() || lost.len() * 2 > view.world.members().len() {
            return Err(format!("{} of {} ranks are lost", lost.len(), view.world.size()).into());
        }
        let world = with_new(view, &lost, Counted::Yes);
        Ok(Proposal::new(
            replacing(view, &lost, world),
            processes(&lost),
            cost(5),
            Counted::Yes,
            format!("{} ranks are replaced, the others keep running", lost.len()),
        ))
    }
}

/// Restarts all ranks of one host, there or elsewhere. Touches the host.
struct Reboot;

impl RecoveryStrategy for Reboot {
    fn name(&self) -> Name {
        Name::new("sim.reboot")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        mendable(incident, view)?;
        meet_by_themselves(view)?;
        let lost = incident.lost_ranks(view);
        let host = |r: &Rank| view.proc(&Role::Rank(*r)).and_then(|p| p.node.clone());
        let hosts: BTreeSet<NodeId> = lost.iter().filter_map(host).collect();
        let [host_lost] = hosts.iter().collect::<Vec<_>>()[..] else {
            return Err(format!("{} hosts are affected, not one", hosts.len()).into());
        };
        let there: BTreeSet<Rank> =
            view.world.members().keys().filter(|r| host(r).as_ref() == Some(host_lost)).copied().collect();
        let world = with_new(view, &there, Counted::Yes);
        Ok(Proposal::new(
            replacing(view, &there, world),
            vec![Domain::Node(host_lost.clone())],
            cost(4),
            Counted::Yes,
            format!("{host_lost} is restarted"),
        ))
    }
}

/// Probes what it would replace, and changes its plan by the result.
struct Look;

impl RecoveryStrategy for Look {
    fn name(&self) -> Name {
        Name::new("sim.look")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        mendable(incident, view)?;
        meet_by_themselves(view)?;
        let lost = incident.lost_ranks(view);
        if lost.is_empty() || lost.len() > 8 {
            return Err("too few or too many lost ranks to probe".into());
        }
        let about = processes(&lost);
        let look = asking("look", self.name(), incident, PROCESS_STATE, &about, Duration::from_secs(1));
        Ok(Proposal::new(vec![look], about, cost(3), Counted::Yes, "lost ranks are probed first"))
    }

    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        let looked = run.ended_stage().is_some_and(|s| s.name == "look");
        if !looked {
            return Advance::Continue;
        }
        let seen = run.done.iter().flatten().flat_map(|d| &d.results);
        let running = |r: &Result<TargetReply, Failure>| matches!(r, Ok(TargetReply::ProbeResult(ProbeResult::Text(state))) if state.starts_with("state=S"));
        let mut lost = BTreeSet::new();
        for (about, result) in seen {
            let Domain::Process(Role::Rank(rank)) = about else { continue };
            if running(result) {
                return Advance::Fail(format!("{rank} still runs"));
            }
            lost.insert(*rank);
        }
        let world = with_new(view, &lost, Counted::Yes);
        Advance::ReplaceRest(replacing(view, &lost, world))
    }
}

/// Promises much and never helps.
struct Hopeless {
    gives_up: bool,
}

impl RecoveryStrategy for Hopeless {
    fn name(&self) -> Name {
        Name::new("sim.hopeless")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        mendable(incident, view)?;
        let lost = incident.lost_ranks(view);
        let about = processes(lost.iter().take(2));
        let what = if self.gives_up { PROCESS_STATE } else { Name::new("nobody-knows") };
        let hope = asking("hope", self.name(), incident, what, &about, Duration::from_millis(300));
        Ok(Proposal::new(vec![hope], about, cost(1), Counted::No, "it may pass"))
    }

    fn advance(&self, _run: &PlanExecution, _view: &View) -> Advance {
        Advance::Fail("it did not pass".into())
    }
}

/// Panics at one incident in three.
struct Jumpy;

impl RecoveryStrategy for Jumpy {
    fn name(&self) -> Name {
        Name::new("sim.jumpy")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        if incident.id.0 % 3 == 1 && view.alive().any(|_| true) {
            std::panic::resume_unwind(Box::new("jumpy")); // a panic that prints nothing: there are thousands
        }
        Err("no fault that this strategy handles".into())
    }
}

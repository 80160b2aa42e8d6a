//! Strategies that reach what a whole restart does not: survivors that live on, narrow domains, failures, second thoughts.

use super::super::dice::Dice;
use super::REPLACE;
use crate::detect::Sound;
use crate::job::{Counted, Domain, Name, NodeId, Rank, Role, World};
use crate::kernel::View;
use crate::launch::{Place, StartBatch, StartOrder};
use crate::recover::{Action, Cost, Failure, Incident, Next, Output, Proposal, RecoveryStrategy, Run, Stage};
use crate::trace::{Ask, Exhibit, PROCESS_STATE};
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

/// The others of a program with a step loop do not meet by themselves.
fn meet_by_themselves(view: &View) -> Result<(), String> {
    match view.spec.worker.argv.iter().any(|argument| argument == super::super::step_loop::ARGUMENT) {
        true => Err("survivors join only when they are told to, and this tells nobody anything".into()),
        false => Ok(()),
    }
}

fn cost(downtime_s: u64) -> Cost {
    Cost { ends_job: false, lost_work: Duration::ZERO, downtime: Duration::from_secs(downtime_s), nodes_removed: 0 }
}

fn processes<'a>(ranks: impl IntoIterator<Item = &'a Rank>) -> Vec<Domain> {
    ranks.into_iter().map(|rank| Domain::Process(Role::Rank(*rank))).collect()
}

/// One stage of asking: what is so about these.
fn asking(name: &'static str, by: Name, incident: &Incident, what: Name, about: &[Domain], within: Duration) -> Stage {
    let ask = Ask { by, tag: incident.id.0, what, about: about.to_vec(), within };
    Stage::new(name, within, vec![Action::Collect(ask)])
}

/// Whether another process of the same program can help at all, there or where a host has to be left for nobody.
fn mendable(incident: &Incident, view: &View) -> Result<(), String> {
    if let Some(service) = view.missing_services().next() {
        return Err(format!("service {service} is missing, and this starts ranks only"));
    }
    if incident.faults.iter().any(|f| f.prime().damage.program == Sound::No) {
        return Err("the program itself fails".into());
    }
    match incident.broken_hosts().first() {
        Some(host) => Err(format!("{host} is broken, and this knows no way to leave a host")),
        None => Ok(()),
    }
}

/// The world in which these ranks have new processes, on hosts that can be used, and the others live on.
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

/// Stops what is left of these ranks, then starts them anew in a world of their own.
fn replacing(view: &View, ranks: &BTreeSet<Rank>, world: Arc<World>) -> Vec<Stage> {
    let policy = &view.spec.policy;
    let old = view.alive().filter(|p| p.role.rank().is_some_and(|r| ranks.contains(&r))).collect();
    let stop = Action::Stop { procs: old, grace: policy.stop_grace, exact: true };
    let orders = ranks.iter().filter_map(|r| {
        let place = world.members().get(r)?.node.clone().map_or(Place::anywhere(), Place::On);
        Some(StartOrder { proc: world.proc(*r)?, place, spec: Arc::clone(&view.spec.worker) })
    });
    let batch = StartBatch { world: Arc::clone(&world), orders: orders.collect() };
    let start = Action::Start { batch, until: policy.ready };
    vec![
        Stage::new("stop", policy.stop_grace + Duration::from_secs(30), vec![stop]),
        Stage::new("start", policy.start_within, vec![Action::Enter(world), start]),
    ]
}

/// Replaces lost ranks only; the others live on in the new world. Touches nothing but the lost processes.
struct Replace;

impl RecoveryStrategy for Replace {
    fn name(&self) -> Name {
        REPLACE
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        mendable(incident, view)?;
        meet_by_themselves(view)?;
        let lost = incident.lost(view);
        if lost.is_empty() || lost.len() * 2 > view.world.members().len() {
            return Err(format!("{} of {} ranks are lost", lost.len(), view.world.size()));
        }
        let world = with_new(view, &lost, Counted::Yes);
        Ok(Proposal {
            stages: replacing(view, &lost, world),
            touches: processes(&lost),
            cost: cost(5),
            counted: Counted::Yes,
            reason: format!("{} ranks are replaced, the others live on", lost.len()),
        })
    }
}

/// Starts all ranks of one host anew, there or elsewhere. Touches the host.
struct Reboot;

impl RecoveryStrategy for Reboot {
    fn name(&self) -> Name {
        Name::new("sim.reboot")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        mendable(incident, view)?;
        meet_by_themselves(view)?;
        let lost = incident.lost(view);
        let host = |r: &Rank| view.proc(&Role::Rank(*r)).and_then(|p| p.node.clone());
        let hosts: BTreeSet<NodeId> = lost.iter().filter_map(host).collect();
        let [host_lost] = hosts.iter().collect::<Vec<_>>()[..] else {
            return Err(format!("{} hosts are concerned, not one", hosts.len()));
        };
        let there: BTreeSet<Rank> =
            view.world.members().keys().filter(|r| host(r).as_ref() == Some(host_lost)).copied().collect();
        let world = with_new(view, &there, Counted::Yes);
        Ok(Proposal {
            stages: replacing(view, &there, world),
            touches: vec![Domain::Node(host_lost.clone())],
            cost: cost(4),
            counted: Counted::Yes,
            reason: format!("{host_lost} is started anew"),
        })
    }
}

/// Looks at what it would replace before it does, and changes its plan by what it sees.
struct Look;

impl RecoveryStrategy for Look {
    fn name(&self) -> Name {
        Name::new("sim.look")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        mendable(incident, view)?;
        meet_by_themselves(view)?;
        let lost = incident.lost(view);
        if lost.is_empty() || lost.len() > 8 {
            return Err("too few or too many to look at".into());
        }
        let about = processes(&lost);
        let look = asking("look", self.name(), incident, PROCESS_STATE, &about, Duration::from_secs(1));
        Ok(Proposal {
            stages: vec![look],
            touches: about,
            cost: cost(3),
            counted: Counted::Yes,
            reason: "what is lost is looked at first".into(),
        })
    }

    fn advance(&self, run: &Run, view: &View) -> Next {
        let looked = run.ended_stage().is_some_and(|s| s.name == "look");
        if !looked {
            return Next::AsProposed;
        }
        let seen = run.done.iter().flatten().flat_map(|d| &d.results);
        let running = |r: &Result<Output, Failure>| matches!(r, Ok(Output::Exhibit(Exhibit::Text(state))) if state.starts_with("state=S"));
        let mut lost = BTreeSet::new();
        for (about, result) in seen {
            let Domain::Process(Role::Rank(rank)) = about else { continue };
            if running(result) {
                return Next::GiveUp(format!("{rank} runs after all"));
            }
            lost.insert(*rank);
        }
        let world = with_new(view, &lost, Counted::Yes);
        Next::Instead(replacing(view, &lost, world))
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

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        mendable(incident, view)?;
        let lost = incident.lost(view);
        let about = processes(lost.iter().take(2));
        let what = if self.gives_up { PROCESS_STATE } else { Name::new("nobody-knows") };
        let hope = asking("hope", self.name(), incident, what, &about, Duration::from_millis(300));
        Ok(Proposal {
            stages: vec![hope],
            touches: about,
            cost: cost(1),
            counted: Counted::No,
            reason: "it may pass".into(),
        })
    }

    fn advance(&self, _run: &Run, _view: &View) -> Next {
        Next::GiveUp("it did not pass".into())
    }
}

/// Panics over one incident in three.
struct Jumpy;

impl RecoveryStrategy for Jumpy {
    fn name(&self) -> Name {
        Name::new("sim.jumpy")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        if incident.id.0 % 3 == 1 && view.alive().any(|_| true) {
            std::panic::resume_unwind(Box::new("jumpy")); // a panic that prints nothing: there are thousands
        }
        Err("nothing to be afraid of".into())
    }
}

//! Incidents to test a strategy with, each with the state of the job.

use crate::detect::{Damage, Evidence, Fault, FaultClass, Health, Suspect};
use crate::job::{
    Domain, ErrorReport, Exit, GroupId, GroupKind, Incarnation, IncidentId, JobSpec, JobTime, Name, NodeId, Rank, Role,
    Termination,
};
use crate::launch::{ControlLink, LoopPosition, NodeState, Phase};
use crate::recover::{Action, Incident, Proposal};
use crate::state::{Proc, Replicas, View};
use crate::testing::Timeline;
use crate::trace::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// One incident, and the state of the job.
pub(super) struct Scene {
    pub(super) title: String,
    pub(super) incident: Incident,
    pub(super) view: View,
}

const SOUND: Damage =
    Damage { process: Health::Healthy, state: Health::Healthy, device: Health::Healthy, program: Health::Healthy };
const FROZEN: Damage = Damage { process: Health::Faulty, state: Health::Unknown, ..SOUND };
const FAILED_STEP: Damage =
    Damage { state: Health::Unknown, device: Health::Unknown, program: Health::Unknown, ..SOUND };
const BROKEN_DEVICE: Damage = Damage { device: Health::Faulty, ..SOUND };

/// Returns common incidents.
pub(super) fn usual() -> Vec<Scene> {
    let exit = |rank| fault(process(rank), FaultClass::Exit, Damage::PROCESS_GONE);
    let dead = |timeline: Timeline, rank: u32| timeline.rank(rank, Signal::Phase(Phase::Dead(Termination::Unknown)));
    let host = NodeId(Name::new("host-1"));
    let store = Role::Service(Name::new("store"));
    let node = |timeline: Timeline, state| {
        timeline.edit(|v| {
            v.nodes.values_mut().for_each(|n| {
                if n.node.0 == "host-1" {
                    n.state = state
                }
            })
        })
    };
    let node_lost = fault(Domain::Node(host.clone()), FaultClass::NodeLost, Damage::PROCESS_GONE);
    let slow = |domain| fault(domain, FaultClass::Slow, SOUND);
    let victim = Suspect::victim(Domain::Job, FaultClass::Stall, Damage::default());
    let race = exit(1).with_error(Some(Box::new(error().with_retry_free(true))));
    vec![
        scene("a rank has exited", exited(job(), 1), vec![exit(1).with_error(Some(error().into()))]),
        scene("a rank is dead and has not exited yet", dead(job(), 2), vec![exit(2)]),
        scene("a rank is dead, and the others take directives", dead(linked(job()), 2), vec![exit(2)]),
        scene(
            "a rank is frozen, and the others take directives",
            linked(job()),
            vec![fault(process(3), FaultClass::Silence, FROZEN)],
        ),
        scene(
            "a step has failed, and all ranks take directives",
            linked(job()),
            vec![fault(process(3), FaultClass::Network, FAILED_STEP)],
        ),
        scene("two ranks have exited", exited(exited(job(), 1), 6), vec![exit(1), exit(6)]),
        scene("every rank has exited", (0..8).fold(job(), exited), (0..8).map(exit).collect()),
        scene("the only rank has exited", exited(Timeline::of_ranks(1), 0), vec![exit(0)]),
        scene("a rank is frozen", job(), vec![fault(process(3), FaultClass::Silence, FROZEN)]),
        scene("a host is out of sight", node(job(), NodeState::OutOfSight), vec![node_lost.clone()]),
        scene("a host has left", node((4..8).fold(job(), exited), NodeState::Left), vec![node_lost]),
        scene("no host takes anything new", nowhere(exited(job(), 1)), vec![exit(1)]),
        scene("a device is broken", job(), vec![fault(Domain::Device(host, 2), FaultClass::Device, BROKEN_DEVICE)]),
        scene("the job stalls without a culprit", job(), vec![Fault::new(by(), JobTime::START, victim)]),
        scene(
            "the program is broken",
            exited(job(), 0),
            vec![fault(Domain::Job, FaultClass::Program, Damage::PROGRAM_BROKEN)],
        ),
        scene("a race at start-up was lost", exited(job(), 1), vec![race]),
        scene("a rank is slow", job(), vec![slow(process(5))]),
        scene("a group is slow", job(), vec![slow(Domain::Group(GroupId { kind: GroupKind::Dp, index: 0 }))]),
        scene(
            "a service is lost",
            with_service(job(), &store),
            vec![fault(Domain::Process(store), FaultClass::Exit, Damage::PROCESS_GONE)],
        ),
        scene("a rank died whose replacement starts", exited(job(), 1).replace(1, Duration::ZERO), vec![exit(1)]),
        scene(
            "a replacement has died",
            exited(job().replace(1, Duration::ZERO), 1),
            vec![exit(1).with_incarnation(Some(Incarnation(2)))],
        ),
        scene("an unknown rank has exited", job(), vec![exit(77)]),
        scene("a plugin has failed", job(), vec![fault(Domain::Plugin(by()), FaultClass::Plugin, Damage::default())]),
        tried(scene("it was tried and has failed", exited(job(), 1), vec![exit(1)])),
    ]
}

/// Returns a rare incident. The same seed gives the same incident.
pub(super) fn random(seed: u64) -> Scene {
    let mut rng = StdRng::seed_from_u64(seed);
    let timeline = Timeline::random(seed);
    let timeline = if seed.is_multiple_of(2) { linked(timeline) } else { timeline };
    let faults = (0..rng.random_range(1..4)).map(|_| any_fault(&mut rng)).collect();
    scene(&format!("random incident {seed}"), timeline, faults)
}

/// Returns the same incident with faults of another class.
pub(super) fn reclassed(incident: &Incident) -> Incident {
    let class = |suspect: &Suspect| suspect.clone().with_class(FaultClass::Other(Name::new("conformance")));
    let fault = |fault: &Fault| {
        let new = Fault::new(fault.by.clone(), fault.onset, class(fault.primary_suspect()))
            .with_incarnation(fault.incarnation());
        let mut new = fault.suspects().iter().skip(1).fold(new, |new, suspect| new.with_suspect(class(suspect)));
        (new.evidence, new.error, new.advice) = (fault.evidence.clone(), fault.error.clone(), fault.advice.clone());
        new
    };
    let mut new = incident.clone();
    new.faults = incident.faults.iter().map(fault).collect();
    new
}

/// Returns a proposal as text, without its reasons.
pub(super) fn outline(proposal: &Proposal) -> String {
    let mut proposal = proposal.clone();
    proposal.reason.clear();
    for stage in &mut proposal.stages {
        for action in &mut stage.actions {
            if let Action::Finish { reason, .. } = action {
                reason.clear();
            }
        }
    }
    format!("{proposal:?}")
}

/// Returns the timeline of a job of eight ranks on two hosts that have trained for a second.
fn job() -> Timeline {
    Timeline::of_ranks(8).steady(Duration::from_secs(1))
}

fn exited(timeline: Timeline, rank: u32) -> Timeline {
    timeline.rank(rank, Signal::Phase(Phase::Exited(Box::new(Exit::new(Termination::Code(1))))))
}

/// Gives every running rank a control link and a position in its step loop, and the job a directory for checkpoints.
fn linked(timeline: Timeline) -> Timeline {
    timeline.edit(|view| {
        let mut spec = JobSpec::clone(&view.spec);
        spec.policy.checkpoint_dir = Some("/checkpoints".into());
        view.spec = Arc::new(spec);
        let can = ["abort", "join", "sync-state", "resume", "write-shard", "write-manifest"].map(Name::new).into();
        let (generation, framework) = (view.world.generation(), Name::new("conformance"));
        let link =
            ControlLink::new(generation, framework, LoopPosition::InLoop).with_capabilities(can).with_state_bytes(64);
        view.replicas = Replicas::proven(view.world.members().keys().copied());
        let runs = |proc: &&mut Proc| proc.phase == Phase::Running;
        view.procs.values_mut().filter(runs).for_each(|proc| proc.link = Some(link.clone()));
    })
}

fn nowhere(timeline: Timeline) -> Timeline {
    timeline.edit(|view| view.nodes.values_mut().for_each(|n| n.state = NodeState::Cordoned))
}

fn with_service(timeline: Timeline, role: &Role) -> Timeline {
    timeline.edit(|view| {
        let gone = Phase::Exited(Box::new(Exit::new(Termination::Code(1))));
        let mut proc = Proc::ordered(Incarnation(1), view.world.generation(), JobTime::START);
        (proc.node, proc.pid, proc.phase) = (view.nodes.keys().next().cloned(), Some(999), gone);
        view.procs.insert(role.clone(), proc);
    })
}

fn scene(title: &str, timeline: Timeline, faults: Vec<Fault>) -> Scene {
    let mut view = timeline.wait(Duration::from_millis(20)).view().clone();
    Arc::make_mut(&mut view.spec).policy.min_ranks = 1; // for strategies that shrink the world
    let of = |fault: Fault| {
        let known = view.proc_of(&fault.primary_suspect().domain).map(|p| p.incarnation); // as the kernel adds it
        let of = fault.incarnation().or(known);
        fault.with_incarnation(of)
    };
    let faults = faults.into_iter().map(of).collect();
    let incident = Incident::new(IncidentId(1), view.now, faults);
    Scene { title: title.to_owned(), incident, view }
}

fn tried(mut scene: Scene) -> Scene {
    scene.incident.attempts = vec![(by(), "it did not help".into()); 3];
    scene
}

fn by() -> Name {
    Name::new("conformance")
}

fn process(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

fn fault(domain: Domain, class: FaultClass, damage: Damage) -> Fault {
    let clue = Evidence::figure("figure", 2.0, 1.0, "twice as much as usual");
    Fault::new(by(), JobTime::START + Duration::from_secs(1), Suspect::certain(domain, class, damage))
        .with_evidence(clue)
}

fn error() -> ErrorReport {
    ErrorReport::new("python", "ValueError", "no such value").with_step(5)
}

fn any_fault(rng: &mut StdRng) -> Fault {
    let mut sound = || [Health::Healthy, Health::Faulty, Health::Unknown][rng.random_range(0..3)];
    let damage = Damage { process: sound(), state: sound(), device: sound(), program: sound() };
    let rank = rng.random_range(0..10);
    let node = NodeId(Name::from(format!("host-{}", rng.random_range(0..3))));
    let domain = match rng.random_range(0..8) {
        0 => Domain::Job,
        1 => Domain::Node(node),
        2 => Domain::Device(node, rng.random_range(0..5)),
        3 => Domain::Process(Role::Service(Name::new("store"))),
        4 => Domain::Group(GroupId { kind: GroupKind::Tp, index: 0 }),
        _ => process(rank),
    };
    let classes = [FaultClass::Exit, FaultClass::Silence, FaultClass::Stall, FaultClass::Slow, FaultClass::Leave];
    let class = classes[rng.random_range(0..classes.len())].clone();
    let found = fault(domain, class.clone(), damage);
    if rng.random_bool(0.3) {
        found.with_suspect(Suspect::victim(process(rank), class, Damage::default()))
    } else {
        found
    }
}

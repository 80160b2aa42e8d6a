use super::*;
use crate::detect::fixture::{KILLED, Scene, exception, follow_up, lost_race, node, rank_domain};
use crate::detect::{Damage, Fault, FaultClass, Suspect};
use crate::job::{ErrorReport, Incarnation, IncidentId, JobTime, Ready};
use crate::recover::CommandOutcome;
use crate::state::{NodeState, Phase, Place};

const TWO_HOSTS: &[(&str, u32)] = &[("a", 4), ("b", 4)];

fn incident(faults: Vec<Fault>) -> Incident {
    Incident { id: IncidentId(1), opened: JobTime::START, faults, attempts: Vec::new() }
}

fn lost(rank: u32) -> Fault {
    let suspect = Suspect::certain(rank_domain(rank), FaultClass::Exit, Damage::PROCESS_GONE);
    Fault::new(Name::new("exit"), JobTime::START, suspect).with_incarnation(Some(Incarnation(1)))
}

fn reported(rank: u32, error: ErrorReport) -> Fault {
    let (domain, class) = (rank_domain(rank), FaultClass::Exit);
    let confidence_permille = if error.follow_up { 100 } else { 900 };
    let suspect = Suspect { domain, class, damage: Damage::PROCESS_GONE, confidence_permille };
    Fault::new(Name::new("exit"), JobTime::START, suspect)
        .with_incarnation(Some(Incarnation(1)))
        .with_error(Some(Box::new(error)))
}

fn propose(scene: &Scene, faults: Vec<Fault>) -> Result<Proposal, RefusalError> {
    Restart::new().propose(&incident(faults), &scene.view)
}

fn world_of(stage: &Stage) -> &World {
    entered(stage).expect("it enters a world")
}

fn hosts(world: &World) -> Vec<&str> {
    world.members().values().map(|m| m.node.as_ref().map_or("-", |n| n.0.as_str())).collect()
}

/// Returns the result of `advance` after the stop.
fn after_stop(scene: &Scene, proposal: Proposal) -> Advance {
    let run = PlanExecution {
        strategy: NAME,
        proposal,
        stage: 1,
        done: vec![Vec::<CommandOutcome>::new()],
        began: JobTime::START,
    };
    Restart::new().advance(&run, &scene.view)
}

#[test]
fn everybody_is_stopped_exactly_and_started_into_the_next_world() {
    let mut scene = Scene::of(3);
    scene.proc(1).phase = Phase::Dead(KILLED);
    let proposal = propose(&scene, vec![lost(1)]).expect("a proposal");
    let grace = scene.view.spec.policy.termination_grace_period;
    let stop = |procs: Vec<ProcId>, grace| Action::Stop { procs, grace, exact: true };
    let expected = [
        stop(vec![ProcId::rank(1, 1)], Duration::ZERO), // dead: it only has to exit
        stop(vec![ProcId::rank(0, 1), ProcId::rank(2, 1)], grace),
    ];
    assert_eq!(proposal.stages[0].actions, expected);
    assert!(proposal.stages[0].timeout > grace, "a kill at the grace's end still needs time");
    let Action::Start { batch, until } = &proposal.stages[1].actions[1] else { panic!("it starts after it enters") };
    assert_eq!((*until, batch.world.generation().0, batch.world.restarts()), (Ready::Training, 2, 1));
    let started: Vec<ProcId> = batch.starts.iter().map(|o| o.proc.clone()).collect();
    assert_eq!(started, [ProcId::rank(0, 2), ProcId::rank(1, 2), ProcId::rank(2, 2)]);
    assert!(batch.starts.iter().all(|o| o.place == Place::anywhere()), "the launcher lists no hosts");
    assert_eq!((proposal.affected_domains, proposal.counted), (vec![Domain::Job], Counted::Yes));
    assert_eq!(proposal.cost.lost_work, Duration::from_secs(600), "half of the checkpoint interval");
}

#[test]
fn restart_stops_the_running_incarnations_of_any_world() {
    let mut scene = Scene::of(2);
    scene.proc(0).incarnation = Incarnation(5); // ordered by a plan that was cancelled
    scene.proc(0).phase = Phase::Pending("ordered".into());
    scene.proc(1).phase = Phase::Exited(Box::new(crate::job::Exit::new(KILLED)));
    let proposal = propose(&scene, vec![lost(1)]).expect("a proposal");
    let [Action::Stop { procs, .. }] = &proposal.stages[0].actions[..] else { panic!("one stop") };
    assert_eq!(procs, &[ProcId::rank(0, 5)]);
    let next = world_of(&proposal.stages[1]);
    assert_eq!((next.proc(Rank(0)), next.proc(Rank(1))), (Some(ProcId::rank(0, 6)), Some(ProcId::rank(1, 2))));
}

#[test]
fn restart_is_uncounted_only_if_all_causes_are_lost_races() {
    let cases = [
        (vec![reported(0, lost_race())], Counted::No),
        (vec![reported(0, lost_race()), reported(1, follow_up())], Counted::No),
        (vec![reported(0, lost_race()), lost(1)], Counted::Yes),
        (vec![reported(0, exception("bad"))], Counted::Yes),
        (vec![reported(1, follow_up())], Counted::Yes),
    ];
    for (faults, counted) in cases {
        let proposal = propose(&Scene::of(2), faults.clone()).expect("a proposal");
        assert_eq!(proposal.counted, counted, "{faults:?}");
        let restarts = u32::from(counted == Counted::Yes);
        assert_eq!(world_of(&proposal.stages[1]).restarts(), restarts, "{faults:?}");
    }
}

#[test]
fn restart_refuses_faults_that_it_cannot_repair() {
    let broken = Suspect::certain(Domain::Job, FaultClass::Program, Damage::PROGRAM_BROKEN);
    let broken = Fault::new(Name::new("program-error"), JobTime::START, broken);
    let why = propose(&Scene::of(2), vec![lost(1), broken]).expect_err("the program is broken").reason;
    assert_eq!(why, "program-error found the program broken: it would fail again");

    let store = Domain::Process(Role::Service("store".into()));
    let store = Suspect::certain(store, FaultClass::Exit, Damage::PROCESS_GONE);
    let why =
        propose(&Scene::of(2), vec![Fault::new(NAME, JobTime::START, store)]).expect_err("a service is lost").reason;
    assert_eq!(why, "service store is lost, and the job has no specification to start it");

    let mut scene = Scene::on(4, TWO_HOSTS);
    scene.set_node("a", NodeState::Left);
    scene.set_node("b", NodeState::Cordoned);
    assert!(propose(&scene, vec![lost(0)]).expect_err("no host is left").reason.contains("no other host has room"));
}

#[test]
fn a_host_is_exchanged_after_an_exception_but_not_after_a_kill() {
    let scene = Scene::on(4, TWO_HOSTS);
    let places = |fault| hosts(world_of(&propose(&scene, vec![fault]).expect("a proposal").stages[1])).join(" ");
    assert_eq!(places(lost(0)), "a a b b");
    assert_eq!(places(reported(0, follow_up())), "a a b b");
    assert_eq!(places(reported(0, lost_race())), "a a b b");
    assert_eq!(places(reported(0, exception("bad"))), "b b a a");
    let proposal = propose(&scene, vec![reported(0, exception("bad"))]).expect("a proposal");
    assert_eq!(
        proposal.reason,
        "all 4 ranks restart from the last checkpoint, if there is one, 4 of them in another place"
    );
}

#[test]
fn a_suspected_rank_that_has_to_move_anyway_moves_once() {
    let mut scene = Scene::on(4, &[("a", 4), ("b", 4), ("c", 4)]);
    scene.set_node("a", NodeState::Left);
    let proposal = propose(&scene, vec![reported(0, exception("bad"))]).expect("a proposal");
    assert_eq!(hosts(world_of(&proposal.stages[1])), ["c", "c", "b", "b"]);
}

#[test]
fn the_start_stays_as_proposed_when_nothing_has_changed() {
    let scene = Scene::on(4, TWO_HOSTS);
    let proposal = propose(&scene, vec![reported(0, exception("bad"))]).expect("a proposal");
    assert_eq!(after_stop(&scene, proposal.clone()), Advance::Continue);
    let run = PlanExecution { strategy: NAME, proposal, stage: 2, done: Vec::new(), began: JobTime::START };
    assert_eq!(Restart::new().advance(&run, &scene.view), Advance::Continue, "after the start");
}

#[test]
fn the_world_is_built_again_when_it_changed_during_the_stop() {
    let mut scene = Scene::on(4, &[("a", 4), ("b", 4), ("c", 4)]);
    let proposal = propose(&scene, vec![reported(0, exception("bad"))]).expect("a proposal");
    assert_eq!(hosts(world_of(&proposal.stages[1])), ["c", "c", "b", "b"]);
    scene.proc(1).incarnation = Incarnation(7); // discovered meanwhile
    scene.set_node("b", NodeState::Left);
    let Advance::ReplaceRest(rest) = after_stop(&scene, proposal.clone()) else {
        panic!("the proposal is out of date")
    };
    let [start] = &rest[..] else { panic!("one stage is left") };
    let world = world_of(start);
    assert_eq!(hosts(world), ["c", "c", "a", "a"], "the exchange stands");
    assert_eq!(world.proc(Rank(1)), Some(ProcId::rank(1, 8)), "no incarnation runs twice");
    assert_eq!((world.generation().0, world.restarts()), (2, 1));
    scene.set_node("a", NodeState::Left);
    scene.set_node("c", NodeState::Left);
    let Advance::Fail(why) = after_stop(&scene, proposal) else { panic!("there is no host") };
    assert!(why.contains("no other host has room"), "{why}");
}

#[test]
fn a_rank_without_a_host_of_its_own_goes_back_to_where_it_was_seen() {
    let mut scene = Scene::on(2, &[("a", 4)]);
    let world = scene.view.world.successor(Counted::No, |members| members.values_mut().for_each(|m| m.node = None));
    scene.enter(Arc::new(world));
    scene.proc(1).node = Some(node("a"));
    let proposal = propose(&scene, vec![lost(1)]).expect("a proposal");
    assert_eq!(hosts(world_of(&proposal.stages[1])), ["-", "a"]);
}

#[test]
fn a_stopped_rank_restarts_although_blamed_ranks_still_train() {
    let mut scene = Scene::of(2);
    let damage = Damage { process: Health::Healthy, state: Health::Healthy, ..Damage::default() };
    let slow = Suspect::certain(rank_domain(1), FaultClass::Slow, damage);
    let slow = Fault::new(Name::new("slow-rank"), JobTime::START, slow).with_incarnation(Some(Incarnation(1)));
    assert!(propose(&scene, vec![slow.clone()]).is_err_and(|why| why.reason.contains("still train")));
    let failed =
        Suspect::victim(rank_domain(0), FaultClass::Network, Damage { process: Health::Healthy, ..Damage::default() });
    let failed = Fault::new(Name::new("failed-step"), JobTime::START, failed).with_incarnation(Some(Incarnation(1)));
    assert!(propose(&scene, vec![slow.clone(), failed]).is_ok(), "others wait, and nobody trains");
    scene.proc(0).wanted = false; // a recovery had begun, and was aborted
    assert!(propose(&scene, vec![slow]).is_ok());
}

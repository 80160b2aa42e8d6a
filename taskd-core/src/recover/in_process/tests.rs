use super::*;
use crate::detect::fixture::{KILLED, Scene, exception, node, rank_domain};
use crate::detect::{Damage, Fault, FaultClass, Sound, Suspect};
use crate::job::{
    Counted, Generation, GroupId, GroupKind, Incarnation, IncidentId, JobSpec, JobTime, NodeId, Ready, WorkerSpec,
};
use crate::kernel::Replicas;
use crate::launch::{Answered, JOIN_VARIABLE, Linked, NodeState, Phase, StartBatch, Window};
use crate::recover::{Failure, Incident, Output, Proposal, RecoveryStrategy, Restart};
use crate::testing::conformance;

/// All of its ranks train, and can be told what to do.
pub(super) fn linked(mut scene: Scene) -> Scene {
    Arc::make_mut(&mut scene.view.spec).policy.ranks_min = 1;
    for rank in scene.view.world.members().keys().map(|rank| rank.0).collect::<Vec<_>>() {
        scene.proc(rank).link = Some(link(Point::Loop));
    }
    scene.view.replicas = Replicas::proven(scene.view.world.members().keys().copied());
    scene
}

pub(super) fn link(at: Point) -> Linked {
    let can = NEEDED.into_iter().chain(["dump", "seal"].map(Name::new)).collect();
    Linked {
        generation: Generation(1),
        framework: Name::new("torch"),
        can,
        at,
        state_bytes: None,
        cannot: None,
        sharded: Vec::new(),
        digest: None,
    }
}

pub(super) fn incident(faults: Vec<Fault>) -> Incident {
    Incident { id: IncidentId(1), opened: JobTime::START, faults, attempts: Vec::new() }
}

pub(super) fn killed(scene: &mut Scene, rank: u32) -> Fault {
    scene.proc(rank).phase = Phase::Dead(KILLED);
    scene.proc(rank).link = None;
    frozen(rank)
}

/// Blamed with its process, which may still run.
pub(super) fn frozen(rank: u32) -> Fault {
    let suspect = Suspect::certain(rank_domain(rank), FaultClass::Exit, Damage::PROCESS_GONE);
    Fault::new(Name::new("exit"), JobTime::START, suspect).of(Some(Incarnation(1)))
}

pub(super) fn survived(rank: u32) -> Fault {
    let damage = Damage { process: Sound::Yes, ..Damage::default() };
    let suspect = Suspect::victim(rank_domain(rank), FaultClass::Network, damage);
    Fault::new(Name::new("failed-step"), JobTime::START, suspect).of(Some(Incarnation(1)))
}

pub(super) fn directives(stage: &Stage) -> Vec<(ProcId, &Directive)> {
    let orders = stage.actions.iter().filter_map(|action| match action {
        Action::Direct(batch) => Some(&batch.orders),
        _ => None,
    });
    orders.flatten().map(|(proc, directive)| (proc.clone(), directive)).collect()
}

fn started(stage: &Stage) -> Option<&StartBatch> {
    stage.actions.iter().find_map(|action| match action {
        Action::Start { batch, until: Ready::Parked } => Some(batch),
        _ => None,
    })
}

pub(super) fn names(proposal: &Proposal) -> Vec<&str> {
    proposal.stages.iter().map(|stage| stage.name.as_str()).collect()
}

#[test]
fn survivors_give_up_while_the_dead_one_is_started_to_join_them() {
    let mut scene = linked(Scene::of(3));
    let faults = vec![killed(&mut scene, 1)];
    let proposal = Recover::in_place().propose(&incident(faults), &scene.view).expect("a proposal");
    assert_eq!(names(&proposal), ["give-up", "join"]);
    let first = &proposal.stages[0];
    let told: Vec<_> = directives(first).into_iter().map(|(proc, what)| (proc, what.name())).collect();
    assert_eq!(told, [(ProcId::rank(0, 1), "give-up"), (ProcId::rank(2, 1), "give-up")]);
    let batch = started(first).expect("the newcomer starts at once: nobody is in its way");
    assert_eq!(batch.orders.iter().map(|o| o.proc.clone()).collect::<Vec<_>>(), [ProcId::rank(1, 2)]);
    assert_eq!(batch.orders[0].spec.env.get(JOIN_VARIABLE).map(String::as_str), Some("2"));
    assert!(!first.actions.iter().any(|a| matches!(a, Action::Stop { .. })));
    assert_eq!(proposal.cost.lost_work, Duration::ZERO);
    let join = directives(&proposal.stages[1]);
    assert_eq!(join.len(), 3);
    let Directive::Join { rank, size, members, store: None, .. } = join[1].1 else { panic!("{join:?}") };
    assert_eq!((*rank, *size, members.len(), &join[1].0), (Rank(1), 3, 3, &ProcId::rank(1, 2)));
}

#[test]
fn what_may_still_run_is_stopped_before_another_is_started_in_its_place() {
    let scene = linked(Scene::of(3));
    let proposal = Recover::in_place().propose(&incident(vec![frozen(2)]), &scene.view).expect("a proposal");
    assert_eq!(names(&proposal), ["give-up", "start", "join"]);
    let stops = |a: &Action| matches!(a, Action::Stop { procs, exact: false, .. } if *procs == [ProcId::rank(2, 1)]);
    assert!(proposal.stages[0].actions.iter().any(stops));
    assert!(started(&proposal.stages[0]).is_none() && started(&proposal.stages[1]).is_some());
}

#[test]
fn a_newcomer_of_a_recovery_that_a_new_fault_ends_is_started_again_with_who_is_lost_now() {
    let mut scene = linked(Scene::of(4));
    let first = killed(&mut scene, 1);
    let world = scene.view.world.successor(Counted::Yes, |members| {
        members.get_mut(&Rank(1)).expect("a member").incarnation = Incarnation(2);
    });
    scene.view.world = Arc::new(world);
    let faults = vec![first, killed(&mut scene, 2)];
    let proposal = Recover::in_place().propose(&incident(faults), &scene.view).expect("a proposal");
    let batch = proposal.stages.iter().find_map(started).expect("somebody is started");
    assert_eq!(batch.orders.iter().map(|o| o.proc.role.rank()).collect::<Vec<_>>(), [Some(Rank(1)), Some(Rank(2))]);
}

#[test]
fn elsewhere_means_on_another_host_and_in_place_on_the_same() {
    const TWO: &[(&str, u32)] = &[("a", 4), ("b", 4)];
    let mut scene = linked(Scene::on(4, TWO));
    let faults = vec![killed(&mut scene, 1)];
    let host = |strategy: Recover, scene: &Scene| {
        let proposal = strategy.propose(&incident(faults.clone()), &scene.view)?;
        let world = proposal.stages[0].actions.iter().find_map(|action| match action {
            Action::Enter(world) => Some(Arc::clone(world)),
            _ => None,
        });
        Ok::<NodeId, String>(world.and_then(|w| w.members()[&Rank(1)].node.clone()).expect("a host"))
    };
    assert_eq!(host(Recover::in_place(), &scene), Ok(node("a")));
    assert_eq!(host(Recover::elsewhere(), &scene), Ok(node("b")));
    scene.set_node("a", NodeState::Cordoned);
    assert_eq!(host(Recover::in_place(), &scene), Err("node a takes nothing new".into()));
    scene.set_node("b", NodeState::Left);
    assert!(host(Recover::elsewhere(), &scene).is_err_and(|why| why.contains("no other host has room")));
}

#[test]
fn each_refusal_says_why() {
    let refusal = |strategy: &dyn RecoveryStrategy, scene: &Scene, faults: Vec<Fault>| {
        strategy.propose(&incident(faults), &scene.view).map(drop).expect_err("a refusal")
    };
    let (recover, retry) = (Recover::in_place(), Retry::new());
    let whole = linked(Scene::of(3));
    assert_eq!(refusal(&recover, &whole, vec![survived(0)]), "no rank is lost");
    assert!(refusal(&retry, &whole, vec![frozen(1)]).contains("a rank is lost"));
    assert!(refusal(&retry, &whole, vec![]).contains("no process says"));
    let mut plain = Scene::of(3);
    let fault = killed(&mut plain, 1);
    assert!(refusal(&recover, &plain, vec![fault.clone()]).contains("rank 0 has no control link"));
    let mut early = linked(Scene::of(3));
    killed(&mut early, 1);
    early.proc(2).link = Some(link(Point::Script));
    assert!(
        refusal(&recover, &early, vec![fault.clone()])
            .contains("the program of rank 2 has not begun a step loop (taskd.steps)")
    );
    early.proc(2).link = Some(Linked { can: [Name::new("give-up")].into(), ..link(Point::Loop) });
    assert!(refusal(&recover, &early, vec![fault.clone()]).contains("no service at which ranks meet anew"));
    Arc::make_mut(&mut early.view.spec).meeting = Some(Name::new("store"));
    assert_eq!(refusal(&recover, &early, vec![fault.clone()]), "rank 2 cannot be told to join");
    early.proc(2).link = Some(Linked { cannot: Some("its state is sharded".into()), ..link(Point::Loop) });
    assert_eq!(refusal(&recover, &early, vec![fault.clone()]), "rank 2 cannot be kept: its state is sharded");
    early.proc(2).link = Some(Linked { sharded: vec!["optimizer".into()], ..link(Point::Loop) });
    for strategy in [&recover as &dyn RecoveryStrategy, &Shrink::new().before_restart()] {
        let why = refusal(strategy, &early, vec![fault.clone()]);
        assert!(why.starts_with("optimizer is sharded over the ranks"), "{}: {why}", strategy.name());
    }
    assert!(retry.propose(&incident(vec![survived(0)]), &sharded_and_whole().view).is_ok(), "nothing is lost");
    let mut all = linked(Scene::of(2));
    let faults = vec![killed(&mut all, 0), killed(&mut all, 1)];
    assert!(refusal(&recover, &all, faults).contains("no rank is left"));
    let broken = Suspect::certain(rank_domain(1), FaultClass::Program, Damage::PROGRAM_BROKEN);
    let broken = Fault::new(Name::new("program-error"), JobTime::START, broken)
        .with_error(Some(Box::new(exception("x"))))
        .of(Some(Incarnation(1)));
    assert!(refusal(&recover, &whole, vec![broken]).contains("broken"));
}

fn sharded_and_whole() -> Scene {
    let mut scene = linked(Scene::of(3));
    scene.proc(2).link = Some(Linked { sharded: vec!["optimizer".into()], ..link(Point::Loop) });
    scene
}

#[test]
fn nobody_is_kept_where_nobody_can_train() {
    let refusal = |strategy: &dyn RecoveryStrategy, scene: &Scene, faults: Vec<Fault>| {
        strategy.propose(&incident(faults), &scene.view).map(drop).expect_err("a refusal")
    };
    let mut scene = linked(Scene::of(3));
    let spec = JobSpec::clone(&scene.view.spec).with_service("scheduler", WorkerSpec::new(["serve"]));
    scene.view.spec = Arc::new(spec); // and it is not there
    assert!(refusal(&Retry::new(), &scene, vec![survived(0)]).contains("service scheduler is missing"));
    let fault = killed(&mut scene, 1);
    assert!(refusal(&Recover::in_place(), &scene, vec![fault]).contains("service scheduler is missing"));
    let mut scene = linked(Scene::on(4, &[("a", 4), ("b", 4)]));
    let damage = Damage { device: Sound::No, ..Damage::default() };
    let suspect = Suspect::certain(Domain::Node(node("a")), FaultClass::Device, damage);
    let broken = Fault::new(Name::new("health"), JobTime::START, suspect);
    let why = refusal(&Retry::new(), &scene, vec![survived(0), broken.clone()]);
    assert_eq!(why, "node a is broken, and rank 0 would stay there");
    let fault = killed(&mut scene, 0);
    assert!(refusal(&Recover::elsewhere(), &scene, vec![fault, broken]).contains("node a is broken"));
}

pub(super) fn state(step: u64, committed: Option<u64>, window: Window) -> WorkerState {
    WorkerState { step, committed, window, layout: "same".into(), buckets: vec![8, 4], bytes: 12, sharded: Vec::new() }
}

#[test]
fn a_retry_brings_everybody_to_the_newest_committed_step() {
    let scene = linked(Scene::of(3));
    let proposal = Retry::new().propose(&incident(vec![survived(0)]), &scene.view).expect("a proposal");
    assert_eq!(names(&proposal), ["give-up", "join"]);
    let states =
        [state(5, Some(4), Window::Before), state(5, Some(5), Window::Closed), state(5, Some(4), Window::Torn)];
    let Next::Instead(rest) = after_join(&Retry::new(), &scene, proposal, &states) else { panic!("it goes on") };
    let repairs = directives(&rest[0]);
    let of = |rank: usize| match repairs[rank].1 {
        Directive::Repair { step, from, to, put_back, buckets } => {
            assert_eq!((*step, buckets.as_deref()), (6, Some(&[8, 4][..])));
            (from.first().map(|p| p.rank.0), to.iter().map(|rank| rank.0).collect::<Vec<_>>(), *put_back)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(of(0), (Some(1), vec![], false));
    assert_eq!(of(1), (None, vec![0, 2], false));
    assert_eq!(of(2), (Some(1), vec![], false));
    assert!(directives(&rest[1]).iter().all(|(_, what)| matches!(what, Directive::Resume { step: 6 })));
}

#[test]
fn without_a_whole_replica_it_is_given_up() {
    let scene = linked(Scene::of(2));
    let proposal = Retry::new().propose(&incident(vec![survived(0)]), &scene.view).expect("a proposal");
    let torn = [state(5, Some(4), Window::Torn), state(5, Some(4), Window::Torn)];
    let next = after_join(&Retry::new(), &scene, proposal, &torn);
    assert!(matches!(next, Next::GiveUp(why) if why.contains("torn")));
}

/// What `advance` says when everybody has joined.
fn after_join(strategy: &dyn RecoveryStrategy, scene: &Scene, proposal: Proposal, states: &[WorkerState]) -> Next {
    after(2, strategy, scene, proposal, (0..).zip(states.iter().cloned()).collect())
}

/// What `advance` says when so many stages are over, in the first of which these have told where they stand.
pub(super) fn after(
    stages: usize,
    strategy: &dyn RecoveryStrategy,
    scene: &Scene,
    proposal: Proposal,
    states: BTreeMap<u32, WorkerState>,
) -> Next {
    let answer = |state: &WorkerState| {
        let answered = Answered { state: Some(state.clone()), ..Answered::default() };
        Ok::<Output, Failure>(Output::Answered(Box::new(answered)))
    };
    let results = states.iter().map(|(rank, state)| (rank_domain(*rank), answer(state))).collect();
    let action = proposal.stages[0].actions[1].clone();
    let mut done = vec![vec![Done { action, results }]];
    done.resize(stages, Vec::new());
    let run = Run { strategy: strategy.name(), proposal, stage: stages, done, began: JobTime::START };
    strategy.advance(&run, &scene.view)
}

/// The world that a proposal enters.
pub(super) fn entered(proposal: &Proposal) -> Arc<World> {
    let mut worlds = proposal.stages.iter().flat_map(|stage| &stage.actions).filter_map(|action| match action {
        Action::Enter(world) => Some(Arc::clone(world)),
        _ => None,
    });
    worlds.next_back().expect("a world")
}

pub(super) fn shrunk(scene: &mut Scene, rank: u32) -> Proposal {
    let faults = vec![killed(scene, rank)];
    let proposal = Shrink::new().before_restart().propose(&incident(faults), &scene.view).expect("a proposal");
    scene.view.world = entered(&proposal);
    proposal
}

pub(super) fn wish_to_grow() -> Fault {
    let damage = Damage { process: Sound::Yes, state: Sound::Yes, ..Damage::default() };
    let suspect = Suspect::certain(Domain::Job, FaultClass::Other(Name::new("shrunk")), damage);
    Fault::new(Name::new("shrunk"), JobTime::START, suspect).advising(Name::new("grow"))
}

#[test]
fn survivors_go_on_in_a_smaller_world_and_nobody_is_started() {
    let mut scene = linked(Scene::of(4));
    let proposal = shrunk(&mut scene, 1);
    assert_eq!(names(&proposal), ["give-up", "join"]);
    assert!(proposal.stages.iter().all(|stage| started(stage).is_none()));
    let world = &scene.view.world;
    assert_eq!(world.members().keys().map(|rank| rank.0).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(world.absent().keys().map(|rank| rank.0).collect::<Vec<_>>(), [1]);
    let join = directives(&proposal.stages[1]);
    let Directive::Join { rank, size, members, .. } = join[1].1 else { panic!("{join:?}") };
    assert_eq!((*rank, *size), (Rank(2), 3));
    assert_eq!(members.iter().map(|peer| peer.rank.0).collect::<Vec<_>>(), [0, 2, 3]);
    let same_size = Recover::elsewhere().cost();
    assert!(same_size < proposal.cost, "who can keep the size keeps it");
}

#[test]
fn who_was_to_come_back_when_that_was_broken_off_comes_by_another_recovery() {
    let mut scene = linked(Scene::of(4));
    shrunk(&mut scene, 1);
    let harmless =
        Suspect::victim(rank_domain(2), FaultClass::Network, Damage { process: Sound::Yes, ..Damage::default() });
    let harmless = Fault::new(Name::new("links"), JobTime::START, harmless).of(Some(Incarnation(1)));
    let incident = incident(vec![wish_to_grow(), harmless]);
    let grow = Grow::new().propose(&incident, &scene.view).expect("nobody is lost by that");
    scene.view.world = entered(&grow);
    assert!(Grow::new().propose(&incident, &scene.view).is_err_and(|why| why == "no rank is absent"));
    let again = Recover::in_place().propose(&incident, &scene.view).expect("a proposal");
    let newcomers = again.stages.iter().find_map(started).expect("somebody starts");
    assert_eq!(newcomers.orders.iter().map(|order| order.proc.role.clone()).collect::<Vec<_>>(), [Role::Rank(Rank(1))]);
    assert!(
        Restart::new().propose(&incident, &scene.view).is_ok(),
        "if that is not allowed: the job does not end over a wish"
    );
}

#[test]
fn who_has_left_comes_back_in_its_place_and_the_others_stay() {
    let mut scene = linked(Scene::of(4));
    shrunk(&mut scene, 1);
    let before = scene.view.world.restarts();
    let proposal = Grow::new().propose(&incident(vec![wish_to_grow()]), &scene.view).expect("a proposal");
    let (world, first) = (entered(&proposal), &proposal.stages[0]);
    assert_eq!((world.size(), world.absent().len(), world.restarts()), (4, 0, before));
    let batch = started(first).expect("it starts at once");
    assert_eq!(batch.orders.iter().map(|o| o.proc.clone()).collect::<Vec<_>>(), [ProcId::rank(1, 2)]);
    let told: Vec<_> = directives(first).into_iter().map(|(proc, _)| proc).collect();
    assert_eq!(told, [0, 2, 3].map(|rank| ProcId::rank(rank, 1)));
    let restart = crate::recover::Restart::new();
    let why = restart.propose(&incident(vec![wish_to_grow()]), &scene.view).expect_err("all still train");
    assert!(why.contains("still trains"), "{why}");
}

#[test]
fn who_was_to_come_back_and_did_not_leaves_again() {
    let mut scene = linked(Scene::of(4));
    for rank in 0..4 {
        scene.proc(rank).step = Some(7);
    }
    shrunk(&mut scene, 1);
    let wish = wish_to_grow();
    let proposal = Grow::new().propose(&incident(vec![wish.clone()]), &scene.view).expect("a proposal");
    scene.view.world = entered(&proposal);
    let pending = crate::kernel::Proc { incarnation: Incarnation(2), step: None, ..scene.proc(1).clone() };
    scene.view.procs.insert(Role::Rank(Rank(1)), crate::kernel::Proc { phase: Phase::Running, ..pending });
    let failed = Incident { attempts: vec![(Name::new("grow"), "it hangs".into())], ..incident(vec![wish]) };
    let again = Grow::new().propose(&failed, &scene.view);
    assert!(again.is_err_and(|why| why.contains("no rank is absent")));
    let leaves = Shrink::new().propose(&failed, &scene.view).expect("the others go on without it");
    assert_eq!(entered(&leaves).members().keys().map(|rank| rank.0).collect::<Vec<_>>(), [0, 2, 3]);
    let stops = |a: &Action| matches!(a, Action::Stop { procs, .. } if *procs == [ProcId::rank(1, 2)]);
    assert!(leaves.stages[0].actions.iter().any(stops));
    assert!(crate::recover::Restart::new().propose(&failed, &scene.view).is_ok(), "the last resort is there, too");
}

#[test]
fn nobody_grows_what_is_whole_or_unasked_or_has_lost_somebody() {
    let mut scene = linked(Scene::of(3));
    let whole = Grow::new().propose(&incident(vec![wish_to_grow()]), &scene.view);
    assert!(whole.is_err_and(|why| why.contains("no rank is absent")));
    shrunk(&mut scene, 1);
    let fault = killed(&mut scene, 2);
    let unasked = Grow::new().propose(&incident(vec![fault.clone()]), &scene.view);
    assert!(unasked.is_err_and(|why| why.contains("nobody wants")));
    let both = Grow::new().propose(&incident(vec![fault, wish_to_grow()]), &scene.view);
    assert!(both.is_err_and(|why| why.contains("rank 2 is lost")));
}

#[test]
fn all_start_again_after_a_shrunk_world_those_too_who_had_left() {
    let mut scene = linked(Scene::of(3));
    shrunk(&mut scene, 1);
    let fault = killed(&mut scene, 0);
    let restart = crate::recover::Restart::new().propose(&incident(vec![fault]), &scene.view).expect("a proposal");
    let world = entered(&restart);
    let started: Vec<_> = world.members().iter().map(|(rank, member)| (rank.0, member.incarnation.0)).collect();
    assert_eq!((started, world.absent().len()), (vec![(0, 2), (1, 2), (2, 2)], 0));
}

#[test]
fn a_lost_rank_takes_its_replica_of_the_model_along() {
    let group = |index, ranks: [u32; 2]| (GroupId { kind: GroupKind::Dp, index }, ranks.map(Rank).to_vec());
    let mut scene = linked(Scene::of(4)); // ranks 0 and 1 are one replica, 2 and 3 the other
    let world = World::clone(&scene.view.world).with_groups([group(0, [0, 2]), group(1, [1, 3])].into());
    scene.view.world = Arc::new(world);
    let proposal = shrunk(&mut scene, 3);
    assert_eq!(scene.view.world.members().keys().map(|rank| rank.0).collect::<Vec<_>>(), [0, 1]);
    let stops = |a: &Action| matches!(a, Action::Stop { procs, .. } if *procs == [ProcId::rank(2, 1)]);
    assert!(proposal.stages[0].actions.iter().any(stops), "rank 2 lives and is stopped");
    let fault = killed(&mut scene, 0);
    let why =
        Shrink::new().before_restart().propose(&incident(vec![fault]), &scene.view).expect_err("nothing whole is left");
    assert!(why.contains("no whole replica"), "{why}");
}

#[test]
fn a_world_shrinks_only_where_no_restart_could_make_it_whole() {
    const FULL: &[(&str, u32)] = &[("a", 2), ("b", 2)];
    let mut scene = linked(Scene::on(4, FULL));
    let faults = vec![killed(&mut scene, 3)];
    let why = Shrink::new().propose(&incident(faults.clone()), &scene.view).expect_err("its place is there");
    assert_eq!(why, "rank 3 can be placed again: a restart with all 4 ranks comes first");
    let tried = Incident { attempts: vec![(Name::new("restart"), "it hangs".into())], ..incident(faults.clone()) };
    assert!(Shrink::new().propose(&tried, &scene.view).is_ok(), "a restart was tried");
    scene.set_node("b", NodeState::Cordoned);
    let gone = vec![killed(&mut scene, 2), faults[0].clone()];
    assert!(Shrink::new().propose(&incident(gone), &scene.view).is_ok(), "no host has room for it");
}

#[test]
fn a_job_is_not_made_smaller_than_it_wants_to_be() {
    let mut scene = linked(Scene::of(3));
    Arc::make_mut(&mut scene.view.spec).policy.ranks_min = 2;
    let faults = vec![killed(&mut scene, 0), killed(&mut scene, 1)];
    let why = Shrink::new().before_restart().propose(&incident(faults), &scene.view).expect_err("two are wanted");
    assert!(why.contains("1 ranks would be left, and the job wants 2"), "{why}");
}

#[test]
fn they_keep_the_contract() {
    conformance::recovery_strategy(Shrink::new).with_seeds(300).assert();
    conformance::recovery_strategy(|| Shrink::new().before_restart()).with_seeds(300).assert();
    conformance::recovery_strategy(Grow::new).with_seeds(300).assert();
    conformance::recovery_strategy(Retry::new).with_seeds(300).assert();
    conformance::recovery_strategy(Recover::in_place).with_seeds(300).assert();
    conformance::recovery_strategy(Recover::elsewhere).with_seeds(300).assert();
}

use super::*;
use crate::detect::fixture::{KILLED, Scene, exception, node, rank_domain};
use crate::detect::{Damage, Fault, FaultClass, Health, Suspect};
use crate::job::{
    Counted, Generation, GroupId, GroupKind, Incarnation, IncidentId, JobSpec, JobTime, NodeId, Ready, WorkerSpec,
};
use crate::recover::{Failure, Incident, Proposal, RecoveryStrategy, Restart, TargetReply};
use crate::state::{ControlLink, DirectiveReply, JOIN_VARIABLE, NodeState, Phase, Replicas, StartBatch, Window};

/// A scene in which all ranks train and can receive directives.
pub(super) fn linked(mut scene: Scene) -> Scene {
    Arc::make_mut(&mut scene.view.spec).policy.min_ranks = 1;
    for rank in scene.view.world.members().keys().map(|rank| rank.0).collect::<Vec<_>>() {
        scene.proc(rank).link = Some(link(LoopPosition::InLoop));
    }
    scene.view.replicas = Replicas::proven(scene.view.world.members().keys().copied());
    scene
}

pub(super) fn link(at: LoopPosition) -> ControlLink {
    let can = NEEDED.into_iter().chain(["write-shard", "write-manifest"].map(Name::new)).collect();
    ControlLink {
        generation: Generation(1),
        framework: Name::new("torch"),
        capabilities: can,
        position: at,
        state_bytes: None,
        unsupported_reason: None,
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

/// A fault that blames a process which may still run.
pub(super) fn frozen(rank: u32) -> Fault {
    let suspect = Suspect::certain(rank_domain(rank), FaultClass::Exit, Damage::PROCESS_GONE);
    Fault::new(Name::new("exit"), JobTime::START, suspect).with_incarnation(Some(Incarnation(1)))
}

pub(super) fn survived(rank: u32) -> Fault {
    let damage = Damage { process: Health::Healthy, ..Damage::default() };
    let suspect = Suspect::victim(rank_domain(rank), FaultClass::Network, damage);
    Fault::new(Name::new("failed-step"), JobTime::START, suspect).with_incarnation(Some(Incarnation(1)))
}

pub(super) fn directives(stage: &Stage) -> Vec<(ProcId, &Directive)> {
    let orders = stage.actions.iter().filter_map(|action| match action {
        Action::SendDirectives(batch) => Some(&batch.directives),
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
fn survivors_abort_while_the_lost_rank_is_started_to_join_them() {
    let mut scene = linked(Scene::of(3));
    let faults = vec![killed(&mut scene, 1)];
    let proposal = Recover::in_place().propose(&incident(faults), &scene.view).expect("a proposal");
    assert_eq!(names(&proposal), ["abort", "join"]);
    let first = &proposal.stages[0];
    let told: Vec<_> = directives(first).into_iter().map(|(proc, what)| (proc, what.name())).collect();
    assert_eq!(told, [(ProcId::rank(0, 1), "abort"), (ProcId::rank(2, 1), "abort")]);
    let batch = started(first).expect("the replacement starts at once: no process is in its way");
    assert_eq!(batch.starts.iter().map(|o| o.proc.clone()).collect::<Vec<_>>(), [ProcId::rank(1, 2)]);
    assert_eq!(batch.starts[0].spec.env.get(JOIN_VARIABLE).map(String::as_str), Some("2"));
    assert!(!first.actions.iter().any(|a| matches!(a, Action::Stop { .. })));
    assert_eq!(proposal.cost.lost_work, Duration::ZERO);
    let join = directives(&proposal.stages[1]);
    assert_eq!(join.len(), 3);
    let Directive::Join { rank, size, members, store: None, .. } = join[1].1 else { panic!("{join:?}") };
    assert_eq!((*rank, *size, members.len(), &join[1].0), (Rank(1), 3, 3, &ProcId::rank(1, 2)));
}

#[test]
fn a_process_that_may_still_run_is_stopped_before_its_replacement() {
    let scene = linked(Scene::of(3));
    let proposal = Recover::in_place().propose(&incident(vec![frozen(2)]), &scene.view).expect("a proposal");
    assert_eq!(names(&proposal), ["abort", "start", "join"]);
    let stops = |a: &Action| matches!(a, Action::Stop { procs, exact: false, .. } if *procs == [ProcId::rank(2, 1)]);
    assert!(proposal.stages[0].actions.iter().any(stops));
    assert!(started(&proposal.stages[0]).is_none() && started(&proposal.stages[1]).is_some());
}

#[test]
fn a_new_fault_in_a_recovery_starts_all_lost_ranks_again() {
    let mut scene = linked(Scene::of(4));
    let first = killed(&mut scene, 1);
    let world = scene.view.world.successor(Counted::Yes, |members| {
        members.get_mut(&Rank(1)).expect("a member").incarnation = Incarnation(2);
    });
    scene.view.world = Arc::new(world);
    let faults = vec![first, killed(&mut scene, 2)];
    let proposal = Recover::in_place().propose(&incident(faults), &scene.view).expect("a proposal");
    let batch = proposal.stages.iter().find_map(started).expect("somebody is started");
    assert_eq!(batch.starts.iter().map(|o| o.proc.role.rank()).collect::<Vec<_>>(), [Some(Rank(1)), Some(Rank(2))]);
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
    assert!(host(Recover::elsewhere(), &scene).is_err_and(|why: String| why.contains("no other host has room")));
}

#[test]
fn each_refusal_of_an_emergency_checkpoint_gives_its_reason() {
    let refusal = |strategy: &dyn RecoveryStrategy, scene: &Scene, faults: Vec<Fault>| {
        strategy.propose(&incident(faults), &scene.view).map(drop).expect_err("a refusal").reason
    };
    let (recover, retry) = (Recover::in_place(), Retry::new());
    let whole = linked(Scene::of(3));
    assert_eq!(refusal(&recover, &whole, vec![survived(0)]), "no rank is lost");
    assert!(refusal(&retry, &whole, vec![frozen(1)]).contains("a rank is lost"));
    assert!(refusal(&retry, &whole, vec![]).contains("no process has reported"));
    let mut plain = Scene::of(3);
    let fault = killed(&mut plain, 1);
    assert!(refusal(&recover, &plain, vec![fault.clone()]).contains("rank 0 has no control link"));
    let mut early = linked(Scene::of(3));
    killed(&mut early, 1);
    early.proc(2).link = Some(link(LoopPosition::BeforeLoop));
    assert!(
        refusal(&recover, &early, vec![fault.clone()])
            .contains("the program of rank 2 has not begun a step loop (taskd.steps)")
    );
    early.proc(2).link = Some(ControlLink { capabilities: [Name::new("abort")].into(), ..link(LoopPosition::InLoop) });
    assert!(refusal(&recover, &early, vec![fault.clone()]).contains("the job has no `rendezvous_service`"));
    Arc::make_mut(&mut early.view.spec).rendezvous_service = Some(Name::new("store"));
    assert_eq!(refusal(&recover, &early, vec![fault.clone()]), "rank 2 does not support the directive join");
    early.proc(2).link =
        Some(ControlLink { unsupported_reason: Some("its state is sharded".into()), ..link(LoopPosition::InLoop) });
    assert_eq!(refusal(&recover, &early, vec![fault.clone()]), "rank 2 cannot be kept: its state is sharded");
    early.proc(2).link = Some(ControlLink { sharded: vec!["optimizer".into()], ..link(LoopPosition::InLoop) });
    for strategy in [&recover as &dyn RecoveryStrategy, &Shrink::new().before_restart()] {
        let why = refusal(strategy, &early, vec![fault.clone()]);
        assert!(why.starts_with("optimizer is sharded over the ranks"), "{}: {why}", strategy.name());
    }
    assert!(retry.propose(&incident(vec![survived(0)]), &sharded_and_whole().view).is_ok(), "nothing is lost");
    let mut all = linked(Scene::of(2));
    let faults = vec![killed(&mut all, 0), killed(&mut all, 1)];
    assert!(refusal(&recover, &all, faults).contains("no rank can be kept"));
    let broken = Suspect::certain(rank_domain(1), FaultClass::Program, Damage::PROGRAM_BROKEN);
    let broken = Fault::new(Name::new("program-error"), JobTime::START, broken)
        .with_error(Some(Box::new(exception("x"))))
        .with_incarnation(Some(Incarnation(1)));
    assert!(refusal(&recover, &whole, vec![broken]).contains("broken"));
}

fn sharded_and_whole() -> Scene {
    let mut scene = linked(Scene::of(3));
    scene.proc(2).link = Some(ControlLink { sharded: vec!["optimizer".into()], ..link(LoopPosition::InLoop) });
    scene
}

#[test]
fn in_process_recovery_is_refused_without_its_service_or_host() {
    let refusal = |strategy: &dyn RecoveryStrategy, scene: &Scene, faults: Vec<Fault>| {
        strategy.propose(&incident(faults), &scene.view).map(drop).expect_err("a refusal").reason
    };
    let mut scene = linked(Scene::of(3));
    let spec = JobSpec::clone(&scene.view.spec).with_service("scheduler", WorkerSpec::new(["serve"]));
    scene.view.spec = Arc::new(spec); // and it is missing
    assert!(refusal(&Retry::new(), &scene, vec![survived(0)]).contains("service scheduler is missing"));
    let fault = killed(&mut scene, 1);
    assert!(refusal(&Recover::in_place(), &scene, vec![fault]).contains("service scheduler is missing"));
    let mut scene = linked(Scene::on(4, &[("a", 4), ("b", 4)]));
    let damage = Damage { device: Health::Faulty, ..Damage::default() };
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
    assert_eq!(names(&proposal), ["abort", "join"]);
    let states =
        [state(5, Some(4), Window::Before), state(5, Some(5), Window::Closed), state(5, Some(4), Window::Torn)];
    let Advance::ReplaceRest(rest) = after_join(&Retry::new(), &scene, proposal, &states) else { panic!("it goes on") };
    let repairs = directives(&rest[0]);
    let of = |rank: usize| match repairs[rank].1 {
        Directive::SyncState { step, from, to, rollback: put_back, buckets } => {
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
    assert!(matches!(next, Advance::Fail(why) if why.contains("interrupted in its commit window")));
}

/// Returns the result of `advance` after all ranks have joined.
fn after_join(strategy: &dyn RecoveryStrategy, scene: &Scene, proposal: Proposal, states: &[WorkerState]) -> Advance {
    after(2, strategy, scene, proposal, (0..).zip(states.iter().cloned()).collect())
}

/// Returns the result of `advance` after `stages` stages, in the first of which these ranks have reported their states.
pub(super) fn after(
    stages: usize,
    strategy: &dyn RecoveryStrategy,
    scene: &Scene,
    proposal: Proposal,
    states: BTreeMap<u32, WorkerState>,
) -> Advance {
    let answer = |state: &WorkerState| {
        let answered = DirectiveReply { state: Some(state.clone()), ..DirectiveReply::default() };
        Ok::<TargetReply, Failure>(TargetReply::Directive(Box::new(answered)))
    };
    let results = states.iter().map(|(rank, state)| (rank_domain(*rank), answer(state))).collect();
    let action = proposal.stages[0].actions[1].clone();
    let mut done = vec![vec![CommandOutcome { action, results }]];
    done.resize(stages, Vec::new());
    let run = PlanExecution { strategy: strategy.name(), proposal, stage: stages, done, began: JobTime::START };
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
    let damage = Damage { process: Health::Healthy, state: Health::Healthy, ..Damage::default() };
    let suspect = Suspect::certain(Domain::Job, FaultClass::Other(Name::new("shrunk")), damage);
    Fault::new(Name::new("shrunk"), JobTime::START, suspect).with_advice(Name::new("grow"))
}

#[test]
fn survivors_continue_in_a_smaller_world_without_a_start() {
    let mut scene = linked(Scene::of(4));
    let proposal = shrunk(&mut scene, 1);
    assert_eq!(names(&proposal), ["abort", "join"]);
    assert!(proposal.stages.iter().all(|stage| started(stage).is_none()));
    let world = &scene.view.world;
    assert_eq!(world.members().keys().map(|rank| rank.0).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(world.absent().keys().map(|rank| rank.0).collect::<Vec<_>>(), [1]);
    let join = directives(&proposal.stages[1]);
    let Directive::Join { rank, size, members, .. } = join[1].1 else { panic!("{join:?}") };
    assert_eq!((*rank, *size), (Rank(2), 3));
    assert_eq!(members.iter().map(|peer| peer.rank.0).collect::<Vec<_>>(), [0, 2, 3]);
    let same_size = Recover::elsewhere().cost(false);
    assert!(same_size < proposal.cost, "who can keep the size keeps it");
}

#[test]
fn an_absent_rank_of_an_aborted_grow_returns_by_another_recovery() {
    let mut scene = linked(Scene::of(4));
    shrunk(&mut scene, 1);
    let harmless =
        Suspect::victim(rank_domain(2), FaultClass::Network, Damage { process: Health::Healthy, ..Damage::default() });
    let harmless = Fault::new(Name::new("links"), JobTime::START, harmless).with_incarnation(Some(Incarnation(1)));
    let incident = incident(vec![wish_to_grow(), harmless]);
    let grow = Grow::new().propose(&incident, &scene.view).expect("nobody is lost by that");
    scene.view.world = entered(&grow);
    assert!(Grow::new().propose(&incident, &scene.view).is_err_and(|why| why.reason == "no rank is absent"));
    let again = Recover::in_place().propose(&incident, &scene.view).expect("a proposal");
    let replacements = again.stages.iter().find_map(started).expect("somebody starts");
    assert_eq!(
        replacements.starts.iter().map(|order| order.proc.role.clone()).collect::<Vec<_>>(),
        [Role::Rank(Rank(1))]
    );
    assert!(
        Restart::new().propose(&incident, &scene.view).is_ok(),
        "if that is not allowed: the job does not end over a wish"
    );
}

#[test]
fn an_absent_rank_returns_to_its_place_and_the_others_continue() {
    let mut scene = linked(Scene::of(4));
    shrunk(&mut scene, 1);
    let before = scene.view.world.restarts();
    let proposal = Grow::new().propose(&incident(vec![wish_to_grow()]), &scene.view).expect("a proposal");
    let (world, first) = (entered(&proposal), &proposal.stages[0]);
    assert_eq!((world.size(), world.absent().len(), world.restarts()), (4, 0, before));
    let batch = started(first).expect("it starts at once");
    assert_eq!(batch.starts.iter().map(|o| o.proc.clone()).collect::<Vec<_>>(), [ProcId::rank(1, 2)]);
    assert_eq!(names(&proposal), ["start", "abort", "join"], "the others train on while it starts");
    let told: Vec<_> = directives(&proposal.stages[1]).into_iter().map(|(proc, _)| proc).collect();
    assert_eq!(told, [0, 2, 3].map(|rank| ProcId::rank(rank, 1)));
    let restart = crate::recover::Restart::new();
    let why = restart.propose(&incident(vec![wish_to_grow()]), &scene.view).expect_err("all still train").reason;
    assert!(why.contains("still train"), "{why}");
}

#[test]
fn a_rank_that_failed_to_return_leaves_the_world_again() {
    let mut scene = linked(Scene::of(4));
    for rank in 0..4 {
        scene.proc(rank).step = Some(7);
    }
    shrunk(&mut scene, 1);
    let wish = wish_to_grow();
    let proposal = Grow::new().propose(&incident(vec![wish.clone()]), &scene.view).expect("a proposal");
    scene.view.world = entered(&proposal);
    let pending = crate::state::Proc { incarnation: Incarnation(2), step: None, ..scene.proc(1).clone() };
    scene.view.procs.insert(Role::Rank(Rank(1)), crate::state::Proc { phase: Phase::Running, ..pending });
    let failed = Incident { attempts: vec![(Name::new("grow"), "it hangs".into())], ..incident(vec![wish]) };
    let again = Grow::new().propose(&failed, &scene.view);
    assert!(again.is_err_and(|why| why.reason.contains("no rank is absent")));
    let leaves = Shrink::new().propose(&failed, &scene.view).expect("the others go on without it");
    assert_eq!(entered(&leaves).members().keys().map(|rank| rank.0).collect::<Vec<_>>(), [0, 2, 3]);
    let stops = |a: &Action| matches!(a, Action::Stop { procs, .. } if *procs == [ProcId::rank(1, 2)]);
    assert!(leaves.stages[0].actions.iter().any(stops));
    assert!(crate::recover::Restart::new().propose(&failed, &scene.view).is_ok(), "the last resort is there, too");
}

#[test]
fn grow_is_refused_if_whole_not_requested_or_a_rank_is_lost() {
    let mut scene = linked(Scene::of(3));
    let whole = Grow::new().propose(&incident(vec![wish_to_grow()]), &scene.view);
    assert!(whole.is_err_and(|why| why.reason.contains("no rank is absent")));
    shrunk(&mut scene, 1);
    let fault = killed(&mut scene, 2);
    let unasked = Grow::new().propose(&incident(vec![fault.clone()]), &scene.view);
    assert!(unasked.is_err_and(|why| why.reason.contains("has asked the world to grow")));
    let both = Grow::new().propose(&incident(vec![fault, wish_to_grow()]), &scene.view);
    assert!(both.is_err_and(|why| why.reason.contains("rank 2 is lost")));
}

#[test]
fn a_restart_after_a_shrunk_world_starts_absent_ranks_too() {
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
    let why = Shrink::new()
        .before_restart()
        .propose(&incident(vec![fault]), &scene.view)
        .expect_err("nothing whole is left")
        .reason;
    assert!(why.contains("no whole replica"), "{why}");
}

#[test]
fn a_world_shrinks_only_where_no_restart_could_make_it_whole() {
    const FULL: &[(&str, u32)] = &[("a", 2), ("b", 2)];
    let mut scene = linked(Scene::on(4, FULL));
    let faults = vec![killed(&mut scene, 3)];
    let why = Shrink::new().propose(&incident(faults.clone()), &scene.view).expect_err("its place is there").reason;
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
    Arc::make_mut(&mut scene.view.spec).policy.min_ranks = 2;
    let faults = vec![killed(&mut scene, 0), killed(&mut scene, 1)];
    let why =
        Shrink::new().before_restart().propose(&incident(faults), &scene.view).expect_err("two are wanted").reason;
    assert!(why.contains("1 ranks would be left, and the job needs at least 2"), "{why}");
}

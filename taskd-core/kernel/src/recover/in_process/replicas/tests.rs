use super::super::tests::{
    after, directives, entered, frozen, incident, killed, link, linked, names, shrunk, state, survived, wish_to_grow,
};
use super::super::{Directive, EmergencyCheckpoint, Grow, JOIN, Recover, Retry, Shrink};
use super::*;
use crate::detect::fixture::Scene;
use crate::job::{GroupId, JobSpec, World};
use crate::recover::{Advance, RecoveryStrategy};
use crate::state::{ControlLink, LoopPosition, Replicas, Window};
use std::collections::BTreeMap;
use std::sync::Arc;

fn sharded(layout: &str, window: Window) -> WorkerState {
    WorkerState { layout: layout.into(), sharded: vec!["optimizer".into()], ..state(5, Some(4), window) }
}

fn is_given_up(next: &Advance, why: &str) {
    assert!(matches!(next, Advance::Fail(told) if told.contains(why)), "{next:?}");
}

#[test]
fn a_world_with_sharded_state_does_not_shrink() {
    let mut scene = linked(Scene::of(3));
    let proposal = shrunk(&mut scene, 1);
    let states = [0, 2].map(|rank| (rank, sharded("same", Window::Before))).into();
    is_given_up(&after(1, &Shrink::new().before_restart(), &scene, proposal, states), "optimizer is sharded");
}

#[test]
fn a_step_with_sharded_state_is_retried_unless_it_is_torn() {
    let scene = linked(Scene::of(3));
    let proposal = || Retry::new().propose(&incident(vec![survived(0)]), &scene.view).expect("a proposal");
    let states = |window| -> BTreeMap<u32, WorkerState> {
        [("a", Window::Before), ("b", window), ("c", Window::Before)]
            .into_iter()
            .zip(0..)
            .map(|((layout, window), rank)| (rank, sharded(layout, window)))
            .collect()
    };
    let again = |stages| after(stages, &Retry::new(), &scene, proposal(), states(Window::Before));
    assert!(matches!(again(1), Advance::ReplaceRest(rest) if rest[0].name == JOIN));
    let Advance::ReplaceRest(rest) = again(2) else { panic!("nobody needs another's part") };
    let copies = |what: &Directive| matches!(what, Directive::SyncState { from, .. } if !from.is_empty());
    assert!(!directives(&rest[0]).iter().any(|(_, what)| copies(what)));
    let torn = after(1, &Retry::new(), &scene, proposal(), states(Window::Torn));
    is_given_up(
        &torn,
        "optimizer is sharded over the ranks, or was created inside the step loop: no other rank has a copy of the \
         part of rank 1",
    );
}

#[test]
fn a_rank_whose_part_of_sharded_state_is_lost_is_not_replaced() {
    let mut scene = linked(Scene::of(3));
    let faults = incident(vec![killed(&mut scene, 1)]);
    let refused = |strategy: &dyn RecoveryStrategy, scene: &Scene| strategy.propose(&faults, &scene.view).map(drop);
    let recover = Recover::in_place();
    let proposal = recover.propose(&faults, &scene.view).expect("nothing is known of it yet");
    scene.proc(2).link = Some(ControlLink { sharded: vec!["optimizer".into()], ..link(LoopPosition::InLoop) });
    let why = "optimizer is sharded over the ranks, or was created inside the step loop: no other rank has a copy of \
               the part of rank 1";
    assert_eq!(refused(&recover, &scene), Err(why.into()));
    let why = "optimizer is sharded over the ranks, or was created inside the step loop: a part of it is lost";
    assert_eq!(refused(&Shrink::new().before_restart(), &scene), Err(why.into()));
    let mut growing = linked(Scene::of(3));
    shrunk(&mut growing, 1);
    growing.proc(2).link.as_mut().expect("a link").sharded = vec!["optimizer".into()];
    let grow = Grow::new().propose(&incident(vec![wish_to_grow()]), &growing.view);
    assert!(grow.is_err_and(|why| why.reason.contains("optimizer is sharded")));
    // A rank that had not used the object yet had not reported it either.
    let states = || [0, 2].map(|rank| (rank, sharded("same", Window::Before))).into();
    scene.view.world = entered(&proposal);
    is_given_up(&after(1, &recover, &scene, proposal, states()), "optimizer is sharded");
    let mut scene = linked(Scene::of(3));
    let proposal = recover.propose(&incident(vec![frozen(1)]), &scene.view).expect("a proposal");
    assert_eq!(names(&proposal), ["abort", "start", "join"]);
    scene.view.world = entered(&proposal);
    is_given_up(&after(1, &recover, &scene, proposal, states()), "optimizer is sharded"); // no rank is started
}

#[test]
fn a_rank_without_a_remaining_replica_is_not_replaced() {
    let group = |index, ranks: [u32; 2]| (GroupId { kind: GroupKind::Dp, index }, ranks.map(Rank).to_vec());
    let mut scene = linked(Scene::of(4));
    let world = World::clone(&scene.view.world).with_groups([group(0, [0, 2]), group(1, [1, 3])].into());
    scene.view.world = Arc::new(world);
    let mut faults = vec![killed(&mut scene, 1)];
    scene.proc(2).link = Some(ControlLink { sharded: vec!["optimizer".into()], ..link(LoopPosition::InLoop) });
    let recover = Recover::in_place();
    recover.propose(&incident(faults.clone()), &scene.view).expect("what others shard is not what it had");
    faults.push(killed(&mut scene, 3));
    let why = recover.propose(&incident(faults), &scene.view).map(drop).expect_err("nobody has their state").reason;
    assert_eq!(why, "no replica of rank 1 is left");
}

#[test]
fn recovery_without_a_proven_replica_is_refused_with_a_reason() {
    let mut scene = linked(Scene::of(3));
    let faults = incident(vec![killed(&mut scene, 1)]);
    scene.view.replicas = Replicas::proven([Rank(0), Rank(2)]);
    let why = "no replica of rank 1 is proven: it has reported no checksum of its state";
    assert_eq!(unproven(&scene.view), Some(why.into()));
    let refused =
        |strategy: &dyn RecoveryStrategy| strategy.propose(&faults, &scene.view).map(drop).expect_err("refused").reason;
    assert_eq!(refused(&Recover::in_place()), why);
    assert_eq!(refused(&Shrink::new().before_restart()), format!("no whole replica of the model is left: {why}"));
    let mut spec = JobSpec::clone(&scene.view.spec);
    spec.policy.checkpoint_dir = Some("/checkpoints".into());
    scene.view.spec = Arc::new(spec);
    let dump = EmergencyCheckpoint::then_restart().propose(&faults, &scene.view).map(drop);
    assert_eq!(dump, Err(format!("rank 1 is lost, and {why}").into()), "nothing of it is there to be saved");
}

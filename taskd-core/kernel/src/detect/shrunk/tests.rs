use super::*;
use crate::detect::fixture::{Scene, fault, node};
use crate::job::{Counted, Rank};
use crate::recover::{Incident, RecoveryStrategy, Restart};
use crate::state::NodeState;
use crate::trace::Signal;
use std::sync::Arc;

const AFTER: Duration = Duration::from_secs(60);
const AFTER_MS: u64 = 60_000;

fn leaves(scene: &mut Scene, rank: u32) {
    let world = scene.view.world.successor(Counted::Yes, |members| _ = members.remove(&Rank(rank)));
    scene.view.world = Arc::new(world);
}

fn comes_back(scene: &mut Scene) {
    let absent = scene.view.world.absent().clone();
    scene.view.world = Arc::new(scene.view.world.successor(Counted::No, |members| members.extend(absent)));
}

fn look(scene: &mut Scene, detector: &mut ShrunkDetector) {
    assert!(scene.tell(detector, 0, Signal::Progress { step: 1 }).is_empty());
}

#[test]
fn a_world_that_stays_smaller_is_advised_to_grow() {
    let (mut scene, mut shrunk) = (Scene::of(3), ShrunkDetector::after(AFTER));
    assert_eq!(shrunk.deadline(), None);
    look(&mut scene, &mut shrunk);
    leaves(&mut scene, 1);
    look(&mut scene, &mut shrunk);
    scene.pass(AFTER_MS - 1);
    assert!(scene.expire(&mut shrunk).is_empty());
    scene.pass(1);
    let found = scene.expire(&mut shrunk);
    let fault = fault(&found[1..]).clone();
    assert_eq!(fault.advice, Some(GROW));
    assert_eq!(fault.evidence[0].text, "1 of 3 ranks have been absent for 60 s");
    let incident =
        Incident { id: crate::job::IncidentId(1), opened: scene.view.now, faults: vec![fault], attempts: vec![] };
    assert!(incident.is_non_disruptive(&scene.view), "the job does not end over it");
    assert!(Restart::new().propose(&incident, &scene.view).is_err(), "and does not start again for it");
}

#[test]
fn a_world_that_is_whole_again_is_not_blamed() {
    let (mut scene, mut shrunk) = (Scene::of(3), ShrunkDetector::after(AFTER));
    leaves(&mut scene, 1);
    look(&mut scene, &mut shrunk);
    comes_back(&mut scene);
    scene.pass(AFTER_MS);
    assert!(scene.expire(&mut shrunk).is_empty());
    scene.pass(AFTER_MS * 10);
    assert!(scene.expire(&mut shrunk).is_empty());
}

#[test]
fn a_world_that_reports_nothing_after_it_has_shrunk_is_advised_to_grow() {
    let (mut scene, mut shrunk) = (Scene::of(3), ShrunkDetector::after(AFTER));
    look(&mut scene, &mut shrunk);
    leaves(&mut scene, 1);
    let looks = (0..4).find(|_| {
        scene.pass(AFTER_MS);
        !scene.expire(&mut shrunk).is_empty()
    });
    assert!(looks.is_some(), "nothing was observed since");
}

#[test]
fn room_is_seen_at_once_when_the_delay_is_over() {
    let (mut scene, mut shrunk) = (Scene::on(4, &[("a", 2), ("b", 2)]), ShrunkDetector::after(AFTER));
    leaves(&mut scene, 3);
    scene.proc(3).wanted = false;
    scene.set_node("b", NodeState::Left);
    look(&mut scene, &mut shrunk);
    for _ in 0..3 {
        scene.pass(AFTER_MS);
        assert!(scene.expire(&mut shrunk).is_empty());
    }
    scene.set_node("b", NodeState::Ready);
    scene.pass(500);
    assert_eq!(scene.expire(&mut shrunk).len(), 2);
}

#[test]
fn while_something_is_mended_it_waits_and_is_no_later_for_it() {
    let (mut scene, mut shrunk) = (Scene::of(3), ShrunkDetector::after(AFTER));
    leaves(&mut scene, 1);
    look(&mut scene, &mut shrunk);
    scene.view.mending = true;
    scene.pass(AFTER_MS);
    assert!(scene.expire(&mut shrunk).is_empty());
    scene.view.mending = false;
    scene.pass(AFTER_MS);
    assert_eq!(scene.expire(&mut shrunk).len(), 2);
}

#[test]
fn growth_that_does_not_last_is_tried_again_at_longer_intervals() {
    let (mut scene, mut shrunk) = (Scene::of(3), ShrunkDetector::after(AFTER));
    leaves(&mut scene, 1);
    look(&mut scene, &mut shrunk);
    let first = shrunk.deadline().expect("it waits");
    scene.pass(AFTER_MS);
    assert_eq!(scene.expire(&mut shrunk).len(), 2);
    let second = shrunk.deadline().expect("in case it was in vain");
    assert_eq!(second.since(first), AFTER * 2);
    comes_back(&mut scene);
    look(&mut scene, &mut shrunk);
    scene.pass(1_000);
    leaves(&mut scene, 1);
    look(&mut scene, &mut shrunk);
    let third = shrunk.deadline().expect("it waits");
    assert_eq!(third.since(scene.view.now), AFTER * 4);
    comes_back(&mut scene);
    look(&mut scene, &mut shrunk);
    leaves(&mut scene, 2);
    look(&mut scene, &mut shrunk);
    assert_eq!(shrunk.deadline().map(|due| due.since(scene.view.now)), Some(AFTER), "another rank is another matter");
    comes_back(&mut scene);
    look(&mut scene, &mut shrunk);
    scene.pass(AFTER_MS * 60);
    leaves(&mut scene, 1);
    look(&mut scene, &mut shrunk);
    let anew = shrunk.deadline().expect("it waits");
    assert_eq!(anew.since(scene.view.now), AFTER, "a world that was whole for long begins anew");
}

#[test]
fn without_room_nothing_is_advised() {
    let (mut scene, mut shrunk) = (Scene::on(4, &[("a", 2), ("b", 2)]), ShrunkDetector::after(AFTER));
    leaves(&mut scene, 3);
    scene.proc(3).wanted = false;
    scene.set_node("b", NodeState::Cordoned);
    look(&mut scene, &mut shrunk);
    scene.pass(AFTER_MS);
    assert!(scene.expire(&mut shrunk).is_empty());
    assert!(scene.view.nodes.contains_key(&node("b")));
    scene.set_node("b", NodeState::Ready);
    scene.pass(AFTER_MS);
    assert_eq!(scene.expire(&mut shrunk).len(), 2);
}

#[test]
fn in_the_middle_of_a_recovery_nothing_is_advised() {
    let (mut scene, mut shrunk) = (Scene::of(3), ShrunkDetector::after(AFTER));
    leaves(&mut scene, 1);
    look(&mut scene, &mut shrunk);
    scene.proc(2).wanted = false;
    scene.pass(AFTER_MS);
    assert!(scene.expire(&mut shrunk).is_empty());
    scene.proc(2).wanted = true;
    scene.pass(AFTER_MS);
    assert_eq!(scene.expire(&mut shrunk).len(), 2);
}

#[test]
fn shrunk_detector_continues_from_its_snapshot() {
    let (mut scene, mut shrunk) = (Scene::of(3), ShrunkDetector::after(AFTER));
    leaves(&mut scene, 1);
    look(&mut scene, &mut shrunk);
    let mut other = ShrunkDetector::after(AFTER);
    assert_eq!(other.restore(&shrunk.snapshot().expect("a state")), Ok(()));
    assert_eq!(other.deadline(), shrunk.deadline());
    assert_eq!(other.restore(b"garbage"), Err(DecodeError));
}

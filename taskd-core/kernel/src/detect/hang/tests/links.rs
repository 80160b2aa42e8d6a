//! Hangs between hosts: which link is broken.

use super::*;
use crate::detect::fixture::{node, question};
use crate::job::{Counted, Generation};
use crate::state::{FailureKind, StepFailure};
use crate::trace::{LINKS, ProbeReply, write_links};
use std::sync::Arc;

/// A job with a rank on each of three hosts, and a detector that has made one look at their hang.
fn hanging_on_hosts(answer: impl Fn(u32, &Name) -> ProbeResult) -> (Scene, HangDetector) {
    let (mut scene, mut hang) = (Scene::of(MEMBERS), HangDetector::default());
    let hosts = ["h1", "h2", "h3"].map(node);
    let world = scene.view.world.successor(Counted::No, |members| {
        members.values_mut().zip(&hosts).for_each(|(member, host)| member.node = Some(host.clone()));
    });
    scene.enter(Arc::new(world));
    scene.tell(&mut hang, 0, told());
    assert!(look(&mut scene, &mut hang, answer).is_empty(), "one look is none");
    (scene, hang)
}

/// All ranks wait in the same call.
fn all_wait(_: u32, what: &Name) -> ProbeResult {
    if *what == COLLECTIVES { groups(8, true) } else { ProbeResult::Text("state=S".into()) }
}

/// Makes the second look, and returns the probe of the links.
fn second_look(scene: &mut Scene, hang: &mut HangDetector, answer: impl Fn(u32, &Name) -> ProbeResult) -> Probe {
    scene.view.now = hang.deadline().expect("a look is due");
    let found = scene.expire(hang);
    let asks: Vec<Probe> = found.iter().map(|found| question(std::slice::from_ref(found))).collect();
    let [looks @ .., links] = asks.as_slice() else { panic!("no probe") };
    assert_eq!((looks.len(), &links.what, links.about.len()), (2, &LINKS, 3), "{links:?}");
    for ask in looks {
        for rank in 0..MEMBERS {
            drop(scene.answer(hang, ask, rank, answer(rank, &ask.what)));
        }
    }
    links.clone()
}

/// Answers a probe of the links: these hosts do not reach these ones.
fn links_are(
    scene: &Scene,
    hang: &mut HangDetector,
    ask: &Probe,
    lost: &[(&'static str, &'static str)],
) -> Vec<Finding> {
    let mut found = Vec::new();
    for from in ["h1", "h2", "h3"] {
        let others = ["h1", "h2", "h3"].into_iter().filter(|to| *to != from);
        let links = others.map(|to| (node(to), !lost.contains(&(from, to)))).collect();
        let about = Domain::Node(node(from));
        let reply = Signal::ProbeReply(Arc::new(ProbeReply::new(ask, about.clone(), write_links(&links))));
        found.extend(scene.observe(hang, Observation::new(scene.view.now, about, reply)));
    }
    found
}

#[test]
fn a_broken_link_between_hosts_is_named_and_one_of_its_hosts_is_blamed() {
    let (mut scene, mut hang) = hanging_on_hosts(all_wait);
    let ask = second_look(&mut scene, &mut hang, all_wait);
    let found = links_are(&scene, &mut hang, &ask, &[("h2", "h3"), ("h3", "h2")]);
    let fault = fault(&found);
    let suspect = fault.primary_suspect();
    assert_eq!((&suspect.domain, &suspect.class), (&Domain::Node(node("h2")), &FaultClass::Network));
    assert!(suspect.is_cause() && !suspect.is_certain());
    assert_eq!((suspect.damage.process, suspect.damage.device), (Health::Faulty, Health::Faulty), "ranks leave it");
    let texts: Vec<&str> = fault.evidence.iter().map(|clue| clue.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "the link between h2 and h3 is broken: neither reaches the other",
            "without h2 2 of 3 ranks are left, as many as without h3: the first of them by name is excluded"
        ]
    );
    let over = |_: u32, what: &Name| {
        if *what == COLLECTIVES { groups(9, false) } else { ProbeResult::Text("state=S".into()) }
    };
    let cleared = look(&mut scene, &mut hang, over);
    assert_eq!(cleared, [Finding::Clear(Domain::Node(node("h2")), FaultClass::Network)], "it has ended after all");
}

#[test]
fn links_that_work_or_of_which_one_end_says_nothing_blame_no_host() {
    for lost in [&[][..], &[("h2", "h3")]] {
        let (mut scene, mut hang) = hanging_on_hosts(all_wait);
        let ask = second_look(&mut scene, &mut hang, all_wait);
        assert!(links_are(&scene, &mut hang, &ask, lost).is_empty());
    }
    let (mut scene, mut hang) = hanging_on_hosts(all_wait);
    let ask = second_look(&mut scene, &mut hang, all_wait);
    let reply = ProbeReply::new(&ask, ask.about[0].clone(), write_links(&[(node("h2"), false)].into()));
    let reply = Observation::new(scene.view.now, ask.about[0].clone(), Signal::ProbeReply(Arc::new(reply)));
    assert!(scene.observe(&mut hang, reply).is_empty(), "two answers are missing");
    scene.view.now = scene.view.now + Duration::from_millis(1_200);
    let found = scene.expire(&mut hang);
    assert!(!found.iter().any(|found| matches!(found, Finding::Blame(_))), "{found:?}");
}

#[test]
fn a_rank_that_causes_the_hang_is_blamed_and_no_link() {
    let stopped = |rank: u32, what: &Name| match (rank, *what == PROCESS_STATE) {
        (1, true) => ProbeResult::Text("state=T wchan=do_signal_stop".into()),
        _ => without_rank_1(7)(rank, what),
    };
    let (mut scene, mut hang) = hanging_on_hosts(stopped);
    let ask = second_look(&mut scene, &mut hang, stopped);
    let found = links_are(&scene, &mut hang, &ask, &[("h2", "h3"), ("h3", "h2")]);
    assert!(found.is_empty(), "rank 1 explains it: {found:?}");
}

#[test]
fn a_job_on_one_host_asks_for_no_links() {
    let (mut scene, mut hang) = (Scene::on(MEMBERS, &[("h1", 3)]), HangDetector::default());
    scene.tell(&mut hang, 0, told());
    look(&mut scene, &mut hang, all_wait);
    scene.view.now = hang.deadline().expect("a look is due");
    let asked = scene.expire(&mut hang);
    assert!(asked.iter().all(|found| question(std::slice::from_ref(found)).what != LINKS), "{asked:?}");
}

#[test]
fn after_a_failed_collective_that_no_rank_explains_the_links_are_asked_and_judged_in_the_next_world() {
    let failed = |kind| Signal::StepFailed(Box::new(StepFailure::new(Generation(2), kind, "connection reset by peer")));
    let (mut scene, _) = hanging_on_hosts(all_wait);
    let mut hang = HangDetector::default();
    assert!(scene.tell(&mut hang, 0, failed(FailureKind::Exception)).is_empty(), "its own failure");
    scene.view.mending = true;
    assert!(scene.tell(&mut hang, 0, failed(FailureKind::Collective)).is_empty(), "a recovery runs already");
    scene.view.mending = false;
    let ask = question(&scene.tell(&mut hang, 0, failed(FailureKind::Collective)));
    assert_eq!(ask.what, LINKS);
    assert!(scene.tell(&mut hang, 1, failed(FailureKind::Collective)).is_empty(), "they are asked once");
    let world = scene.view.world.successor(Counted::Yes, |_| {});
    scene.enter(Arc::new(world));
    let found = links_are(&scene, &mut hang, &ask, &[("h1", "h3"), ("h3", "h1")]);
    let suspect = fault(&found).primary_suspect();
    assert_eq!((&suspect.domain, &suspect.class), (&Domain::Node(node("h1")), &FaultClass::Network));

    let (mut scene, mut hang) = hanging_on_hosts(all_wait);
    scene.tell(&mut hang, 2, exited(Termination::Code(1)));
    assert!(scene.tell(&mut hang, 0, failed(FailureKind::Collective)).is_empty(), "rank 2 explains it");
}

use super::*;
use crate::detect::Finding;
use crate::detect::fixture::{Scene, fault};
use crate::job::Counted;
use std::sync::Arc;

/// Restarts the job, and reports these steps of the first rank.
fn run(scene: &mut Scene, storm: &mut RestartStormDetector, steps: std::ops::Range<u64>) -> Vec<Finding> {
    scene.restart();
    scene.pass(10_000);
    let mut found = scene.tell(storm, 0, Signal::Heartbeat);
    steps.for_each(|step| found.extend(scene.tell(storm, 0, Signal::Progress { step })));
    found
}

fn begun() -> (Scene, RestartStormDetector) {
    let (mut scene, mut storm) = (Scene::of(1), RestartStormDetector::default());
    (0..50).for_each(|step| assert!(scene.tell(&mut storm, 0, Signal::Progress { step }).is_empty()));
    (scene, storm)
}

#[test]
fn the_restart_after_five_in_vain_is_a_storm() {
    let (mut scene, mut storm) = begun();
    for _ in 0..5 {
        assert!(run(&mut scene, &mut storm, 40..50).is_empty());
    }
    let found = run(&mut scene, &mut storm, 40..50);
    let fault = fault(&found);
    assert_eq!(
        (&fault.primary_suspect().domain, &fault.primary_suspect().class),
        (&Domain::Job, &FaultClass::RestartStorm)
    );
    assert_eq!(fault.advice, Some(Name::new("exit")));
    assert_eq!(fault.evidence[0].text, "6 restarts since 10.000 s (more than 5 in 600 s)");
    assert_eq!(fault.evidence[1].text, "the job never got beyond step 49");
}

#[test]
fn a_step_beyond_the_furthest_resets_the_restart_count() {
    let (mut scene, mut storm) = begun();
    for furthest in 50..80 {
        assert!(run(&mut scene, &mut storm, 40..furthest + 1).is_empty());
    }
}

#[test]
fn restarts_that_are_far_apart_are_no_storm() {
    let (mut scene, mut storm) = begun();
    for _ in 0..30 {
        scene.pass(120_000);
        assert!(run(&mut scene, &mut storm, 40..50).is_empty());
    }
}

#[test]
fn jobs_whose_steps_are_not_seen_are_judged_by_the_number_alone() {
    let (mut scene, mut storm) = (Scene::of(1), RestartStormDetector::more_than(1, Duration::from_secs(60)));
    scene.tell(&mut storm, 0, Signal::Heartbeat);
    assert!(run(&mut scene, &mut storm, 0..0).is_empty());
    let found = run(&mut scene, &mut storm, 0..0);
    assert_eq!(fault(&found).evidence[1].text, "no completed step was seen");
}

#[test]
fn only_counted_worlds_are_restarts_and_each_of_several_counts() {
    let (mut scene, mut storm) = begun();
    for _ in 0..20 {
        let world = scene.view.world.successor(Counted::No, |_| ());
        scene.enter(Arc::new(world));
        assert!(scene.tell(&mut storm, 0, Signal::Heartbeat).is_empty());
    }
    (0..6).for_each(|_| scene.restart());
    assert_eq!(scene.tell(&mut storm, 0, Signal::Heartbeat).len(), 1);
}

#[test]
fn a_detector_that_starts_cold_counts_from_there() {
    let mut scene = Scene::of(1);
    (0..20).for_each(|_| scene.restart());
    let mut storm = RestartStormDetector::default();
    assert!(scene.tell(&mut storm, 0, Signal::Heartbeat).is_empty());
    for _ in 0..5 {
        assert!(run(&mut scene, &mut storm, 0..0).is_empty());
    }
}

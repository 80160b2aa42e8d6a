use super::*;
use crate::detect::Finding;
use crate::detect::fixture::{Scene, exited, fault};
use crate::job::{IncidentId, JobTime, Termination};
use crate::recover::Incident;

const MINUTE_MS: u64 = 60_000;

fn step(step: u64) -> Signal {
    Signal::Progress { step }
}

#[test]
fn a_job_without_progress_is_blamed_without_a_culprit() {
    let (mut scene, mut stall) = (Scene::of(3), StallDetector::default());
    scene.tell(&mut stall, 0, step(17));
    scene.tell(&mut stall, 1, step(16));
    scene.pass(10 * MINUTE_MS - 1);
    assert!(scene.expire(&mut stall).is_empty());
    scene.pass(1);
    let fault = fault(&scene.expire(&mut stall)).clone();
    assert_eq!((&fault.primary_suspect().domain, &fault.primary_suspect().class), (&Domain::Job, &FaultClass::Stall));
    assert_eq!(fault.onset, JobTime::START);
    assert_eq!(fault.evidence[0].text, "no rank has completed a step for 600.0 s");
    assert_eq!(fault.evidence[1].text, "rank 1 has completed step 16, the fastest rank step 17");
    let incident =
        Incident { id: IncidentId(1), opened: scene.view.now, faults: vec![fault.clone()], attempts: vec![] };
    assert!(incident.root().is_some_and(|root| root.is_duplicate_of(&fault)), "alone it explains the incident");
    assert!(incident.lost_ranks(&scene.view).is_empty(), "nobody is named");
}

#[test]
fn a_later_generation_may_take_as_long_as_a_start_for_its_first_step() {
    let (mut scene, mut stall) = (Scene::of(1), StallDetector::after(Duration::from_secs(60)));
    let start_timeout = scene.view.spec.policy.start_timeout;
    scene.pass(10 * MINUTE_MS);
    assert_eq!(stall.deadline(), None, "a job whose steps are not seen is left alone");
    scene.tell(&mut stall, 0, step(1));
    scene.restart();
    let entered = scene.view.now;
    scene.tell(&mut stall, 0, Signal::Heartbeat);
    assert_eq!(stall.deadline(), Some(entered + start_timeout + Duration::from_secs(60)));
    scene.pass(MINUTE_MS);
    scene.tell(&mut stall, 0, step(1));
    scene.pass(MINUTE_MS);
    assert_eq!(scene.expire(&mut stall).len(), 1, "from its first step on the bound alone counts");
}

#[test]
fn a_generation_that_never_steps_is_a_stall() {
    let (mut scene, mut stall) = (Scene::of(2), StallDetector::after(Duration::from_secs(60)));
    scene.tell(&mut stall, 0, step(1));
    scene.restart();
    scene.tell(&mut stall, 0, Signal::Heartbeat);
    scene.view.now = stall.deadline().expect("it waits for the first step");
    assert_eq!(scene.expire(&mut stall).len(), 1);
}

#[test]
fn a_stall_is_blamed_after_every_bound_until_a_step_clears_it() {
    let (mut scene, mut stall) = (Scene::of(1), StallDetector::after(Duration::from_secs(60)));
    scene.tell(&mut stall, 0, step(1));
    for _ in 0..3 {
        scene.pass(MINUTE_MS);
        assert_eq!(fault(&scene.expire(&mut stall)).onset, JobTime::START);
    }
    assert_eq!(scene.tell(&mut stall, 0, step(2)), [Finding::Clear(Domain::Job, FaultClass::Stall)]);
    assert!(scene.tell(&mut stall, 0, step(3)).is_empty());
}

#[test]
fn a_job_that_is_being_stopped_or_has_finished_does_not_stall() {
    for finished in [true, false] {
        let (mut scene, mut stall) = (Scene::of(1), StallDetector::after(Duration::from_secs(60)));
        scene.tell(&mut stall, 0, step(1));
        if finished {
            scene.tell(&mut stall, 0, exited(Termination::Code(0)));
        } else {
            scene.proc(0).wanted = false;
        }
        scene.pass(MINUTE_MS);
        assert!(scene.expire(&mut stall).is_empty());
        assert_eq!(stall.deadline(), None);
    }
}

#[test]
fn a_suspend_restarts_the_stall_timer() {
    let (mut scene, mut stall) = (Scene::of(1), StallDetector::after(Duration::from_secs(60)));
    scene.tell(&mut stall, 0, step(1));
    scene.pass(MINUTE_MS);
    scene.slept(&mut stall);
    assert!(scene.expire(&mut stall).is_empty());
    scene.pass(MINUTE_MS);
    assert_eq!(scene.expire(&mut stall).len(), 1);
    scene.pass(MINUTE_MS);
    scene.slept(&mut stall);
    assert!(scene.expire(&mut stall).is_empty(), "also between two blames");
}

//! Checks that the reason given before any fault is also the reason of the refusal.

use super::*;
use crate::detect::fixture::Scene;
use crate::job::{GroupId, GroupKind, Rank, WorkerSpec};
use crate::recover::in_process::tests::{incident, killed, linked};
use crate::recover::{EmergencyCheckpoint, Grow, Recover, RecoveryStrategy, Retry, Shrink};
use std::sync::Arc;

#[test]
fn an_unsupported_reason_equals_the_refusal_of_the_proposal() {
    let mut alone = JobSpec::new("test", 1, WorkerSpec::new(["train"]));
    let group = |rank: u32| (GroupId { kind: GroupKind::Dp, index: rank }, vec![Rank(rank)]);
    let mut apart = JobSpec::new("test", 3, WorkerSpec::new(["train"]));
    let whole = apart.clone();
    apart.policy.min_ranks = 1;
    apart.groups = (0..3).map(group).collect();
    alone.policy.min_ranks = 1;
    let (in_place, elsewhere, shrink) = (Recover::in_place(), Recover::elsewhere(), Shrink::new().before_restart());
    let (grow, dump, retry) = (Grow::new(), EmergencyCheckpoint::then_restart(), Retry::new());
    let cases: [(&dyn RecoveryStrategy, &JobSpec, &str); 8] = [
        (&in_place, &alone, "there is no other rank from which a lost rank could copy its state"),
        (&shrink, &alone, "there is no other rank from which a lost rank could copy its state"),
        (&elsewhere, &apart, "no rank has a replica to copy its state from: every data-parallel group has one member"),
        (&shrink, &apart, "no rank has a replica to copy its state from: every data-parallel group has one member"),
        (&shrink, &whole, "the job needs all of its 3 ranks; set policy.min_ranks to allow fewer"),
        (&grow, &whole, "the job needs all of its 3 ranks; set policy.min_ranks to allow fewer"),
        (&dump, &whole, "the job names no directory for checkpoints (policy.checkpoint_dir)"),
        (
            &EmergencyCheckpoint::then_exit(),
            &whole,
            "the job names no directory for checkpoints (policy.checkpoint_dir)",
        ),
    ];
    for (strategy, spec, why) in cases {
        let said = strategy.unsupported_reason(&JobProfile::of(Arc::new(spec.clone())));
        assert_eq!(said.as_deref(), Some(why), "{}", strategy.name());
        let mut scene = linked(Scene::of(3));
        scene.view.spec = Arc::new(spec.clone());
        let fault = killed(&mut scene, 1);
        assert_eq!(
            strategy.propose(&incident(vec![fault]), &scene.view).map_err(String::from),
            Err(why.into()),
            "{}",
            strategy.name()
        );
    }
    let mut shrinks = whole.clone();
    shrinks.policy.min_ranks = 2;
    let whole = JobProfile::of(Arc::new(shrinks));
    let at = whole.clone().with_rendezvous_service(Some(Name::new("store")));
    for strategy in [&retry as &dyn RecoveryStrategy, &in_place, &elsewhere, &shrink, &grow] {
        assert_eq!(strategy.unsupported_reason(&whole), None, "{}", strategy.name());
        assert_eq!(strategy.unsupported_reason(&at).as_deref(), Some(NO_RENDEZVOUS), "{}", strategy.name());
    }
    let spec = JobSpec::clone(&at.spec).with_service("store", WorkerSpec::new(["serve"]));
    assert_eq!(retry.unsupported_reason(&JobProfile { spec: Arc::new(spec), ..at }), None);
    assert_eq!(elsewhere.unsupported_reason(&whole.clone().with_hosts(1)).as_deref(), Some("there is no other host"));
    assert_eq!(
        (in_place.unsupported_reason(&whole.clone().with_hosts(1)), elsewhere.unsupported_reason(&whole.with_hosts(2))),
        (None, None)
    );
}

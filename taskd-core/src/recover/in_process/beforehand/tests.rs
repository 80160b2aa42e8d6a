//! What is said of a job beforehand, and that a fault is refused in the same words.

use super::*;
use crate::detect::fixture::Scene;
use crate::job::{GroupId, GroupKind, Rank, WorkerSpec};
use crate::recover::in_process::tests::{incident, killed, linked};
use crate::recover::{Dump, Grow, Recover, RecoveryStrategy, Retry, Shrink};
use std::sync::Arc;

#[test]
fn what_can_never_work_is_said_before_and_refused_in_the_same_words() {
    let mut alone = JobSpec::new("test", 1, WorkerSpec::new(["train"]));
    let group = |rank: u32| (GroupId { kind: GroupKind::Dp, index: rank }, vec![Rank(rank)]);
    let mut apart = JobSpec::new("test", 3, WorkerSpec::new(["train"]));
    let whole = apart.clone();
    apart.policy.ranks_min = 1;
    apart.groups = (0..3).map(group).collect();
    alone.policy.ranks_min = 1;
    let (in_place, elsewhere, shrink) = (Recover::in_place(), Recover::elsewhere(), Shrink::new().before_restart());
    let (grow, dump, retry) = (Grow::new(), Dump::and_restart(), Retry::new());
    let cases: [(&dyn RecoveryStrategy, &JobSpec, &str); 8] = [
        (&in_place, &alone, "there is no other rank, which a lost one could take its state from"),
        (&shrink, &alone, "there is no other rank, which a lost one could take its state from"),
        (&elsewhere, &apart, "no rank has a replica to take its state from: every data-parallel group has one member"),
        (&shrink, &apart, "no rank has a replica to take its state from: every data-parallel group has one member"),
        (&shrink, &whole, "the job trains with all of its 3 ranks; policy.ranks_min says with how few it may go on"),
        (&grow, &whole, "the job trains with all of its 3 ranks; policy.ranks_min says with how few it may go on"),
        (&dump, &whole, "the job names no directory for checkpoints (policy.dump_dir)"),
        (&Dump::and_exit(), &whole, "the job names no directory for checkpoints (policy.dump_dir)"),
    ];
    for (strategy, spec, why) in cases {
        let said = strategy.cannot(&Beforehand::of(Arc::new(spec.clone())));
        assert_eq!(said.as_deref(), Some(why), "{}", strategy.name());
        let mut scene = linked(Scene::of(3));
        scene.view.spec = Arc::new(spec.clone());
        let fault = killed(&mut scene, 1);
        assert_eq!(strategy.propose(&incident(vec![fault]), &scene.view), Err(why.into()), "{}", strategy.name());
    }
    let mut shrinks = whole.clone();
    shrinks.policy.ranks_min = 2;
    let whole = Beforehand::of(Arc::new(shrinks));
    let at = whole.clone().meeting_at(Some(Name::new("store")));
    for strategy in [&retry as &dyn RecoveryStrategy, &in_place, &elsewhere, &shrink, &grow] {
        assert_eq!(strategy.cannot(&whole), None, "{}", strategy.name());
        assert_eq!(strategy.cannot(&at).as_deref(), Some(NO_MEETING), "{}", strategy.name());
    }
    let spec = JobSpec::clone(&at.spec).with_service("store", WorkerSpec::new(["serve"]));
    assert_eq!(retry.cannot(&Beforehand { spec: Arc::new(spec), ..at }), None);
    assert_eq!(elsewhere.cannot(&whole.clone().with_hosts(1)).as_deref(), Some("there is no other host"));
    assert_eq!((in_place.cannot(&whole.clone().with_hosts(1)), elsewhere.cannot(&whole.with_hosts(2))), (None, None));
}

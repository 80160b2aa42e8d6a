//! Each way to be covered, and each way not to be covered.

use super::*;
use crate::job::{GroupId, GroupKind, InMemoryCheckpoints, JobSpec, WorkerSpec};
use crate::recover::defaults;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

const PROGRAM: CoveredBy = CoveredBy::Program;

fn job(ranks: u32) -> JobSpec {
    JobSpec::new("job", ranks, WorkerSpec::new(["train"]))
}

fn groups(members: &[&[u32]]) -> BTreeMap<GroupId, Vec<Rank>> {
    let group = |(index, ranks): (usize, &&[u32])| {
        let id = GroupId { kind: GroupKind::Dp, index: u32::try_from(index).unwrap() };
        (id, ranks.iter().map(|rank| Rank(*rank)).collect())
    };
    members.iter().enumerate().map(group).collect()
}

/// Returns the sources that cover one rank, a host, all replicas, and all ranks.
fn by(spec: JobSpec, hosts: usize) -> [Vec<CoveredBy>; 4] {
    let covered = coverage(&defaults(), &JobProfile::of(Arc::new(spec)).with_hosts(hosts));
    let losses: Vec<Loss> = covered.iter().map(|covered| covered.loss).collect();
    assert_eq!(losses, [Loss::Rank, Loss::Host, Loss::Replicas, Loss::All]);
    covered.into_iter().map(|covered| covered.by).collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn configured_checkpoints_cover_each_loss_that_they_can() {
    let mut spec = job(4);
    assert_eq!(by(spec.clone(), 1), [vec![CoveredBy::Replica, PROGRAM], vec![PROGRAM], vec![PROGRAM], vec![PROGRAM]]);
    spec.policy.checkpoint_dir = Some("/dumps".into());
    spec.policy.in_memory_checkpoints = NonZeroU64::new(10).map(InMemoryCheckpoints::every);
    let memory = CoveredBy::Memory { every: 10 };
    assert_eq!(
        by(spec, 1),
        [
            vec![CoveredBy::Replica, CoveredBy::Dump, memory, PROGRAM],
            vec![PROGRAM],
            vec![memory, PROGRAM],
            vec![memory, PROGRAM]
        ]
    );
}

#[test]
fn a_job_without_replicas_has_its_copies_and_no_dump() {
    for mut spec in [job(1), job(2).with_groups(groups(&[&[0], &[1]]))] {
        spec.policy.checkpoint_dir = Some("/dumps".into());
        assert_eq!(by(spec.clone(), 1)[0], [PROGRAM], "{}", spec.ranks);
        spec.policy.in_memory_checkpoints = NonZeroU64::new(5).map(InMemoryCheckpoints::every);
        assert_eq!(by(spec.clone(), 1)[0], [CoveredBy::Memory { every: 5 }, PROGRAM], "{}", spec.ranks);
    }
}

#[test]
fn a_host_is_covered_where_each_of_its_ranks_has_a_replica_on_another_one() {
    let on = |spec: JobSpec| spec.with_nodes(["a", "b"].map(|host| NodeId(Name::new(host))));
    let of_host = |spec: JobSpec| by(spec, 2)[1].clone();
    let some = job(4).with_groups(groups(&[&[0, 2]]));
    assert_eq!(by(on(some), 2)[0], [PROGRAM], "ranks 1 and 3 have none");
    assert_eq!(of_host(on(job(4))), [CoveredBy::Replica, PROGRAM]);
    assert_eq!(of_host(on(job(4).with_groups(groups(&[&[0, 2], &[1, 3]])))), [CoveredBy::Replica, PROGRAM]);
    assert_eq!(of_host(on(job(4).with_groups(groups(&[&[0, 1], &[2, 3]])))), [PROGRAM], "both are on one host");
    let mut copied = on(job(4).with_groups(groups(&[&[0, 1], &[2, 3]])));
    copied.policy.in_memory_checkpoints = NonZeroU64::new(10).map(InMemoryCheckpoints::every);
    let memory = CoveredBy::Memory { every: 10 };
    assert_eq!(of_host(copied), [memory, PROGRAM], "ranks on the other host hold second copies");
    let unknown = coverage(&defaults(), &JobProfile::of(Arc::new(job(4))).with_hosts(2));
    assert!(unknown.iter().all(|covered| covered.loss != Loss::Host), "nobody knows where they sit: {unknown:?}");
}

#[test]
fn strategies_that_are_forbidden_or_impossible_cover_no_loss() {
    let mut spec = job(4);
    for name in FROM_A_REPLICA {
        spec.policy.strategies.insert(name, Permission::Never);
    }
    assert_eq!(by(spec, 1)[0], [PROGRAM]);
    let at = JobProfile::of(Arc::new(job(4))).with_rendezvous_service(Some(Name::new("store")));
    assert_eq!(coverage(&defaults(), &at)[0].by, [PROGRAM], "its ranks could not meet");
}

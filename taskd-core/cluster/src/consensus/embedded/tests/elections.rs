//! Formation, campaign, resignation.

use super::world::{LONG, World, candidate, eventually, host, value, write};
use crate::consensus::embedded::{EmbeddedConfig, Membership, VoterAddress};
use crate::consensus::{Consensus, ConsensusError, Epoch, RECORD_BYTES_MAX, Version};
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn three_voters_elect_write_read_and_watch() {
    let world = World::started(3, 0).await;
    let (manager, epoch) = world.elect(&[0, 1, 2]).await;
    let engine = world.engine(manager);
    engine.confirm(epoch).await.expect("in force");
    let before = engine.read().await.expect("read");
    assert_eq!((before.epoch, before.manager.as_ref()), (epoch, Some(&candidate(manager))));

    let client = world.client("job");
    let other = world.engine((manager + 1) % 3);
    let watches = async { tokio::join!(client.watch(before.version), other.watch(before.version)) };
    let (written, (far, near)) = tokio::join!(engine.compare_and_set(epoch, before.version, "world 1".into()), watches);
    let version = written.expect("written");
    assert!(version > before.version);
    assert_eq!(far.expect("watched").version, version);
    assert_eq!(near.expect("watched").version, version);
    for index in 0..3 {
        assert_eq!(value(&world.engine(index)).await, "world 1", "read is linearizable on every voter");
    }
    assert_eq!(value(&client).await, "world 1");
    client.confirm(epoch).await.expect("in force");

    let conflict = engine.compare_and_set(epoch, before.version, "world 2".into()).await;
    assert_eq!(conflict, Err(ConsensusError::Conflict { expected: before.version, found: version }));
    let refused = engine.compare_and_set(Epoch(epoch.0 + 1), version, "world 2".into()).await;
    assert!(matches!(refused, Err(ConsensusError::Superseded { .. })), "{refused:?}");
    let version = client.compare_and_set(epoch, version, "through any voter".into()).await.expect("written");
    let largest = engine.compare_and_set(epoch, version, vec![7; RECORD_BYTES_MAX].into()).await.expect("the limit");
    let above = engine.compare_and_set(epoch, largest, vec![7; RECORD_BYTES_MAX + 1].into()).await;
    assert!(matches!(above, Err(ConsensusError::Refused(_))), "{above:?}");
    let status = other.status();
    assert_eq!((status.membership, status.voters.len()), (Membership::Voter, 3));
    assert_eq!(status.leader, Some(world.places[manager].clone()));
    assert!(engine.info().statement.contains("loss of 1 of their hosts"), "{:?}", engine.info());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn resignation_lets_the_next_candidate_lead() {
    let world = World::started(3, 0).await;
    let (first, epoch) = world.elect(&[0]).await;
    write(&world.engine(first), epoch, "kept").await;
    let next = world.campaign(2);
    world.engine(first).resign(epoch).await.expect("resigned");
    world.engine(first).resign(epoch).await.expect("a second time changes nothing");
    let over = world.engine(first).confirm(epoch).await;
    assert!(matches!(over, Err(ConsensusError::Superseded { .. })), "{over:?}");
    let later = timeout(LONG, next).await.expect("in time").expect("elected");
    assert!(later > epoch);
    assert_eq!(world.engine(first).read().await.expect("read").manager, Some(candidate(2)));
    world.engine(first).resign(epoch).await.expect("an old epoch");
    world.engine(2).confirm(later).await.expect("still in force");
    assert_eq!(value(&world.engine(0)).await, "kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn dropped_campaign_leaves_no_manager() {
    let world = World::started(3, 0).await;
    let (first, epoch) = world.elect(&[1]).await;
    let engine = world.engine(first);
    engine.resign(epoch).await.expect("resigned");
    // Polled once the grace period is over, and dropped while the campaign is written.
    let own = candidate(first);
    let mut dropped = Box::pin(engine.campaign(&own));
    let mut record = engine.read().await.expect("read");
    while record.manager.is_none() {
        tokio::select! {
            biased;
            newer = engine.watch(record.version) => record = newer.expect("watched"),
            elected = &mut dropped => {
                // It returned before it could be dropped.
                engine.resign(elected.expect("elected")).await.expect("resigned");
                break;
            }
        }
    }
    drop(dropped);
    eventually("the record has no manager", || engine.inner.machine.office().record.manager.is_none()).await;
    let (_, later) = world.elect(&[0]).await;
    assert!(later > epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn witness_passes_the_log_on_and_never_manages() {
    let mut world = World::new(3, 0);
    world.places[2] = world.places[2].clone().with_witness();
    for index in 0..3 {
        world.start(index, "boot-1").await;
    }
    let refused = world.engine(2).campaign(&candidate(2)).await;
    assert!(matches!(refused, Err(ConsensusError::Refused(_))), "{refused:?}");
    let (_, epoch) = world.elect(&[0]).await;
    // Only the witness has the last write when the manager is lost.
    world.side(1, 1);
    write(&world.engine(0), epoch, "only on the witness").await;
    world.kill(0).await;
    world.side(1, 0);
    let (manager, later) = world.elect(&[1]).await;
    assert!(later > epoch);
    assert_eq!(value(&world.engine(manager)).await, "only on the witness");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn job_is_formed_only_when_all_listed_voters_answer() {
    let mut world = World::new(3, 0);
    world.start(0, "boot-1").await;
    world.start(1, "boot-1").await;
    let first = world.engine(0);
    eventually("the missing voter is named", || {
        first.status().forming.is_some_and(|text| text.contains("node host-2") && text.contains("does not answer"))
    })
    .await;
    assert_eq!(first.status().membership, Membership::Outside);
    let unavailable = first.read().await;
    assert!(matches!(unavailable, Err(ConsensusError::Unavailable(_))), "{unavailable:?}");
    world.start(2, "boot-1").await;
    world.elect(&[1]).await;
    eventually("formed", || first.status().forming.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn voters_of_another_job_are_refused_by_name() {
    let world = World::started(1, 0).await;
    let (_, epoch) = world.elect(&[0]).await;
    write(&world.engine(0), epoch, "x").await;
    let error = world.client("other").read().await.expect_err("another job").to_string();
    assert!(error.contains("belongs to the job `job`, and the request to `other`"), "{error}");
    let watch = world.client("other").watch(Version(0)).await;
    assert!(matches!(watch, Err(ConsensusError::Unavailable(_))), "{watch:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn impossible_lists_and_used_directories_are_refused() {
    let world = World::started(1, 0).await;
    let in_use = crate::consensus::Embedded::start(world.config(0, "boot-1")).await.expect_err("in use").to_string();
    assert!(in_use.contains("in use by another process"), "{in_use}");
    let place = |index: usize, port: u16| VoterAddress::new(host(index), format!("127.0.0.1:{port}"));
    let refused = |own: VoterAddress, listed: Vec<VoterAddress>| {
        let config = EmbeddedConfig::new("job", own, listed, world.store(9));
        async { crate::consensus::Embedded::start(config).await.expect_err("refused").to_string() }
    };
    let two = refused(place(0, 1), vec![place(0, 1), place(1, 2)]).await;
    assert!(two.contains("it has 2 voters; 3 or 5 are possible"), "{two}");
    let twice = refused(place(0, 1), vec![place(0, 1), place(1, 2), place(1, 3)]).await;
    assert!(twice.contains("the same host"), "{twice}");
    let elsewhere = refused(place(0, 9), vec![place(0, 1), place(1, 2), place(2, 3)]).await;
    assert!(elsewhere.contains("the list has node host-0 at 127.0.0.1:1"), "{elsewhere}");
    let witness = refused(place(0, 1).with_witness(), vec![place(0, 1).with_witness(), place(1, 2), place(2, 3)]).await;
    assert!(witness.contains("cannot be a witness"), "{witness}");
}

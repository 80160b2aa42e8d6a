//! Voters that come back after a reboot.

use super::world::{World, eventually, host, value, write};
use crate::consensus::embedded::Membership;
use crate::consensus::{Consensus, ConsensusError, Version};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn rebooted_voter_votes_only_after_admission() {
    let mut world = World::started(3, 0).await;
    let (_, epoch) = world.elect(&[0]).await;
    let manager = world.engine(0);
    write(&manager, epoch, "1").await;
    let before = world.engine(2).status().voter;
    world.kill(2).await;
    let rebooted = world.start(2, "boot-2").await;
    let status = rebooted.status();
    assert_eq!(status.discarded.as_deref(), Some("the machine was booted again"));
    assert_eq!(status.membership, Membership::Outside);
    assert_ne!(status.voter, before);
    assert!(world.store(2).join("voter.redb.discarded").exists());
    assert_eq!(value(&rebooted).await, "1", "it reads like a host without a voter");

    world.side(1, 1);
    let alone = manager.confirm(epoch).await;
    assert!(matches!(alone, Err(ConsensusError::Unavailable(_))), "its vote must not count: {alone:?}");
    world.side(1, 0);
    eventually("the third voter is back", || manager.status().leader.is_some()).await;
    rebooted.request_admission(None).await.expect("admitted");
    rebooted.request_admission(None).await.expect("a second time changes nothing");
    eventually("it votes", || rebooted.status().membership == Membership::Voter).await;
    assert_eq!(manager.status().voters.len(), 3);

    world.side(1, 1);
    manager.confirm(epoch).await.expect("its vote counts");
    write(&manager, epoch, "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn rebooted_voter_is_admitted_by_its_own_request() {
    let mut world = World::started(3, 1).await;
    let (_, epoch) = world.elect(&[0]).await;
    let manager = world.engine(0);
    write(&manager, epoch, "1").await;
    world.kill(2).await;
    assert_eq!(manager.silent_voters().await.len(), 1);
    let (rebooted, spare) = (world.start(2, "boot-2").await, world.start(3, "boot-1").await);
    assert_eq!(manager.silent_voters().await, [], "its host answers, so it is not lost");
    let kept = [rebooted.clone(), spare.clone()].map(|voter| {
        tokio::spawn(async move {
            voter.keep_admitted().await;
        })
    });
    eventually("it votes", || rebooted.status().membership == Membership::Voter).await;
    assert_eq!(spare.status().membership, Membership::Outside, "it replaces no voter by itself");
    assert_eq!(manager.status().voters.len(), 3);
    kept.iter().for_each(tokio::task::JoinHandle::abort);

    // A host that was never listed replaces a lost voter when the leader orders it.
    world.kill(2).await;
    let lost = world.places[2].clone();
    eventually("the loss is seen", || manager.status().leader.is_some()).await;
    let silent = manager.silent_voters().await;
    assert_eq!(silent.into_iter().map(|(_, place)| place).collect::<Vec<_>>(), std::slice::from_ref(&lost));
    manager.replace_voter(&lost.host, &world.places[3]).await.expect("a majority is left");
    eventually("it votes", || spare.status().membership == Membership::Voter).await;
    manager.confirm(epoch).await.expect("in force");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn rebooted_first_voter_forms_no_second_job() {
    let mut world = World::started(3, 0).await;
    let (_, epoch) = world.elect(&[1]).await;
    let manager = world.engine(1);
    write(&manager, epoch, "kept").await;
    world.kill(0).await;
    let first = world.start(0, "boot-2").await;
    eventually("it waits", || first.status().forming.is_some_and(|text| text.contains("waits for admission"))).await;
    assert_eq!(first.status().last_log, None);
    first.request_admission(None).await.expect("admitted");
    eventually("it votes", || first.status().membership == Membership::Voter).await;
    manager.confirm(epoch).await.expect("in force");
    assert_eq!(value(&first).await, "kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn second_voter_of_a_host_is_refused_while_the_first_answers() {
    let mut world = World::new(3, 2);
    world.places[4].host = host(3);
    let mut world = world.start_all().await;
    let (_, epoch) = world.elect(&[0]).await;
    world.kill(2).await;
    let spare = world.start(3, "boot-1").await;
    let unnamed = spare.request_admission(None).await.expect_err("no voter to replace").to_string();
    assert!(unnamed.contains("node host-3 has had no voter: name the lost voter"), "{unnamed}");
    let unknown = spare.request_admission(Some(&host(9))).await.expect_err("unknown").to_string();
    assert!(unknown.contains("node host-9 has no voter to replace"), "{unknown}");
    spare.request_admission(Some(&host(2))).await.expect("admitted");
    let second = world.start(4, "boot-1").await;
    let refused = second.request_admission(None).await.expect_err("the first answers").to_string();
    assert!(refused.contains("still answers"), "{refused}");
    world.kill(3).await;
    second.request_admission(None).await.expect("admitted in the place of the lost one");
    world.engine(0).confirm(epoch).await.expect("in force");

    // The first voter of host-2 returns with its store: it was replaced, and disturbs nothing.
    let returned = world.start(2, "boot-1").await;
    eventually("it hears no leader", || returned.inner.leaderless() > world.settings.silence()).await;
    world.engine(0).confirm(epoch).await.expect("in force");
    write(&world.engine(0), epoch, "news").await;
    let version = world.engine(0).read().await.expect("read").version;
    assert_eq!(returned.watch(Version(version.0 - 1)).await.expect("through another voter").version, version);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn listed_voters_that_were_all_rebooted_form_no_second_job() {
    let mut world = World::started(3, 0).await;
    let (_, epoch) = world.elect(&[0]).await;
    write(&world.engine(0), epoch, "1").await;
    eventually("all have the log", || (0..3).all(|index| world.engine(index).status().applied > Some(1))).await;
    for index in 0..3 {
        world.kill(index).await;
    }
    // The first has an empty directory, so that only the answers of the others show that the job was formed.
    std::fs::remove_dir_all(world.store(0)).expect("removed");
    for index in 0..3 {
        world.start(index, "boot-2").await;
    }
    let first = world.engine(0);
    eventually("it waits", || first.status().forming.is_some_and(|text| text.contains("has or had a log"))).await;
    for index in 0..3 {
        world.kill(index).await;
        std::fs::remove_dir_all(world.store(index)).expect("removed");
    }
    for index in 0..3 {
        world.start(index, "boot-2").await;
    }
    world.elect(&[0]).await;
}

//! Voters that are lost.

use super::world::{LONG, World, eventually, host, value, write};
use crate::consensus::embedded::Membership;
use crate::consensus::{Consensus, ConsensusError};
use tokio::time::{Instant, timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn loss_of_the_manager_ends_its_epoch() {
    let mut world = World::started(3, 0).await;
    let (manager, epoch) = world.elect(&[0, 1, 2]).await;
    write(&world.engine(manager), epoch, "before").await;
    let others: Vec<usize> = (0..3).filter(|index| *index != manager).collect();
    let campaigns: Vec<_> = others.iter().map(|index| world.campaign(*index)).collect();
    eventually("both stand", || others.iter().all(|index| world.engine(*index).status().applied.is_some())).await;
    let lost = Instant::now();
    world.kill(manager).await;
    let (later, _, _) = timeout(LONG, futures::future::select_all(campaigns)).await.expect("in time");
    let later = later.expect("elected");
    assert!(later > epoch);
    // The bound states a machine that is not overloaded; this one may be.
    assert!(lost.elapsed() < world.settings.failover() * 10, "{:?}", lost.elapsed());
    assert_eq!(value(&world.engine(others[0])).await, "before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn five_voters_continue_without_two_and_stop_without_three() {
    let mut world = World::started(5, 0).await;
    let (manager, epoch) = world.elect(&[0]).await;
    write(&world.engine(manager), epoch, "1").await;
    world.kill(0).await;
    world.kill(1).await;
    let (manager, epoch) = world.elect(&[2, 3, 4]).await;
    write(&world.engine(manager), epoch, "2").await;
    let lost = if manager == 4 { 3 } else { 4 };
    let left = (2..5).find(|index| *index != manager && *index != lost).expect("one");
    world.kill(lost).await;
    let engine = world.engine(manager);
    let (version, other) = (engine.inner.machine.office().record.version, world.engine(left));
    let write = engine.compare_and_set(epoch, version, "3".into());
    let (confirm, read, write, elsewhere) = tokio::join!(engine.confirm(epoch), engine.read(), write, other.read());
    for result in [confirm, read.map(drop), write.map(drop)] {
        let error = result.expect_err("no majority");
        let text = error.to_string();
        assert!(matches!(error, ConsensusError::Unavailable(_)), "{text}");
        assert!(text.contains("3 of 5 voters do not answer (") && text.contains("), and 3 must"), "{text}");
        assert!(text.contains("node host-0 at 127.0.0.1:"), "{text}");
    }
    assert!(matches!(elsewhere, Err(ConsensusError::Unavailable(_))), "{elsewhere:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn voters_lost_one_after_the_other_are_replaced() {
    let mut world = World::started(3, 2).await;
    let (mut manager, mut epoch) = world.elect(&[0, 1, 2]).await;
    write(&world.engine(manager), epoch, "0").await;
    for (round, spare) in [3, 4].into_iter().enumerate() {
        // The manager is lost each time: after two rounds one of the first voters is left.
        world.kill(manager).await;
        let lost = manager;
        let left: Vec<usize> = world.processes.keys().copied().filter(|index| *index < 3 + round).collect();
        (manager, epoch) = world.elect(&left).await;
        world.start(spare, "boot-1").await;
        let engine = world.engine(manager);
        engine.replace_voter(&host(lost), &world.places[spare]).await.expect("replaced");
        let status = engine.status();
        assert_eq!(status.voters.len(), 3);
        assert!(status.voters.iter().any(|(_, place)| place.host == host(spare)), "{status:?}");
        assert!(!status.voters.iter().any(|(_, place)| place.host == host(lost)), "{status:?}");
        eventually("it votes", || world.engine(spare).status().membership == Membership::Voter).await;
        write(&engine, epoch, &(round + 1).to_string()).await;
        assert_eq!(value(&world.engine(spare)).await, (round + 1).to_string());
    }
    let again = world.engine(manager).replace_voter(&host(9), &world.places[4]).await;
    assert_eq!(again, Ok(()), "a voter that was admitted stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn restart_of_all_voters_in_one_boot_keeps_the_record() {
    let mut world = World::started(3, 0).await;
    let (manager, epoch) = world.elect(&[0, 1, 2]).await;
    write(&world.engine(manager), epoch, "kept").await;
    let before = world.engine(manager).read().await.expect("read");
    for index in 0..3 {
        world.kill(index).await;
    }
    for index in 0..3 {
        let engine = world.start(index, "boot-1").await;
        assert_eq!(engine.status().discarded, None);
    }
    let (manager, later) = world.elect(&[0, 1, 2]).await;
    let after = world.engine(manager).read().await.expect("read");
    assert_eq!(after.value, before.value);
    assert!(later > epoch && after.version > before.version, "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn voter_far_behind_receives_a_snapshot_of_a_short_log() {
    let mut world = World::started(3, 0).await;
    let (manager, epoch) = world.elect(&[0]).await;
    world.kill(2).await;
    let engine = world.engine(manager);
    let mut version = engine.read().await.expect("read").version;
    for round in 0..90_u32 {
        version = engine.compare_and_set(epoch, version, round.to_string().into()).await.expect("written");
    }
    let purged = engine.inner.metrics().purged.expect("the log was shortened").index;
    assert!(purged > 40, "{purged}");
    let behind = world.start(2, "boot-1").await;
    eventually("the record arrives", || behind.inner.machine.office().record.version == version).await;
    assert!(behind.inner.metrics().snapshot.is_some_and(|last| last.index >= purged));
}

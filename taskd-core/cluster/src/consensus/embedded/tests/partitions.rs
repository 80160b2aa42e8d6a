//! Voters that cannot reach each other.

use super::world::{World, eventually, value, write};
use crate::consensus::{Consensus, ConsensusError};

fn over(result: &Result<(), ConsensusError>) -> bool {
    matches!(result, Err(ConsensusError::Unavailable(_) | ConsensusError::Superseded { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn manager_in_a_minority_confirms_and_writes_nothing() {
    let world = World::started(3, 0).await;
    let (old, epoch) = world.elect(&[0, 1, 2]).await;
    let (engine, others) = (world.engine(old), (0..3).filter(|index| *index != old).collect::<Vec<_>>());
    write(&engine, epoch, "before").await;
    let version = engine.read().await.expect("read").version;
    world.side(old, 1);
    let (alone, elected) = tokio::join!(engine.compare_and_set(epoch, version, "alone".into()), world.elect(&others));
    assert!(over(&alone.clone().map(drop)), "{alone:?}");
    let (new, later) = elected;
    assert!(later > epoch);
    write(&world.engine(new), later, "after").await;
    let (confirmed, read_alone) = tokio::join!(engine.confirm(epoch), engine.read());
    assert!(over(&confirmed), "{confirmed:?}");
    assert!(matches!(read_alone, Err(ConsensusError::Unavailable(_))), "{read_alone:?}");

    world.side(old, 0);
    eventually("the old manager follows", || engine.inner.machine.office().record.epoch == later).await;
    for result in [engine.confirm(epoch).await, engine.compare_and_set(epoch, version, "late".into()).await.map(drop)] {
        assert!(matches!(result, Err(ConsensusError::Superseded { .. })), "{result:?}");
    }
    assert_eq!(value(&engine).await, "after");
    world.engine(new).confirm(later).await.expect("the return of the old manager disturbs nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn voter_that_was_cut_off_does_not_end_the_epoch() {
    let world = World::started(3, 0).await;
    let (_, epoch) = world.elect(&[0]).await;
    let (manager, cut) = (world.engine(0), world.engine(1));
    write(&manager, epoch, "1").await;
    let waits = world.campaign(1);
    let term = manager.status().term;
    world.side(1, 1);
    eventually("it hears no leader for longer than a failover", || cut.inner.leaderless() > world.settings.failover())
        .await;
    assert_eq!(cut.status().term, term, "without a majority that hears no leader it does not stand");
    world.side(1, 0);
    eventually("it is back", || cut.inner.leaderless() < world.settings.election_min()).await;
    manager.confirm(epoch).await.expect("still in force");
    assert!(!waits.is_finished());
}

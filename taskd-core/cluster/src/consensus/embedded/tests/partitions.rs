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
    let write_alone = engine.compare_and_set(epoch, version, "alone".into()).await.map(drop);
    assert!(over(&write_alone), "{write_alone:?}");
    let (new, later) = world.elect(&others).await;
    assert!(later > epoch);
    write(&world.engine(new), later, "after").await;
    let confirmed = engine.confirm(epoch).await;
    assert!(over(&confirmed), "{confirmed:?}");
    let read_alone = engine.read().await.map(drop);
    assert!(matches!(read_alone, Err(ConsensusError::Unavailable(_))), "{read_alone:?}");

    world.side(old, 0);
    eventually("the old manager follows", || engine.inner.machine.office().record.epoch == later).await;
    for result in [engine.confirm(epoch).await, engine.compare_and_set(epoch, version, "late".into()).await.map(drop)] {
        assert!(matches!(result, Err(ConsensusError::Superseded { .. })), "{result:?}");
    }
    assert_eq!(value(&engine).await, "after");
    world.engine(new).confirm(later).await.expect("the return of the old manager disturbs nothing");
}

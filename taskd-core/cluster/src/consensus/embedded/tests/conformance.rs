//! The contract of consensus engines, on three voters that are killed and cut off.

use super::world::World;
use crate::consensus::conformance;
use std::time::Duration;
use tokio::sync::Mutex;

fn index(host: u32) -> usize {
    usize::try_from(host).expect("a host") - 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn embedded_engine_keeps_the_contract() {
    let world = World::started(3, 0).await;
    let failover = world.settings.failover();
    let world = Mutex::new(world);
    let start = async |host| {
        let mut world = world.lock().await;
        match world.processes.contains_key(&index(host)) {
            true => world.engine(index(host)),
            false => world.start(index(host), "boot-1").await,
        }
    };
    let suite = conformance::consensus(start)
        .with_kill(async |host| world.lock().await.kill(index(host)).await)
        .with_cut(
            async |host| world.lock().await.side(index(host), 1),
            async |host| world.lock().await.side(index(host), 0),
        )
        // The engine states its times for a machine that is not overloaded; this one may be.
        .with_slack(failover * 5)
        .with_patience(Duration::from_secs(60));
    let report = suite.assert().await;
    assert!(report.skipped().is_empty(), "{report}");
}

//! Figures of this machine: `cargo test -p taskd-cluster --release -- --ignored figures --nocapture`.

use super::world::{World, eventually, write};
use crate::consensus::Consensus;
use std::time::Duration;
use tokio::time::Instant;

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!(
        "{what}: {} runs, least {:?}, median {:?}, p95 {:?}, most {:?}",
        times.len(),
        at(0),
        at(50),
        at(95),
        at(100)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "measures"]
async fn figures_of_failover_and_writes() {
    let mut failovers = Vec::new();
    let mut world = World::new(3, 0).in_production().start_all().await;
    let (mut manager, mut epoch) = world.elect(&[0, 1, 2]).await;
    for run in 0..20 {
        write(&world.engine(manager), epoch, &run.to_string()).await;
        let others: Vec<usize> = (0..3).filter(|index| *index != manager).collect();
        let campaigns: Vec<_> = others.iter().map(|index| world.campaign(*index)).collect();
        tokio::time::sleep(world.settings.heartbeat() * 3).await;
        let lost = Instant::now();
        world.kill(manager).await;
        let (later, which, campaigns) = futures::future::select_all(campaigns).await;
        failovers.push(lost.elapsed());
        campaigns.iter().for_each(tokio::task::JoinHandle::abort);
        let back = world.start(manager, "boot-1").await;
        (manager, epoch) = (others[which], later.expect("elected"));
        let leader = world.engine(manager);
        eventually("the lost voter is back", || back.status().last_log == leader.status().last_log).await;
    }
    show("failover, three voters, default settings", failovers);
    let engine = world.engine(manager);
    let mut version = engine.read().await.expect("read").version;
    let (mut writes, mut confirms) = (Vec::new(), Vec::new());
    for _ in 0..300 {
        let begun = Instant::now();
        version = engine.compare_and_set(epoch, version, vec![1; 4096].into()).await.expect("written");
        writes.push(begun.elapsed());
        let begun = Instant::now();
        engine.confirm(epoch).await.expect("confirmed");
        confirms.push(begun.elapsed());
    }
    show("write of 4 KiB, three voters, fsync", writes);
    show("confirm, three voters", confirms);
}

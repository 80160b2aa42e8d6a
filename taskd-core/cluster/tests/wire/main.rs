//! The launcher of a host, called over real connections, keeps the contract of launchers: also when connections break in the
//! middle of calls, and when the manager changes.

#![allow(clippy::cast_possible_truncation, reason = "the numbers of a test are small")]

mod bad_input;
mod cluster;
mod copies;
mod dialling;
mod lease;
mod links;
mod majority;
mod members;
mod pausable;
mod records;
mod relay;
mod returns;
mod sources;
mod standby;
mod standbys;
mod strangers;
mod versions;
mod warm;
mod without_lease;

use cluster::{Cluster, Owner, PATIENCE, Proxy, agent};
use std::sync::atomic::Ordering;
use std::time::Duration;
use taskd_cluster::ClusterSettings;
use taskd_testing::testing::conformance;
use taskd_testing::testing::conformance::launcher::CALLS_REACH_INNER;
use taskd_testing::testing::doubles::FakeLauncher;

/// Why `detach` does not reach the launcher of an agent.
const AGENT_OWNS: &str = "the agent owns the launcher of its host, and keeps it when a manager detaches";

/// Settings for a machine that is busy with other tests.
fn settings() -> ClusterSettings {
    let ms = Duration::from_millis;
    ClusterSettings::default().with_silent_after(ms(3000)).with_lease(ms(20_000))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_over_the_wire_keeps_the_contract() {
    let cluster = Cluster::new(settings()).await;
    let fake = FakeLauncher::new();
    let _agent = agent(&cluster, "host", fake.attach(), None);
    let suite = conformance::launcher(async |_| Owner::new(cluster.manager(1).await), fake.programs());
    let suite = suite.without(CALLS_REACH_INNER, AGENT_OWNS);
    let report = suite.with_patience(PATIENCE).assert().await;
    println!("{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_over_connections_that_break_keeps_the_contract() {
    let cluster = Cluster::new(settings()).await;
    let fake = FakeLauncher::new();
    // Each connection breaks somewhere else, from the middle of the handshake to the middle of a long answer.
    let proxy = Proxy::new(cluster.address, |number| Some(300 + number * 977 % 6000)).await;
    let _agent = agent(&cluster, "host", fake.attach(), Some(&proxy));
    let suite = conformance::launcher(async |_| Owner::new(cluster.manager(1).await), fake.programs());
    let suite = suite.without(CALLS_REACH_INNER, AGENT_OWNS);
    let report = suite.with_patience(PATIENCE).with_settle(Duration::from_secs(1)).assert().await;
    println!("{report}; {} connections broke", proxy.cuts.load(Ordering::Relaxed));
    assert!(proxy.cuts.load(Ordering::Relaxed) > 10, "connections broke during calls");
}

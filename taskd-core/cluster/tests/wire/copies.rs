//! What agents add to the environment of ranks: the job's secret, the address of their host, and the rank on another host
//! that holds second copies of their in-memory checkpoints.

use crate::cluster::{Cluster, agent_with};
use crate::settings;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use taskd_cluster::Forwarder;
use taskd_runtime::job::{Incarnation, Member, NodeId, ProcId, Rank, World};
use taskd_runtime::launch::{
    IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, LaunchError, Launcher, Place, StartBatch, StartOrder,
};
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};

/// Records the environment of each rank that it starts.
#[derive(Debug)]
struct Recorder {
    inner: FakeLauncher,
    environments: Arc<Mutex<BTreeMap<Rank, BTreeMap<String, String>>>>,
}

#[async_trait::async_trait]
impl Launcher for Recorder {
    taskd_runtime::delegate!(Launcher to |this| this.inner, except start);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let ranks = batch.starts.iter().filter_map(|order| Some((order.proc.role.rank()?, order.spec.env.clone())));
        self.environments.lock().expect("no panic").extend(ranks);
        self.inner.start(batch).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_get_the_address_of_their_host_and_a_holder_in_another_domain() {
    let cluster = Cluster::new(settings()).await;
    let environments: Arc<Mutex<BTreeMap<Rank, BTreeMap<String, String>>>> = Arc::default();
    // The next host of each is behind the same switch.
    let hosts = [("n1", "l1"), ("n2", "l1"), ("n3", "l2"), ("n4", "l2")];
    let agents = hosts.map(|(host, leaf)| {
        let recorder = Recorder { inner: FakeLauncher::with_nodes([host], 1), environments: Arc::clone(&environments) };
        let forwarder = Forwarder::new("job", cluster.security());
        let address = format!("10.0.0.{}:1", &host[1..]);
        agent_with(&cluster, host, recorder, None, |agent| agent.label("leaf", leaf).forwarder(forwarder, address))
    });
    let manager = cluster.manager(agents.len()).await;
    let member =
        |host: &str| Member { incarnation: Incarnation(1), node: Some(NodeId(host.to_owned().into())), device: None };
    let world = World::first((0..).map(Rank).zip(hosts.map(|(host, _)| member(host))).collect());
    let spec = Arc::new(FakeProgram::Runs.spec().with_env(IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, "10"));
    let starts = (0..).zip(hosts).map(|(rank, (host, _))| {
        StartOrder::new(ProcId::rank(rank, 1), Place::On(NodeId(host.to_owned().into())), Arc::clone(&spec))
    });
    let batch = StartBatch::new(Arc::new(world), starts.collect());
    manager.launcher().start(&batch).await.expect("the hosts are there");

    let environments = environments.lock().expect("no panic").clone();
    let of = |name: &str| -> Vec<String> {
        environments.values().map(|env| env.get(name).cloned().unwrap_or_default()).collect()
    };
    assert_eq!(of("TASKD_HOST"), ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    assert_eq!(of("TASKD_COPY_TO"), ["2", "3", "0", "1"], "{environments:?}");
    let secrets = of("TASKD_SECRET");
    assert!(secrets.iter().all(|secret| secret.len() == 64 && *secret == secrets[0]), "one for all");
}

//! What agents add to the environment of ranks: the job's secret, the address of their host, and the rank on another host
//! that holds second copies of their in-memory checkpoints.

use crate::cluster::{Cluster, agent_with};
use crate::settings;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use taskd_cluster::topology::Topology;
use taskd_cluster::{Forwarder, Places};
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

/// Starts a rank on each of these hosts, which have the labels of a leaf switch. Returns the environments of the ranks.
async fn environments(
    hosts: &[(&'static str, &'static str)],
    places: Option<Places>,
) -> BTreeMap<Rank, BTreeMap<String, String>> {
    let cluster = Cluster::new(settings()).await;
    let environments: Arc<Mutex<BTreeMap<Rank, BTreeMap<String, String>>>> = Arc::default();
    let agents: Vec<_> = hosts
        .iter()
        .map(|(host, leaf)| {
            let recorder =
                Recorder { inner: FakeLauncher::with_nodes([*host], 1), environments: Arc::clone(&environments) };
            let forwarder = Forwarder::new("job", cluster.security());
            let address = format!("10.0.0.{}:1", &host[1..]);
            agent_with(&cluster, host, recorder, None, |agent| agent.label("leaf", *leaf).forwarder(forwarder, address))
        })
        .collect();
    let manager = cluster.manager(agents.len()).await;
    places.into_iter().for_each(|places| manager.set_places(places));
    let member =
        |host: &str| Member { incarnation: Incarnation(1), node: Some(NodeId(host.to_owned().into())), device: None };
    let world = World::first((0..).map(Rank).zip(hosts.iter().map(|(host, _)| member(host))).collect());
    let spec = Arc::new(FakeProgram::Runs.spec().with_env(IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, "10"));
    let starts = (0..).zip(hosts).map(|(rank, (host, _))| {
        StartOrder::new(ProcId::rank(rank, 1), Place::On(NodeId((*host).to_owned().into())), Arc::clone(&spec))
    });
    let batch = StartBatch::new(Arc::new(world), starts.collect());
    manager.launcher().start(&batch).await.expect("the hosts are there");
    environments.lock().expect("no panic").clone()
}

fn of(environments: &BTreeMap<Rank, BTreeMap<String, String>>, name: &str) -> Vec<String> {
    environments.values().map(|env| env.get(name).cloned().unwrap_or_default()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_get_the_address_of_their_host_and_a_holder_in_another_domain() {
    // The next host of each is behind the same switch.
    let environments = environments(&[("n1", "l1"), ("n2", "l1"), ("n3", "l2"), ("n4", "l2")], None).await;
    assert_eq!(of(&environments, "TASKD_HOST"), ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    assert_eq!(of(&environments, "TASKD_COPY_TO"), ["2", "3", "0", "1"], "{environments:?}");
    let secrets = of(&environments, "TASKD_SECRET");
    assert!(secrets.iter().all(|secret| secret.len() == 64 && *secret == secrets[0]), "one for all");
}

/// The labels alone would choose other holders: three of the hosts state the same switch.
#[tokio::test(flavor = "multi_thread")]
async fn the_file_of_the_topology_decides_about_holders_before_the_labels() {
    let file = "levels: leaf\n n1: leaf=l1\n n2: leaf=l2\n n3: leaf=l1";
    let places = Places::Tree(Topology::parse(file).expect("a topology"));
    let hosts = [("n1", "l9"), ("n2", "l9"), ("n3", "l9"), ("n4", "l2")];
    let environments = environments(&hosts, Some(places)).await;
    assert_eq!(of(&environments, "TASKD_COPY_TO"), ["1", "0", "3", "2"], "{environments:?}");
}

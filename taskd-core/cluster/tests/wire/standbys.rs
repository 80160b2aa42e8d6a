//! A consensus engine that does not answer: all candidates together confirm the manager, and nothing is decided.

use crate::cluster::{Cluster, PATIENCE, agent, security};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use taskd_cluster::security::IncomingLimits;
use taskd_cluster::{ClusterSettings, ManagerService};
use taskd_runtime::job::{Counted, ProcId, World};
use taskd_runtime::launch::{Launcher, Place, StartBatch, StartOrder};
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tonic::service::InterceptorLayer;

const LEASE: Duration = Duration::from_secs(4);
/// Longer than a lease, and the time in which the processes of the standbys are learned.
const SEVERAL_LEASES: Duration = Duration::from_secs(10);
/// Time between two looks.
const POLL: Duration = Duration::from_millis(20);

fn settings() -> ClusterSettings {
    ClusterSettings::default().with_silent_after(Duration::from_millis(1500)).with_lease(LEASE)
}

/// The process of a candidate that is not the manager. Dropping it ends its connections, too.
struct Standby(Option<Runtime>);

impl Standby {
    async fn new(listener: std::net::TcpListener, candidates: [SocketAddr; 2]) -> Standby {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let candidates = candidates.map(|address| address.to_string());
        let served = runtime.spawn(async move {
            listener.set_nonblocking(true).expect("a socket");
            let listener = TcpListener::from_std(listener).expect("a socket");
            let security = security().await;
            let service = ManagerService::new(&settings()).with_candidates(candidates, &security);
            let incoming = security.incoming(listener, IncomingLimits::default()).expect("loopback");
            let layer = InterceptorLayer::new(security.require_token());
            let router = tonic::transport::Server::builder().layer(layer).add_service(service.into_server());
            tokio::spawn(router.serve_with_incoming(incoming));
        });
        served.await.expect("it serves");
        Standby(Some(runtime))
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.0.take().expect("not taken before").shutdown_background();
    }
}

async fn start(launcher: &dyn Launcher, world: &Arc<World>, incarnation: u32) -> ProcId {
    let proc = ProcId::rank(0, incarnation);
    let starts = vec![StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(FakeProgram::Runs.spec()))];
    launcher.start(&StartBatch::new(Arc::clone(world), starts)).await.expect("the host is there");
    proc
}

/// Waits until the processes of the standbys are known: the engine has confirmed the manager after their statements.
async fn learned() {
    sleep(Duration::from_secs(3)).await;
}

async fn stops(fake: &FakeLauncher, proc: &ProcId) {
    let stopped = async {
        while fake.runs(proc) {
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, stopped).await.expect("the lease ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_candidates_confirm_a_manager_whose_engine_does_not_answer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let other = listener.local_addr().expect("bound");
    let cluster = Cluster::with_candidates(settings(), Some(other)).await;
    let candidates = [cluster.address, other];
    let running = Standby::new(listener, candidates).await;
    let fake = FakeLauncher::new();
    let host = agent(&cluster, "host", fake.attach(), None);
    let manager = cluster.manager(1).await;
    let (launcher, mut answers) = (manager.launcher(), manager.engine_answers());
    let world = Arc::new(World::first(BTreeMap::new()));
    let first = start(&launcher, &world, 1).await;
    learned().await;

    cluster.consensus.set_paused(true);
    timeout(PATIENCE, answers.wait_for(|answers| !answers)).await.expect("it is noticed").expect("the manager lives");
    let next = Arc::new(world.successor(Counted::No, |_| ()));
    let order = {
        let (launcher, next) = (launcher.clone(), Arc::clone(&next));
        tokio::spawn(async move { start(&launcher, &next, 2).await })
    };
    sleep(SEVERAL_LEASES).await;
    assert!(fake.runs(&first), "training goes on");
    assert!(!order.is_finished(), "no decision is made");

    cluster.consensus.set_paused(false);
    timeout(PATIENCE, answers.wait_for(|answers| *answers)).await.expect("it is noticed").expect("the manager lives");
    let second = timeout(PATIENCE, order).await.expect("decisions resume").expect("no panic");
    assert!(fake.runs(&second) && fake.runs(&first));
    assert_eq!(host.agent.fenced(), 0);

    // Another process at the address of the standby may have been manager in between.
    learned().await;
    cluster.consensus.set_paused(true);
    drop(running);
    let listener = loop {
        match std::net::TcpListener::bind(other) {
            Ok(listener) => break listener,
            Err(_) => sleep(POLL).await, // the server has not closed it yet
        }
    };
    let _running = Standby::new(listener, candidates).await;
    stops(&fake, &first).await;
    assert_eq!(host.agent.fenced(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_standby_ends_the_leases() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let other = listener.local_addr().expect("bound");
    let cluster = Cluster::with_candidates(settings(), Some(other)).await;
    let running = Standby::new(listener, [cluster.address, other]).await;
    let fake = FakeLauncher::new();
    let _host = agent(&cluster, "host", fake.attach(), None);
    let manager = cluster.manager(1).await;
    let proc = start(&manager.launcher(), &Arc::new(World::first(BTreeMap::new())), 1).await;
    learned().await;
    cluster.consensus.set_paused(true);
    sleep(SEVERAL_LEASES).await;
    assert!(fake.runs(&proc), "the standby confirms the manager");
    drop(running); // as a cut between the two would: it may be manager on its side
    stops(&fake, &proc).await;
}

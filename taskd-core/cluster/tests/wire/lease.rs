//! The end of a host's lease: its processes are stopped then and not before, and its fence has the same deadline.

use crate::cluster::{Cluster, PATIENCE, Passes, Proxy, agent, agent_with};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use taskd_cluster::ClusterSettings;
use taskd_runtime::job::{ProcId, World};
use taskd_runtime::launch::{Fence, Launcher, Place, StartBatch, StartOrder, since_boot};
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::time::{Instant, sleep, timeout};

/// Long enough that a busy machine does not end the lease by itself.
const LEASE: Duration = Duration::from_secs(4);
/// How late a task may run on a busy machine.
const LATE: Duration = Duration::from_secs(3);

fn settings() -> ClusterSettings {
    ClusterSettings::default().with_silent_after(Duration::from_millis(1500)).with_lease(LEASE)
}

/// A fence that records the deadlines, each with the time at which it was set.
#[derive(Debug, Default)]
struct Recorded(Mutex<Vec<(Duration, Option<Duration>)>>);

impl Fence for Recorded {
    fn set_deadline(&self, deadline: Option<Duration>) {
        self.0.lock().expect("no panic").push((since_boot(), deadline));
    }
}

async fn start_one(launcher: &dyn Launcher) -> ProcId {
    let proc = ProcId::rank(0, 1);
    let starts = vec![StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(FakeProgram::Runs.spec()))];
    let batch = StartBatch::new(Arc::new(World::first(BTreeMap::new())), starts);
    launcher.start(&batch).await.expect("the host is there");
    proc
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_manager_stops_at_the_end_of_its_lease() {
    let cluster = Cluster::new(settings()).await;
    let (fake, fence) = (FakeLauncher::new(), Arc::new(Recorded::default()));
    let proxy = Proxy::new(cluster.address, |_| None).await;
    let set = Arc::clone(&fence);
    let host = agent_with(&cluster, "host", fake.attach(), Some(&proxy), |agent| agent.fence(set));
    let manager = cluster.manager(1).await;
    let proc = start_one(&manager.launcher()).await;

    sleep(LEASE + Duration::from_secs(1)).await;
    assert!(fake.runs(&proc), "grants extend the lease");
    let set_so_far = fence.0.lock().expect("no panic").len();
    assert!(set_so_far > 3, "each grant sets the deadline: {set_so_far}");

    proxy.set_open(false);
    let cut = since_boot();
    let ends = async {
        while fake.runs(&proc) {
            sleep(Duration::from_millis(5)).await;
        }
        since_boot()
    };
    let ended = timeout(PATIENCE, ends).await.expect("the lease ends");
    let set = fence.0.lock().expect("no panic").clone();
    let deadlines: Vec<Duration> = set.iter().map(|(_, deadline)| deadline.expect("it is never lifted")).collect();
    assert!(deadlines.is_sorted(), "{deadlines:?}");
    for (when, deadline) in &set {
        let left = deadline.expect("it is never lifted").saturating_sub(*when);
        assert!(left <= LEASE, "the lease counts from its anchor: {left:?}");
    }
    let last = *deadlines.last().expect("there are grants");
    println!("the last deadline was {:?} after the cut, the stop {:?} after the deadline", last - cut, ended - last);
    assert!(ended >= last, "not before the end of the lease");
    assert!(ended <= last + LATE, "at the end of the lease: {:?}", ended - last);
    assert_eq!(host.agent.fenced(), 1);

    let set_by_then = set.len();
    proxy.set_open(true);
    let granted = async {
        while fence.0.lock().expect("no panic").len() == set_by_then {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, granted).await.expect("the next grant sets a deadline again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handed_over_host_keeps_its_processes_for_the_time_set() {
    let cluster = Cluster::new(settings()).await;
    let (fake, fence) = (FakeLauncher::new(), Arc::new(Recorded::default()));
    let set = Arc::clone(&fence);
    let _host = agent_with(&cluster, "host", fake.attach(), None, |agent| agent.fence(set));
    let manager = cluster.manager(1).await;
    start_one(&manager.launcher()).await;
    let keep = Duration::from_secs(600);
    manager.launcher().detach(keep).await.expect("the host is there");
    let until = Instant::now() + PATIENCE;
    let left = loop {
        let last = fence.0.lock().expect("no panic").last().copied();
        match last.and_then(|(when, deadline)| Some(deadline?.saturating_sub(when))) {
            Some(left) if left > LEASE => break left,
            _ => assert!(Instant::now() < until, "{last:?}"),
        }
        sleep(Duration::from_millis(5)).await;
    };
    assert!(left <= keep && left + LATE > keep, "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_kept_until_a_new_one_is_welcomed() {
    let lease = LEASE * 2;
    let settings = settings().with_lease(lease);
    let cluster = Cluster::new(settings).await;
    let fake = FakeLauncher::new();
    let proxy = Proxy::new(cluster.address, |_| None).await;
    let host = agent(&cluster, "host", fake.attach(), Some(&proxy));
    let manager = cluster.manager(1).await;
    let proc = start_one(&manager.launcher()).await;
    assert_eq!(host.agent.connections(), 1);

    // Longer than the agent waits for a message, and shorter than its lease.
    proxy.set(Passes::NoData);
    let silent = settings.reconnect_after(lease);
    sleep(silent + (lease - silent) / 4).await;
    proxy.set(Passes::NoNewConnection);
    sleep(lease * 3 / 2).await;
    assert_eq!((host.agent.connections(), host.agent.fenced()), (1, 0), "the old connection extends the lease");
    assert!(fake.runs(&proc));

    proxy.set(Passes::All);
    let until = Instant::now() + PATIENCE;
    while host.agent.connections() < 2 {
        assert!(Instant::now() < until, "the new connection is welcomed in the end");
        sleep(Duration::from_millis(5)).await;
    }
    manager.launcher().stop(std::slice::from_ref(&proc), Duration::ZERO).await.expect("the session continues");
    while fake.runs(&proc) {
        assert!(Instant::now() < until, "the order reaches the host");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_that_does_not_answer_does_not_hide_the_manager() {
    let mut settings = settings();
    settings.hello_within = PATIENCE * 2;
    let cluster = Cluster::new(settings).await;
    let stopped = Proxy::silent().await;
    let address = cluster.address.to_string();
    let host =
        agent_with(&cluster, "host", FakeLauncher::new().attach(), Some(&stopped), |agent| agent.manager(address));
    cluster.manager(1).await;
    assert_eq!(host.agent.connections(), 1);
}

//! Membership over real connections: hosts that fail under one switch, replacements, hosts that return, and hosts that are
//! refused.

use crate::cluster::{Cluster, PATIENCE, Proxy, RunningAgent, agent_with, labelled};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use taskd_cluster::membership::{Next, Policy};
use taskd_cluster::{Agent, AgentError, ClusterSettings, FirstWorld, Manager, Membership, Places};
use taskd_runtime::detect::{self, FaultClass};
use taskd_runtime::job::{Domain, JobSpec, Name, NodeId, Ready, World};
use taskd_runtime::launch::{Change, Launcher, NodeState, Phase, Place, StartBatch, StartOrder};
use taskd_runtime::recover;
use taskd_runtime::runtime::Runtime;
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Slots of each host.
const SLOTS: u32 = 2;
const POLL: Duration = Duration::from_millis(10);

/// Long enough that a busy machine loses no host by itself.
fn settings() -> ClusterSettings {
    ClusterSettings::default().with_silent_after(Duration::from_millis(2500)).with_lease(Duration::from_secs(6))
}

fn host(name: &str) -> NodeId {
    name.parse().expect("a name")
}

fn set(names: &[&str]) -> BTreeSet<NodeId> {
    names.iter().map(|name| host(name)).collect()
}

/// Runs agents of hosts under one leaf switch.
fn hosts(cluster: &Cluster, names: &[&str], leaf: &str, through: Option<&Proxy>) -> Vec<(FakeLauncher, RunningAgent)> {
    let start = |name: &&str| {
        let launcher = FakeLauncher::with_nodes([Name::from((*name).to_owned())], SLOTS);
        let running = labelled(cluster, name, launcher.attach(), through, leaf);
        (launcher, running)
    };
    names.iter().map(start).collect()
}

/// A job of as many ranks as its first hosts can hold.
fn job(hosts: &BTreeMap<u32, NodeId>) -> JobSpec {
    let ranks = u32::try_from(hosts.len()).expect("few") * SLOTS;
    let mut spec = JobSpec::new("job", ranks, FakeProgram::Runs.spec()).with_nodes(hosts.values().cloned());
    spec.policy.min_ranks = SLOTS;
    spec.policy.ready = Ready::Running;
    spec.policy.termination_grace_period = Duration::from_millis(100);
    spec
}

async fn states(manager: &Manager) -> BTreeMap<String, (NodeState, String)> {
    let listing = manager.launcher().list().await.expect("in office");
    let state = |status: taskd_runtime::launch::NodeStatus| {
        (status.node.0.to_string(), (status.state, status.why.unwrap_or_default()))
    };
    listing.nodes.into_iter().map(state).collect()
}

/// Waits until the states of the hosts, as the runtime gets them, have a property.
async fn until(
    manager: &Manager,
    what: &str,
    is: impl Fn(&BTreeMap<String, (NodeState, String)>) -> bool,
) -> BTreeMap<String, (NodeState, String)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = states(manager).await;
        if is(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{what}: {now:?}");
        sleep(POLL).await;
    }
}

/// Puts a world of these hosts in force, and starts its ranks.
async fn begin(manager: &Manager, membership: &Membership) -> Arc<World> {
    let first = timeout(PATIENCE, membership.first_world()).await.expect("in time").expect("enough hosts");
    start(manager, &first).await
}

/// Puts this world in force, and starts its ranks.
async fn start(manager: &Manager, first: &FirstWorld) -> Arc<World> {
    let spec = job(&first.ranks);
    let world = Arc::new(spec.first_world());
    let program = Arc::new(FakeProgram::Runs.spec());
    let order = |(rank, member): (&taskd_runtime::job::Rank, &taskd_runtime::job::Member)| {
        let place = Place::On(member.node.clone().expect("placed"));
        Some(StartOrder::new(world.proc(*rank)?, place, Arc::clone(&program)))
    };
    let starts = world.members().iter().filter_map(order).collect();
    manager.launcher().start(&StartBatch::new(Arc::clone(&world), starts)).await.expect("all hosts are there");
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_hosts_that_fail_under_one_switch_are_one_incident() {
    const UNDER_IT: [&str; 10] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"];
    let cluster = Cluster::new(settings()).await;
    let switch = Proxy::new(cluster.address, |_| None).await;
    let apart = hosts(&cluster, &["a", "b"], "l2", None);
    let under_it = hosts(&cluster, &UNDER_IT, "l1", Some(&switch));
    let manager = cluster.manager(12).await;
    let membership = manager.membership(Policy::new(1, 12), Places::default()).await.expect("a policy");
    let first = timeout(PATIENCE, membership.first_world()).await.expect("in time").expect("enough hosts");
    assert_eq!((first.ranks.len(), first.slots), (12, SLOTS));
    let logs = tempfile::tempdir().expect("a directory");
    let runtime = Runtime::builder()
        .job(job(&first.ranks))
        .detectors(detect::defaults())
        .strategies(recover::defaults())
        .launcher(manager.launcher())
        .journal(logs.path())
        .build()
        .expect("complete");
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let procs = manager.launcher().list().await.expect("in office").procs;
        if procs.iter().filter(|status| status.phase == Phase::Running).count() == 24 {
            break; // and the runtime knows
        }
        assert!(Instant::now() < deadline, "{procs:?}");
        sleep(POLL).await;
    }

    switch.set_open(false);
    // The job goes on with the hosts that are left, from the start: these ranks have no step loop.
    wait_for(|| apart.iter().all(|(launcher, _)| launcher.runs_any(2)), "the others start again").await;
    assert!(under_it.iter().all(|(launcher, _)| !launcher.runs_any(1)), "their leases have ended before");
    handle.stop("the test is over").await.expect("it runs");
    let report = timeout(PATIENCE, running).await.expect("it ends").expect("nothing panics");
    let incidents: Vec<_> = report.incidents.iter().map(|one| (one.domain.clone(), one.class.clone())).collect();
    assert_eq!(incidents, [(Domain::Topology(Name::new("leaf l1")), FaultClass::NodeLost)], "{report}");
    let evidence = &report.incidents[0].evidence[0];
    assert!(evidence.contains("10 hosts of leaf l1") && evidence.contains("n0, n1, n2, n3 and 6 more"), "{evidence}");
    assert!(report.incidents[0].blamed.is_empty() && !report.incidents[0].victims.is_empty(), "{report}");
}

async fn wait_for(is: impl Fn() -> bool, what: &str) {
    let all = async {
        while !is() {
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE * 2, all).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_of_another_domain_is_ready_before_the_loss_is_reported() {
    let cluster = Cluster::new(settings()).await;
    let link = Proxy::new(cluster.address, |_| None).await;
    let _near = hosts(&cluster, &["a", "b"], "l1", None);
    let lost = hosts(&cluster, &["c"], "l1", Some(&link));
    let _spares = hosts(&cluster, &["d"], "l1", None);
    let _far = hosts(&cluster, &["e"], "l2", None);
    let manager = cluster.manager(5).await;
    let policy = Policy::new(3, 3).with_spares(2);
    let membership = manager.membership(policy, Places::default()).await.expect("a policy");
    let before = states(&manager).await;
    assert!(before.values().any(|(state, _)| *state == NodeState::Cordoned), "spares of a job that begins: {before:?}");
    begin(&manager, &membership).await;
    until(&manager, "spares are ready in a complete world", |now| {
        now.values().all(|(state, _)| *state == NodeState::Ready)
    })
    .await;

    link.set_open(false);
    let after = until(&manager, "the loss is reported", |now| now["c"].0 == NodeState::Left).await;
    assert_eq!(after["e"].0, NodeState::Ready, "it is in another domain");
    assert_eq!(after["d"], (NodeState::Cordoned, "it is a spare".into()), "it is under the same switch");
    assert!(after["c"].1.contains("c has given no sign of life"), "{after:?}");
    assert!(!lost[0].0.runs_any(1), "its processes have ended before");
    let decision = membership.decision().expect("decided");
    let Next::World { ranks, .. } = &decision.next else { panic!("{decision:?}") };
    assert_eq!(ranks.values().cloned().collect::<BTreeSet<_>>(), set(&["a", "b", "e"]));
    let reason = decision.next.reason();
    assert!(reason.starts_with("host c has left; host e takes over node rank 2"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_without_replacement_is_held_until_the_world_may_shrink() {
    let cluster = Cluster::new(settings()).await;
    let link = Proxy::new(cluster.address, |_| None).await;
    let _kept = hosts(&cluster, &["a"], "l1", None);
    let mut lost = hosts(&cluster, &["b"], "l2", Some(&link));
    let manager = cluster.manager(2).await;
    let held = Duration::from_secs(3);
    let policy = Policy::new(1, 2).with_shrink_after(held);
    let membership = manager.membership(policy, Places::default()).await.expect("a policy");
    let world = begin(&manager, &membership).await;

    link.set_open(false);
    let waits = membership.wait_for(|decision| matches!(decision.next, Next::Wait { .. }));
    let waits = timeout(PATIENCE, waits).await.expect("in time").expect("in office");
    let since = Instant::now();
    assert!(waits.next.reason().contains("1 host has no replacement; the world shrinks to 1 host"), "{waits:?}");
    assert_eq!(states(&manager).await["b"].0, NodeState::OutOfSight, "the runtime does not know yet");
    until(&manager, "the loss is reported", |now| now["b"].0 == NodeState::Left).await;
    assert!(since.elapsed() + Duration::from_millis(100) > held, "{:?}", since.elapsed());

    // The runtime puts a world without the host in force; then it returns.
    let smaller = world.successor(taskd_runtime::job::Counted::Yes, |members| {
        members.retain(|_, member| member.node == Some(host("a")));
    });
    manager.launcher().start(&StartBatch::new(Arc::new(smaller), Vec::new())).await.expect("in office");
    lost.clear();
    link.set_open(true);
    let _again = hosts(&cluster, &["b"], "l2", Some(&link));
    let grown = until(&manager, "it may take part again", |now| now["b"].0 == NodeState::Ready).await;
    assert_eq!(grown["a"].0, NodeState::Ready);
    let reason = membership.decision().expect("decided").next.reason().to_owned();
    assert!(reason.contains("1 host has joined; the world has 2 hosts"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_with_its_host_is_reported_after_the_loss_of_the_host() {
    let cluster = Cluster::new(settings()).await;
    let link = Proxy::new(cluster.address, |_| None).await;
    let _kept = hosts(&cluster, &["a"], "l1", None);
    let _lost = hosts(&cluster, &["b"], "l2", Some(&link));
    let manager = cluster.manager(2).await;
    let policy = Policy::new(1, 2).with_shrink_after(Duration::from_secs(1));
    let membership = manager.membership(policy, Places::default()).await.expect("a policy");
    let first = timeout(PATIENCE, membership.first_world()).await.expect("in time").expect("enough hosts");
    let from = manager.launcher().list().await.expect("in office").revision;
    link.set_open(false);
    timeout(PATIENCE, start(&manager, &first)).await.expect("the start on b fails with it");
    until(&manager, "the loss is reported", |now| now["b"].0 == NodeState::Left).await;

    let (changes, _) = manager.launcher().watch(from).await.expect("no cursor is lost");
    let is_loss =
        |change: &Change| matches!(change, Change::Node(one) if one.node == host("b") && one.state == NodeState::Left);
    let is_end =
        |change: &Change| matches!(change, Change::Proc(one) if one.node == Some(host("b")) && one.phase.is_exited());
    let (loss, end) = (changes.iter().position(is_loss), changes.iter().position(is_end));
    assert!(loss.is_some() && end > loss, "{changes:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_take_part_gets_one_clear_error() {
    let cluster = Cluster::new(settings()).await;
    // Host a states the node rank that it gets.
    let of_a = FakeLauncher::with_nodes([Name::from("a".to_owned())], SLOTS);
    let _a = agent_with(&cluster, "a", of_a.attach(), None, |agent| agent.label("leaf", "l1").node_rank(0));
    let of_b = hosts(&cluster, &["b"], "l1", None);
    let manager = cluster.manager(2).await;
    let policy = Policy::new(2, 3).with_last_call(Duration::ZERO);
    let membership = manager.membership(policy, Places::default()).await.expect("a policy");
    begin(&manager, &membership).await;

    for (name, slots, node_rank, expected) in [
        ("c", 3, None, "host c has 3 slots, and host a and the others have 2: start its agent with 2 slots"),
        ("d", 2, Some(7), "host d states node rank 7, and the job has at most 3 hosts: state one below 3"),
        ("e", 2, Some(0), "host e states node rank 0, and so does host a: give one of them another node rank"),
    ] {
        let launcher = FakeLauncher::with_nodes([Name::from(name.to_owned())], slots);
        let refused = Agent::builder("job", host(name), launcher, cluster.security()).settings(cluster.settings);
        let refused = refused.manager(cluster.address.to_string());
        let refused = match node_rank {
            Some(node_rank) => refused.node_rank(node_rank),
            None => refused,
        };
        let refused = refused.build().expect("complete");
        let error = timeout(PATIENCE, refused.run(CancellationToken::new())).await.expect("it ends");
        let Err(AgentError::Refused(why)) = error else { panic!("{error:?}") };
        assert!(why.starts_with(expected), "{why}");
        assert!(of_a.runs_any(1) && of_b[0].0.runs_any(1), "{name}: the ranks of the others run");
    }
    let now = states(&manager).await;
    assert!(["a", "b"].iter().all(|good| now[*good].0 == NodeState::Ready), "the others are not affected: {now:?}");
    let again = manager.membership(Policy::new(1, 1), Places::default()).await.err().map(|error| error.to_string());
    assert_eq!(again.as_deref(), Some("this manager has a policy of membership already"));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_hosts_end_the_wait_with_their_number() {
    let cluster = Cluster::new(settings()).await;
    let _few = hosts(&cluster, &["a"], "l1", None);
    let manager = cluster.manager(1).await;
    let policy = Policy::new(2, 2).with_waiting_timeout(Duration::from_millis(300));
    let membership = manager.membership(policy, Places::default()).await.expect("a policy");
    let why = timeout(PATIENCE, membership.first_world()).await.expect("it ends").expect_err("too few");
    assert!(why.contains("1 of at least 2 hosts have joined within 300ms: add hosts, or reduce min_hosts"), "{why}");
    let unusable = cluster.manager(0).await;
    let error = unusable.membership(Policy::new(3, 2), Places::default()).await.expect_err("no solution");
    assert!(error.to_string().contains("min_hosts is 3 and max_hosts is 2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_leaves_is_reported_at_once() {
    let cluster = Cluster::new(settings()).await;
    let _kept = hosts(&cluster, &["a"], "l1", None);
    let leaves = hosts(&cluster, &["b"], "l1", None);
    let manager = cluster.manager(2).await;
    let membership = manager.membership(Policy::new(1, 2), Places::default()).await.expect("a policy");
    begin(&manager, &membership).await;
    assert!(leaves[0].0.runs_any(1));
    let asked = Instant::now();
    leaves[0].1.agent.leave(Duration::ZERO).await.expect("its processes end");
    assert!(!leaves[0].0.runs_any(1));
    let now = until(&manager, "it has left", |now| now["b"].0 == NodeState::Left).await;
    assert!(asked.elapsed() < settings().lease, "before the end of its lease: {:?}", asked.elapsed());
    assert!(now["b"].1.contains("b has left the job: its agent was asked to end"), "{now:?}");
    assert_eq!(now["a"].0, NodeState::Ready);
}

//! The sources of hosts, read over real connections, keep the contract of sources: also when connections break in the middle
//! of calls, hosts join and leave, and the manager changes. And the clocks of hosts.

use crate::cluster::{Cluster, PATIENCE, Proxy, RunningAgent, agent_with};
use crate::settings;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use taskd_cluster::{ClusterSource, HostStatus, Manager};
use taskd_runtime::job::{Domain, Incarnation, Member, Name, NodeId, ProcId, Rank, Role, World};
use taskd_runtime::launch::{Launcher, Place, StartBatch, StartOrder};
use taskd_runtime::trace::{
    Fact, PROCESS_STATE, Probe, ProbeResult, Signal, SourceError, SourceInfo, TraceBatch, TraceSource, TraceSourceExt,
    WhenFull,
};
use taskd_testing::testing::conformance;
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram, ScriptedSource};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

/// Facts of a scripted batch.
const BATCH: u64 = 3;
/// Batches for a source over connections that break: each break takes a while, in which some pile up on the host.
const MANY: u64 = 200;

fn node(host: &str) -> NodeId {
    NodeId(Name::from(host.to_owned()))
}

fn rank(number: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(number)))
}

fn step(number: u64) -> Fact {
    Fact::new(rank(0), Signal::Progress { step: number })
}

fn step_of(fact: &Fact) -> Option<u64> {
    if let Signal::Progress { step } = fact.signal { Some(step) } else { None }
}

fn facts(batches: u64) -> Vec<Fact> {
    let age = |number: u64| Duration::from_millis(BATCH - number % BATCH);
    (0..batches * BATCH).map(|number| step(number).with_age(age(number))).collect()
}

/// Returns a source that has this number of batches, answers a probe of rank 0, and then waits.
fn scripted(batches: u64) -> ScriptedSource {
    let scripted = ScriptedSource::new(facts(batches).chunks(BATCH as usize).map(<[Fact]>::to_vec));
    let scripted = scripted.answering(PROCESS_STATE, rank(0), ProbeResult::Text("state=T".into()));
    scripted.every(Duration::from_millis(10)).then_waits()
}

/// Starts rank 0 on the first host, rank 1 on the second one, and so on.
async fn start(manager: &Manager, hosts: &[&str]) {
    let member = |host: &&str| Member { incarnation: Incarnation(1), node: Some(node(host)), device: None };
    let members: BTreeMap<Rank, Member> = (0..).map(Rank).zip(hosts.iter().map(member)).collect();
    let order = |(number, host): (u32, &&str)| {
        StartOrder::new(ProcId::rank(number, 1), Place::On(node(host)), Arc::new(FakeProgram::Runs.spec()))
    };
    let starts = (0..).zip(hosts).map(order).collect();
    let batch = StartBatch::new(Arc::new(World::first(members)), starts);
    manager.launcher().start(&batch).await.expect("the hosts are there");
}

fn fake(host: &str) -> FakeLauncher {
    FakeLauncher::with_nodes([Name::from(host.to_owned())], 4)
}

fn host_with(cluster: &Cluster, host: &str, source: impl TraceSource + 'static) -> RunningAgent {
    agent_with(cluster, host, fake(host), None, |agent| agent.source(source))
}

/// A source together with the manager and the agent that it needs.
struct Owner {
    source: ClusterSource,
    _manager: Manager,
    _agent: RunningAgent,
}

#[async_trait::async_trait]
impl TraceSource for Owner {
    taskd_runtime::delegate!(TraceSource to |this| this.source);
}

impl Owner {
    /// A new agent with a new source, and a new manager.
    async fn new(cluster: &Cluster, batches: u64, through: Option<&Proxy>) -> Owner {
        let agent = agent_with(cluster, "host", fake("host"), through, |agent| agent.source(scripted(batches)));
        let manager = cluster.manager(1).await;
        start(&manager, &["host"]).await;
        Owner { source: manager.source(), _manager: manager, _agent: agent }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_over_the_wire_keep_the_contract() {
    let cluster = Cluster::new(settings()).await;
    let suite = conformance::trace_source(async || Owner::new(&cluster, 20, None).await).with_reference(facts(20));
    let report = suite.with_batches(20).with_patience(PATIENCE).assert().await;
    println!("{report}");
    assert!(report.skipped().is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_over_connections_that_break_keep_the_contract() {
    let cluster = Cluster::new(settings()).await;
    // Each connection breaks somewhere else, from the middle of the handshake to the middle of a long answer.
    // The longest message, with a full queue of the host, has some 25 kB.
    let proxy = Proxy::new(cluster.address, |number| Some(300 + number * 7907 % 40_000)).await;
    let make = async || Owner::new(&cluster, MANY, Some(&proxy)).await;
    let suite = conformance::trace_source(make).with_reference(facts(MANY));
    let report = suite.with_batches(MANY).with_patience(PATIENCE).assert().await;
    let cuts = proxy.cuts.load(Ordering::Relaxed);
    println!("{report}; {cuts} connections broke");
    assert!(report.skipped().is_empty(), "{report}");
    assert!(cuts > 5, "connections broke during calls: {cuts}");
}

/// Reads facts until `done` returns true.
async fn read_until(source: &mut ClusterSource, mut done: impl FnMut(&Fact) -> bool) {
    let reading = async {
        loop {
            let batch = source.next().await.expect("it never ends").expect("it returns no errors");
            if batch.facts.iter().any(&mut done) {
                return;
            }
        }
    };
    timeout(PATIENCE, reading).await.expect("the facts come");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_join_and_leave_the_source() {
    let cluster = Cluster::new(settings()).await;
    let beats = |number: u32| {
        let beat = Fact::new(rank(number), Signal::Heartbeat);
        ScriptedSource::new((0..10_000).map(move |_| vec![beat.clone()])).every(Duration::from_millis(5))
    };
    let _first = host_with(&cluster, "first", beats(0));
    let manager = cluster.manager(1).await;
    let mut source = manager.source();
    read_until(&mut source, |fact| fact.about == rank(0)).await;
    let second = host_with(&cluster, "second", beats(1));
    read_until(&mut source, |fact| fact.about == rank(1)).await;
    drop(second);
    let third = host_with(&cluster, "third", beats(2));
    read_until(&mut source, |fact| fact.about == rank(2)).await;
    read_until(&mut source, |fact| fact.about == rank(0)).await;
    drop(third);
    let hosts = manager.hosts();
    let counted = |host: &str| hosts.iter().find(|one| one.host == node(host)).expect("it has registered").facts;
    assert!(counted("first").facts > 1 && counted("third").facts > 0, "{hosts:?}");
    assert!(hosts.iter().all(|host| (host.facts.lost, host.facts.failed) == (0, 0)), "{hosts:?}");
}

/// Replies to each probe with its name, after a time; has no facts.
struct Replies {
    name: &'static str,
    after: Duration,
}

#[async_trait::async_trait]
impl TraceSource for Replies {
    fn info(&self) -> SourceInfo {
        SourceInfo::new(self.name).with_probe(PROCESS_STATE)
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        std::future::pending().await
    }

    async fn collect(&mut self, _: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        sleep(self.after).await;
        Ok(ProbeResult::Text(format!("{about} by {}", self.name)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_goes_to_the_hosts_that_it_concerns() {
    let cluster = Cluster::new(settings()).await;
    let replies = |name, after| Replies { name, after };
    let _a = host_with(&cluster, "a", replies("source-a", Duration::ZERO));
    let _b = host_with(&cluster, "b", replies("source-b", Duration::ZERO));
    let _c = host_with(&cluster, "c", replies("source-c", Duration::from_secs(3600)));
    let manager = cluster.manager(3).await;
    start(&manager, &["a", "b", "c"]).await;
    let mut source = manager.source();
    let limit = Duration::from_secs(8); // long enough that the quick hosts reply on a busy machine
    let about = vec![rank(2), rank(1), rank(0), rank(7)];
    let probe = Probe::new("test", PROCESS_STATE, about.clone(), limit).with_tag(7);
    let begun = Instant::now();
    let mut results = Vec::new();
    for domain in &about {
        results.push(source.collect(&probe, domain).await);
    }
    let took = begun.elapsed();
    let text = |result: &Result<ProbeResult, SourceError>| match result {
        Ok(ProbeResult::Text(text)) => text.clone(),
        other => format!("{other:?}"),
    };
    let texts: Vec<String> = results.iter().map(text).collect();
    assert!(texts[0].contains("has not replied in time"), "{texts:?}");
    assert_eq!(texts[1..3], ["rank 1 by source-b", "rank 0 by source-a"]);
    assert!(texts[3].contains("no host of the job has rank 7"), "{texts:?}");
    assert!(took >= limit / 2 && took < limit + PATIENCE, "one slow host delays the probe once: {took:?}");
    let again = source.collect(&probe, &rank(1)).await; // each reply is used once
    assert_eq!(text(&again), "rank 1 by source-b");
    let other = Probe::new("test", "something-else", Vec::new(), limit);
    assert_eq!(source.collect(&other, &rank(1)).await, Err(SourceError::Unsupported));
}

/// A source that delivers its first batches, and the others only after a gate is opened.
struct Gated {
    inner: ScriptedSource,
    /// Batches that were taken.
    calls: u64,
    opened: watch::Receiver<bool>,
    /// Notified when the 40 batches were taken.
    all_read: Arc<Notify>,
}

impl Gated {
    /// Batches that do not wait.
    const BEFORE: u64 = 2;
}

#[async_trait::async_trait]
impl TraceSource for Gated {
    fn info(&self) -> SourceInfo {
        self.inner.info()
    }
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        if self.calls >= Gated::BEFORE {
            let _ = self.opened.wait_for(|opened| *opened).await;
        }
        if self.calls == 40 {
            self.all_read.notify_one();
        }
        let batch = self.inner.next().await;
        self.calls += 1;
        batch
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_wait_for_the_next_manager_and_state_their_age() {
    let cluster = Cluster::new(settings()).await;
    let (gate, opened) = watch::channel(false);
    let all_read = Arc::new(Notify::new());
    let gated = Gated { inner: scripted(40), calls: 0, opened, all_read: Arc::clone(&all_read) };
    let _host = host_with(&cluster, "host", gated);
    let first = cluster.manager(1).await;
    let mut source = first.source();
    read_until(&mut source, |fact| step_of(fact) == Some(Gated::BEFORE * BATCH - 1)).await;
    drop((source, first));
    gate.send_replace(true);
    timeout(PATIENCE, all_read.notified()).await.expect("the agent reads its source without a manager");
    let pause = Duration::from_millis(300);
    sleep(pause).await;
    let second = cluster.manager(1).await;
    let mut seen = Vec::new();
    read_until(&mut second.source(), |fact| {
        seen.extend(step_of(fact).map(|step| (step, fact.age)));
        step_of(fact) == Some(40 * BATCH - 1)
    })
    .await;
    let steps: Vec<u64> = seen.iter().map(|(step, _)| *step).collect();
    let first = steps[0];
    assert_eq!(steps, (first..40 * BATCH).collect::<Vec<_>>(), "without a gap");
    let (_, last_age) = seen.last().expect("there are facts");
    assert!(*last_age >= pause && *last_age < pause + PATIENCE, "it waited on its host: {last_age:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_that_a_host_drops_are_counted() {
    let cluster = Cluster::new(settings()).await;
    /// Returns ten facts at each call, up to a number, and may drop them.
    struct Quick(u64);
    #[async_trait::async_trait]
    impl TraceSource for Quick {
        fn info(&self) -> SourceInfo {
            SourceInfo::new("quick").with_queue(4, WhenFull::DropOldest)
        }
        async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
            tokio::task::yield_now().await;
            if self.0 >= 1000 {
                std::future::pending::<()>().await;
            }
            self.0 += 10;
            Some(Ok(TraceBatch::of((self.0 - 10..self.0).map(step).collect())))
        }
    }
    let _host = host_with(&cluster, "host", Quick(0));
    let manager = cluster.manager(1).await;
    sleep(Duration::from_millis(200)).await; // nothing takes the facts meanwhile
    let (mut delivered, mut lost) = (0, 0);
    read_until(&mut manager.source(), |fact| {
        match fact.signal {
            Signal::Lost { count } => lost += count,
            _ => delivered += 1,
        }
        delivered + lost >= 1000
    })
    .await;
    assert!(lost > 0 && delivered + lost == 1000, "{delivered} delivered, {lost} lost");
    assert_eq!((manager.hosts()[0].facts.lost, manager.hosts()[0].facts.facts), (lost, delivered));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_panics_or_fails_ends_no_other() {
    let cluster = Cluster::new(settings()).await;
    let panics = taskd_testing::testing::doubles::Faulty::panicking(scripted(5), 2).named("panics");
    let fails = taskd_testing::testing::doubles::Faulty::failing(scripted(5), 40).named("fails");
    let _host = agent_with(&cluster, "host", fake("host"), None, |agent| {
        agent.source(panics).source(fails).source(scripted(50).named("works"))
    });
    let manager = cluster.manager(1).await;
    read_until(&mut manager.source(), |fact| step_of(fact) == Some(50 * BATCH - 1)).await;
    let [host] = &manager.hosts()[..] else { panic!("one host") };
    assert_eq!(host.sources, ["panics", "fails", "works"]);
    assert!(host.facts.failed > 1, "{host:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_an_hour_off_is_displayed_and_changes_nothing() {
    let cluster = Cluster::new(settings()).await;
    let hour = Duration::from_secs(3600);
    let fakes: Vec<FakeLauncher> = ["ahead", "behind", "right"].iter().map(|host| fake(host)).collect();
    let host = |at: usize, name: &str, nanos: i64| {
        let source = scripted(1).named(name.to_owned());
        agent_with(&cluster, name, fakes[at].attach(), None, |agent| agent.source(source).calendar_ahead(nanos))
    };
    let nanos = hour.as_nanos() as i64;
    let _agents = [host(0, "ahead", nanos), host(1, "behind", -nanos), host(2, "right", 0)];
    let manager = cluster.manager(3).await;
    start(&manager, &["ahead", "behind", "right"]).await;
    let mut ages = Vec::new();
    read_until(&mut manager.source(), |fact| {
        ages.push(fact.age);
        ages.len() == 3 * BATCH as usize
    })
    .await;
    assert!(ages.iter().all(|age| *age < PATIENCE), "{ages:?}");
    let known = async {
        loop {
            let hosts = manager.hosts();
            if hosts.iter().all(|host| host.clock.is_some()) {
                return hosts;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let hosts: Vec<HostStatus> = timeout(PATIENCE, known).await.expect("grants go to all hosts");
    for (host, ahead) in hosts.iter().zip([nanos, -nanos, 0]) {
        let clock = host.clock.expect("it is known");
        println!("{}: {clock}", host.host);
        // The machine may be interrupted between two readings of its clocks, and may set its calendar meanwhile.
        let slack = Duration::from_secs(1) + clock.error;
        assert!(Duration::from_nanos((clock.nanos - ahead).unsigned_abs()) <= slack, "{}: {clock}", host.host);
        assert!(clock.error < PATIENCE, "{clock}");
    }
    // All leases hold, and no host is lost.
    sleep(settings().silent_after).await;
    assert_eq!(manager.hosts().len(), 3);
    assert!((0..3).all(|at| fakes[at].runs(&ProcId::rank(at as u32, 1))));
}

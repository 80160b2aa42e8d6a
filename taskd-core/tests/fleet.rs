//! Several launchers as one, against the contract of a launcher and one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;
use taskd_core::testing::conformance;
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::sync::watch;

fn node(name: &'static str) -> NodeId {
    NodeId(Name::new(name))
}

fn two() -> (FakeLauncher, FakeLauncher) {
    (FakeLauncher::with_nodes(["a", "b"], 2), FakeLauncher::with_nodes(["c"], 2))
}

async fn fleet(of: &(FakeLauncher, FakeLauncher)) -> MultiHostLauncher {
    MultiHostLauncher::of([of.0.attach(), of.1.attach()]).await.expect("both are there")
}

fn batch(places: Vec<Place>) -> StartBatch {
    let spec = Arc::new(FakeProgram::Runs.spec());
    let world = Arc::new(JobSpec::new("test", 4, WorkerSpec::new(["train"])).first_world());
    let order = |(rank, place): (u32, Place)| StartOrder::new(ProcId::rank(rank, 1), place, Arc::clone(&spec));
    StartBatch::new(world, (0..).zip(places).map(order).collect())
}

async fn running(fleet: &MultiHostLauncher) -> Vec<(u32, String)> {
    let mut at = fleet.list().await.expect("always").revision;
    loop {
        let listing = fleet.list().await.expect("always");
        if listing.procs.iter().all(|p| p.phase == Phase::Running) {
            let place = |p: &ProcStatus| {
                (p.proc.role.rank().map_or(99, |r| r.0), p.node.clone().map_or("-".into(), |n| n.0.to_string()))
            };
            let mut places: Vec<(u32, String)> = listing.procs.iter().map(place).collect();
            places.sort();
            return places;
        }
        at = fleet.watch(at).await.expect("no cursor is lost").1;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_satisfies_the_launcher_contract() {
    let parts = two();
    let report = conformance::launcher(async |_owner| fleet(&parts).await, parts.0.programs()).assert().await;
    assert!(report.skipped().is_empty(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn orders_go_to_the_launcher_of_their_host_or_one_with_room() {
    let parts = two();
    let fleet = fleet(&parts).await;
    let places = vec![
        Place::On(node("c")),
        Place::On(node("b")),
        Place::anywhere(),
        Place::AnyBut([node("a"), node("b")].into()),
    ];
    fleet.start(&batch(places)).await.expect("there is room");
    let expected = [(0, "c"), (1, "b"), (2, "a"), (3, "c")].map(|(rank, host)| (rank, host.to_owned()));
    assert_eq!(running(&fleet).await, expected);
    assert!(parts.1.runs(&ProcId::rank(0, 1)) && parts.0.runs(&ProcId::rank(1, 1)));
    let full = batch(vec![Place::anywhere(); 7]);
    let refusal = fleet.start(&full).await.expect_err("four of six slots are taken, and these four run already");
    assert_eq!(refusal, LaunchError::Refused("no host has room for rank 6#1".into()));
    let nowhere = StartBatch::new(full.world, vec![]);
    fleet.start(&nowhere).await.expect("nothing is always possible");
}

#[tokio::test(start_paused = true)]
async fn a_partly_refused_start_reports_the_refused_ranks_as_exited() {
    let parts = two();
    let fleet = fleet(&parts).await;
    let mut order = batch(vec![Place::On(node("a")), Place::On(node("c"))]);
    order.starts[1].spec = Arc::new(FakeProgram::Refused.spec());
    fleet.start(&order).await.expect("a part of it was accepted");
    let exited = async |proc: ProcId| loop {
        let listing = fleet.list().await.expect("always");
        let status = listing.procs.iter().find(|p| p.proc == proc).cloned();
        if let Some(Phase::Exited(exit)) = status.map(|s| s.phase) {
            return exit.stderr_tail;
        }
        fleet.watch(listing.revision).await.expect("no cursor is lost");
    };
    let tail = tokio::time::timeout(Duration::from_secs(60), exited(ProcId::rank(1, 1))).await.expect("its end");
    assert!(tail.contains("not started"), "{tail}");
    assert!(parts.0.runs(&ProcId::rank(0, 1)));
}

#[tokio::test(start_paused = true)]
async fn two_launchers_with_one_host_are_refused() {
    let error =
        MultiHostLauncher::of([FakeLauncher::with_nodes(["a"], 1), FakeLauncher::with_nodes(["a"], 1)]).await.map(drop);
    let expected = "two launchers have a host named node a: rename one";
    assert_eq!(error, Err(LaunchError::Refused(expected.into())));
}

/// A launcher whose guard does not answer: its stops never return.
struct Silent(FakeLauncher);

#[async_trait::async_trait]
impl Launcher for Silent {
    taskd_core::delegate!(Launcher to |this| this.0, except info, stop, detach);

    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("silent")
    }
    async fn stop(&self, _procs: &[ProcId], _grace: Duration) -> Result<(), LaunchError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_launcher_does_not_prevent_the_others_from_stopping() {
    let (silent, other) = two();
    let parts: [Box<dyn Launcher>; 2] = [Box::new(Silent(silent)), Box::new(other.attach())];
    let fleet = MultiHostLauncher::of(parts).await.expect("both are there");
    fleet.start(&batch(vec![Place::On(node("a")), Place::On(node("c"))])).await.expect("there is room");
    let ranks = [ProcId::rank(0, 1), ProcId::rank(1, 1)];
    let stopping = tokio::time::timeout(Duration::from_secs(1), fleet.stop(&ranks, Duration::ZERO));
    stopping.await.expect_err("one of them has not answered");
    assert!(!other.runs(&ranks[1]), "the other one has");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_has_left_takes_its_processes_along_and_may_return() {
    let parts = two();
    let fleet = fleet(&parts).await;
    fleet.start(&batch(vec![Place::On(node("a")), Place::On(node("c"))])).await.expect("there is room");
    running(&fleet).await;
    let from = fleet.list().await.expect("always").revision;
    fleet.remove(&node("c"), "c was unplugged");
    let (changes, _) = fleet.watch(from).await.expect("no cursor is lost");
    let left = NodeStatus::new(node("c"), NodeState::Left, 2).with_why("c was unplugged");
    assert_eq!(changes[0], Change::Node(left), "the host's end comes first");
    let Change::Proc(ProcStatus { proc, phase: Phase::Exited(exit), .. }) = &changes[1] else { panic!("{changes:?}") };
    assert_eq!((proc, exit.how, changes.len()), (&ProcId::rank(1, 1), Termination::Unknown, 2));
    assert!(fleet.start(&batch(vec![Place::On(node("c"))])).await.is_err(), "nothing starts there");
    fleet.stop(std::slice::from_ref(proc), Duration::ZERO).await.expect("it has ended");

    fleet.add(parts.1.attach()).await.expect("the host returns");
    let listing = fleet.list().await.expect("always");
    assert!(listing.nodes.iter().any(|n| n.node == node("c") && n.state == NodeState::Ready && n.why.is_none()));
    let ended = |p: &&ProcStatus| p.proc == *proc;
    assert!(listing.procs.iter().find(ended).is_some_and(|p| p.phase.is_exited()), "its old process stays ended");
}

/// A host whose ranks come to their step loops when one of them ends, and that notes what it is to be ready for.
struct Notes {
    host: FakeLauncher,
    prepared: watch::Sender<Vec<(StartBatch, bool)>>,
    listed: AtomicU32,
}

impl Notes {
    fn new(name: &'static str) -> Arc<Notes> {
        Arc::new(Notes {
            host: FakeLauncher::with_nodes([name], 4),
            prepared: watch::Sender::default(),
            listed: AtomicU32::new(0),
        })
    }

    /// Returns what the last of `times` preparations was for: ranks, number of ranks on this host, and whether they
    /// have a loop.
    async fn counted(&self, times: usize) -> (Vec<u32>, usize, bool) {
        let mut prepared = self.prepared.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(60), prepared.wait_for(|all| all.len() >= times)).await;
        let all = waited.expect("it was reported so often").expect("it is there").clone();
        assert_eq!(all.len(), times);
        let (batch, in_loop) = all.last().expect("one");
        let places: Vec<&Place> = batch.starts.iter().map(|order| &order.place).collect();
        let Place::On(own) = places[0] else { panic!("{places:?}") };
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
        let there = batch.world.members().values().filter(|member| member.node.as_ref() == Some(own)).count();
        (batch.starts.iter().filter_map(|order| Some(order.proc.role.rank()?.0)).collect(), there, *in_loop)
    }
}

#[async_trait::async_trait]
impl Launcher for Notes {
    taskd_core::delegate!(Launcher to |this| this.host, except watch, prepare, list);

    async fn list(&self) -> Result<Listing, LaunchError> {
        self.listed.fetch_add(1, Ordering::Relaxed);
        self.host.list().await
    }
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let (mut changes, next) = self.host.watch(from).await?;
        let ends = |change: &Change| matches!(change, Change::Proc(status) if status.phase.is_exited());
        if changes.iter().any(ends) {
            let (generation, framework) = (Generation(1), Name::new("test"));
            let linked = ControlLink::new(generation, framework, LoopPosition::InLoop).with_capabilities([].into());
            changes.push(Change::Link(LinkStatus::new(ProcId::rank(0, 1), Some(linked))));
        }
        Ok((changes, next))
    }
    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        self.prepared.send_modify(|prepared| prepared.push((batch.clone(), options.in_loop)));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_without_ranks_gets_ready_to_take_those_of_another() {
    let [busy, spare] = ["a", "b"].map(Notes::new);
    let fleet = MultiHostLauncher::of([Arc::clone(&busy), Arc::clone(&spare)]).await.expect("both are there");
    let here = || Place::On(node("a"));
    fleet.start(&batch(vec![here(), here(), here()])).await.expect("there is room");
    assert_eq!(spare.counted(1).await, (vec![0, 1, 2], 3, false));
    assert_eq!(
        busy.listed.load(Ordering::Relaxed),
        2,
        "when it was added, and after its start: a spare is asked again"
    );
    busy.host.kill(&ProcId::rank(2, 1));
    assert_eq!(spare.counted(2).await, (vec![0, 1, 2], 3, true), "a rank has come to its loop");
    let mut joins = FakeProgram::Runs.spec();
    joins.env.insert(JOIN_VARIABLE.into(), "2".into());
    let mut joiner = batch(vec![here()]);
    joiner.starts[0] = StartOrder::new(ProcId::rank(2, 2), here(), Arc::new(joins));
    fleet.start(&joiner).await.expect("there is room");
    fleet.start(&batch(vec![here(); 4])).await.expect("there is room for one more");
    assert_eq!(spare.counted(3).await.0, [0, 1, 2, 3], "a joining rank reports nothing new");
    assert_eq!(busy.prepared.borrow().len(), 0, "it goes by what it runs");
}

#[tokio::test]
async fn a_fleet_refuses_to_detach_if_one_launcher_cannot() {
    let able = FakeLauncher::with_nodes(["a"], 1);
    let parts: [Box<dyn Launcher>; 2] = [Box::new(able.clone()), Box::new(Silent(FakeLauncher::with_nodes(["b"], 1)))];
    let fleet = MultiHostLauncher::of(parts).await.unwrap();
    let error = fleet.detach(Duration::from_secs(60)).await.unwrap_err().to_string();
    assert_eq!(error, "the launcher silent cannot leave its processes to a later owner: stop them");
    assert!(fleet.start(&batch(vec![Place::On(node("a"))])).await.is_ok(), "the other goes on");
}

/// A launcher that loses its connection now and then: its history goes on meanwhile, but nothing of it can be read.
struct Cut {
    host: FakeLauncher,
    log: Arc<ChangeLog>,
    is_up: watch::Sender<bool>,
}

#[async_trait::async_trait]
impl Launcher for Cut {
    taskd_core::delegate!(Launcher to |this| this.host, except info, list, watch);

    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("cut")
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        if *self.is_up.borrow() { Ok(self.log.listing()) } else { Err(LaunchError::Unreachable("no link".into())) }
    }
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let mut is_up = self.is_up.subscribe();
        tokio::select! {
            biased;
            _ = is_up.wait_for(|up| !up) => Err(LaunchError::Unreachable("no link".into())),
            changes = self.log.after(from) => changes,
        }
    }
}

/// Waits for a change of the fleet.
async fn until(fleet: &MultiHostLauncher, at: &mut Revision, is_it: impl Fn(&Change) -> bool) {
    let wait = async {
        loop {
            let (changes, next) = fleet.watch(*at).await.expect("no cursor is lost");
            *at = next;
            if changes.iter().any(&is_it) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the change is reported");
}

#[tokio::test(start_paused = true)]
async fn a_reply_during_a_lost_connection_is_reported_after_it() {
    let (proc, state) = (ProcId::rank(0, 1), |state| NodeStatus::new(node("a"), state, 2));
    let log = Arc::new(ChangeLog::new(1));
    log.push(Change::Node(state(NodeState::Ready)));
    log.push(Change::Proc(ProcStatus::new(proc.clone(), "1", Phase::Running).with_node(node("a"))));
    let cut = Arc::new(Cut { host: FakeLauncher::new(), log: Arc::clone(&log), is_up: watch::Sender::new(true) });
    let fleet = MultiHostLauncher::of([Arc::clone(&cut)]).await.expect("it is there");
    let mut at = fleet.list().await.expect("always").revision;
    let is_in = |wanted: NodeState| move |change: &Change| matches!(change, Change::Node(one) if one.state == wanted);
    for id in 1..4 {
        cut.is_up.send_replace(false);
        until(&fleet, &mut at, is_in(NodeState::OutOfSight)).await;
        let reply = WorkerMessage::Reply { id: CommandId(id), result: Ok(Box::default()) };
        log.push(Change::Worker(WorkerEvent::new(proc.clone(), reply)));
        cut.is_up.send_replace(true);
        let is_reply =
            |message: &WorkerMessage| matches!(message, WorkerMessage::Reply { id: of, .. } if *of == CommandId(id));
        let answers = |change: &Change| matches!(change, Change::Worker(event) if is_reply(&event.message));
        until(&fleet, &mut at, answers).await;
        assert!(fleet.list().await.expect("always").nodes.contains(&state(NodeState::Ready)));
    }
}

/// A host that is lost while it is told to start processes: the call, and all calls after it, fail with the host.
struct Lost {
    host: FakeLauncher,
    is_lost: watch::Sender<bool>,
}

impl Lost {
    fn new(name: &'static str) -> Arc<Lost> {
        Arc::new(Lost { host: FakeLauncher::with_nodes([name], 4), is_lost: watch::Sender::new(false) })
    }

    async fn lost(&self) -> LaunchError {
        let _ = self.is_lost.subscribe().wait_for(|lost| *lost).await;
        LaunchError::Unreachable("it has given no sign of life".into())
    }
}

#[async_trait::async_trait]
impl Launcher for Lost {
    taskd_core::delegate!(Launcher to |this| this.host, except info, start, stop, list, watch);

    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("lost")
    }
    async fn start(&self, _batch: &StartBatch) -> Result<(), LaunchError> {
        Err(self.lost().await)
    }
    async fn stop(&self, _procs: &[ProcId], _grace: Duration) -> Result<(), LaunchError> {
        Err(self.lost().await)
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        if *self.is_lost.borrow() { Err(self.lost().await) } else { self.host.list().await }
    }
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        tokio::select! {
            error = self.lost() => Err(error),
            changes = self.host.watch(from) => changes,
        }
    }
}

/// A launcher whose host has no lease for a moment.
struct Unleased(FakeLauncher);

#[async_trait::async_trait]
impl Launcher for Unleased {
    taskd_core::delegate!(Launcher to |this| this.0, except info, start);

    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("unleased")
    }
    async fn start(&self, _batch: &StartBatch) -> Result<(), LaunchError> {
        Err(LaunchError::Unreachable("c has no lease".into()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_rank_whose_host_has_no_lease_yet_is_not_to_blame() {
    let parts: [Box<dyn Launcher>; 2] =
        [Box::new(FakeLauncher::with_nodes(["a"], 2)), Box::new(Unleased(FakeLauncher::with_nodes(["c"], 2)))];
    let fleet = MultiHostLauncher::of(parts).await.expect("both are there");
    let order = batch(vec![Place::On(node("a")), Place::On(node("c"))]);
    fleet.start(&order).await.expect("a part of it was accepted");
    let listing = fleet.list().await.expect("always");
    let status = listing.procs.iter().find(|status| status.proc == ProcId::rank(1, 1)).expect("it is reported");
    let error = status.phase.exit().and_then(|exit| exit.error.as_deref()).expect("the reason");
    assert!(error.retry_free && error.text.contains("c has no lease"), "{error:?}");
}

/// Returns a fleet with a host that is lost, the start that fails with it, and the history until then.
async fn start_on_a_lost_host() -> (Arc<MultiHostLauncher>, Arc<Lost>, tokio::task::JoinHandle<()>, Revision) {
    let lost = Lost::new("c");
    let parts: [Box<dyn Launcher>; 2] = [Box::new(FakeLauncher::with_nodes(["a"], 2)), Box::new(Arc::clone(&lost))];
    let fleet = Arc::new(MultiHostLauncher::of(parts).await.expect("both are there"));
    let at = fleet.list().await.expect("always").revision;
    let order = batch(vec![Place::On(node("a")), Place::On(node("c"))]);
    let starting = Arc::clone(&fleet);
    let start = tokio::spawn(async move { starting.start(&order).await.expect("a part of it was accepted") });
    tokio::time::sleep(Duration::from_secs(1)).await;
    (fleet, lost, start, at)
}

/// Returns what was reported of the host `c` and of the rank there, in order.
async fn told_of_c(fleet: &MultiHostLauncher, from: Revision) -> Vec<&'static str> {
    let words = |change: &Change| match change {
        Change::Node(status) if status.node == node("c") => Some(match status.state {
            NodeState::OutOfSight => "out of sight",
            NodeState::Left => "left",
            _ => "in sight",
        }),
        Change::Proc(status) if status.proc == ProcId::rank(1, 1) => Some(match &status.phase {
            Phase::Exited(_) => "its rank has ended",
            Phase::Pending(_) => "its rank may run",
            _ => "its rank runs",
        }),
        _ => None,
    };
    fleet.watch(from).await.expect("no cursor is lost").0.iter().filter_map(words).collect()
}

#[tokio::test(start_paused = true)]
async fn a_rank_whose_start_fails_with_its_host_ends_after_the_host() {
    let (fleet, lost, start, at) = start_on_a_lost_host().await;
    fleet.lose_sight(&node("c"));
    lost.is_lost.send_replace(true);
    start.await.expect("no panic");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(told_of_c(&fleet, at).await, ["out of sight", "its rank may run"], "whether it is lost is not known");
    fleet.remove(&node("c"), "c is lost");
    let all = ["out of sight", "its rank may run", "left", "its rank has ended"];
    assert_eq!(told_of_c(&fleet, at).await, all);

    // The same if the loss is known before the call has failed.
    let (fleet, lost, start, at) = start_on_a_lost_host().await;
    fleet.remove(&node("c"), "c is lost");
    lost.is_lost.send_replace(true);
    start.await.expect("no panic");
    let told = told_of_c(&fleet, at).await;
    assert_eq!((told.first(), told.last()), (Some(&"left"), Some(&"its rank has ended")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rank_whose_host_is_back_without_it_was_not_started() {
    let (fleet, lost, start, at) = start_on_a_lost_host().await;
    fleet.lose_sight(&node("c"));
    lost.is_lost.send_replace(true);
    start.await.expect("no panic");
    lost.is_lost.send_replace(false); // it had only lost the call
    let back = async {
        while told_of_c(&fleet, at).await.last() != Some(&"its rank has ended") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("it is known in the end");
    assert!(told_of_c(&fleet, at).await.contains(&"in sight"));
}

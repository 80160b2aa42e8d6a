//! Every method arrives once, through pointers and plugins around plugins.

use super::counted::LAUNCHER_METHODS;
use super::{Calls, Counted, FakeLauncher, HeartbeatDetector, ReplaceStrategy, ScriptedSource};
use crate::detect::{FaultDetector, Findings};
use crate::job::{CommandId, Counted as CountedRestart, Domain, IncidentId, JobTime, World};
use crate::launch::{DirectiveBatch, Launcher, PrepareOptions, Revision, StartBatch};
use crate::recover::{Cost, Incident, JobProfile, PlanExecution, Proposal, RecoveryStrategy};
use crate::testing::Timeline;
use crate::trace::{Probe, TraceSource};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

const SOURCE_METHODS: [&str; 4] = ["info", "next", "collect", "close"];
const DETECTOR_METHODS: [&str; 8] =
    ["name", "version", "config", "observe", "deadline", "expire", "snapshot", "restore"];
const STRATEGY_METHODS: [&str; 6] = ["name", "version", "config", "unsupported_reason", "propose", "advance"];

/// Changes nothing.
struct Around<P>(P);

#[async_trait]
impl<L: Launcher> Launcher for Around<L> {
    crate::delegate!(Launcher to |this| this.0);
}

#[async_trait]
impl<S: TraceSource> TraceSource for Around<S> {
    crate::delegate!(TraceSource to |this| this.0);
}

impl<D: FaultDetector> FaultDetector for Around<D> {
    crate::delegate!(FaultDetector to |this| this.0);
}

impl<S: RecoveryStrategy> RecoveryStrategy for Around<S> {
    crate::delegate!(RecoveryStrategy to |this| this.0);
}

fn arrived(calls: &Calls, methods: &[&'static str]) {
    assert_eq!(calls.missing(methods).collect::<Vec<_>>(), [""; 0]);
    methods.iter().for_each(|method| assert_eq!(calls.of(method), 1, "{method}"));
}

#[tokio::test(start_paused = true)]
async fn a_launcher_passes_each_call_on_once() {
    let calls = Calls::default();
    let launcher = Around(Box::new(Arc::new(Around(Counted::new(FakeLauncher::new(), &calls)))));
    let world = Arc::new(World::first(Default::default()));
    let batch = StartBatch::new(Arc::clone(&world), Vec::new());
    launcher.info();
    launcher.start(&batch).await.unwrap();
    launcher.stop(&[], Duration::ZERO).await.unwrap();
    let revision = launcher.list().await.unwrap().revision;
    launcher.watch(Revision { seq: 0, ..revision }).await.unwrap();
    launcher.acknowledge(&[]).await.unwrap();
    launcher.send_directives(CommandId(1), &DirectiveBatch::new(world, Vec::new())).await.unwrap_err();
    launcher.prepare(&batch, &PrepareOptions::new().with_in_loop(true)).await.unwrap();
    launcher.detach(Duration::ZERO).await.unwrap();
    launcher.begin_shutdown(Duration::ZERO);
    arrived(&calls, &LAUNCHER_METHODS);
}

#[tokio::test(start_paused = true)]
async fn a_source_passes_each_call_on_once() {
    let calls = Calls::default();
    let mut source = Around(Box::new(Around(Counted::new(ScriptedSource::new([Vec::new()]), &calls))));
    let (what, timeout) = ("anything", Duration::ZERO);
    let ask = Probe::new("test", what, Vec::new(), timeout).with_tag(1);
    source.info();
    source.next().await.unwrap().unwrap();
    source.collect(&ask, &Domain::Job).await.unwrap_err();
    source.close().await;
    arrived(&calls, &SOURCE_METHODS);
}

#[test]
fn a_detector_passes_each_call_on_once() {
    let calls = Calls::default();
    let good = HeartbeatDetector::new(Duration::from_secs(1));
    let mut detector = Around(Box::new(Around(Counted::new(good, &calls))));
    let (timeline, mut out) = (Timeline::healthy(), Findings::default());
    let moment = &timeline.moments()[0];
    detector.observe(&moment.observation, &moment.view, &mut out);
    detector.expire(&moment.view, &mut out);
    let _ = (detector.name(), detector.version(), detector.config(), detector.deadline());
    let saved = detector.snapshot().unwrap();
    detector.restore(&saved).unwrap();
    arrived(&calls, &DETECTOR_METHODS);
}

#[test]
fn a_strategy_passes_each_call_on_once() {
    let calls = Calls::default();
    let strategy = Around(Box::new(Arc::new(Around(Counted::new(ReplaceStrategy, &calls)))));
    let timeline = Timeline::healthy();
    let view = &timeline.moments()[0].view;
    let incident = Incident::new(IncidentId(1), JobTime::START, Vec::new());
    let _ = strategy.propose(&incident, view);
    let (name, _, _) = (strategy.name(), strategy.version(), strategy.config());
    strategy.unsupported_reason(&JobProfile::of(Arc::clone(&view.spec)));
    let proposal =
        Proposal::new(Vec::new(), Vec::new(), Cost::downtime(Duration::ZERO), CountedRestart::Yes, String::new());
    let run = PlanExecution::new(name, proposal, JobTime::START);
    strategy.advance(&run, view);
    arrived(&calls, &STRATEGY_METHODS);
}

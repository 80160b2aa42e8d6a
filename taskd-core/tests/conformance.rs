//! What is built in, and what can be put around a plugin, keeps the contracts that plugin authors are held to.
//!
//! The local launcher has this test beside its others, in `local_launcher`.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{
    self, FailSlowDetector, FaultDetectorExt, HangDetector, LogPatternDetector, NumericalDetector, ShrunkDetector,
    SlowRankDetector,
};
use taskd_core::job::{Domain, ErrorReport, Name, Rank};
use taskd_core::launch::{LauncherExt, RecorderSource};
use taskd_core::recover::{
    self, EmergencyCheckpoint, ExitStrategy, Grow, Recover, RecoveryStrategy, RecoveryStrategyExt, Restart, Retry,
    Shrink,
};
use taskd_core::testing::Timeline;
use taskd_core::testing::conformance::{self, fault_detector::SNAPSHOT_GOES_ON};
use taskd_core::testing::doubles::{FakeLauncher, ScriptedSource};
use taskd_core::trace::recorder::{Recorder, RecorderConfig};
use taskd_core::trace::synthetic::{Injection, SyntheticJob};
use taskd_core::trace::{Fact, Pace, RecordBatch, Signal, StepTimes, StoredSource, TraceSource, TraceSourceExt};

#[test]
fn default_detectors_pass_the_conformance_suite() {
    for which in 0..detect::defaults().len() {
        conformance::fault_detector(move || detect::defaults().remove(which)).assert();
    }
    conformance::fault_detector(ShrunkDetector::default).with_seeds(300).assert();
}

#[test]
fn slow_rank_and_fail_slow_detectors_pass_the_suite_with_slow_ranks() {
    let steps = |mut timeline: Timeline, numbers: std::ops::Range<u64>, slow: u64| {
        for step in numbers {
            timeline = timeline.wait(Duration::from_millis(110));
            for rank in 0..4 {
                let own = if rank == 1 { slow } else { 100 };
                let ms = |value: u64| value * 1_000_000;
                let wall = own.max(100) + 10;
                let times = StepTimes {
                    step,
                    wall_ns: ms(wall),
                    cpu_ns: Some(ms(90)),
                    wait_ns: ms(wall - own),
                    data_loader_ns: ms(2),
                    ..StepTimes::default()
                };
                timeline = timeline.rank(rank, Signal::Step(Box::new(times)));
            }
        }
        timeline
    };
    let healthy = steps(Timeline::of_ranks(4), 1..100, 100);
    let slow = steps(steps(healthy.clone(), 100..130, 150), 130..150, 100);
    let fail_slow = conformance::fault_detector(FailSlowDetector::new);
    fail_slow.with_healthy(healthy.clone()).with_timeline(slow.clone()).assert();
    conformance::fault_detector(SlowRankDetector::default).with_healthy(healthy).with_timeline(slow).assert();
    conformance::fault_detector(|| SlowRankDetector::default().when(|o| o.about != Domain::Job)).assert();
}

#[test]
fn a_hang_detector_passes_the_suite_with_pending_collectives() {
    let pending = Signal::CollectivePending { group: "default".into(), sequence: 8, nanos: 1_000_000_000 };
    let wait = |timeline: Timeline, rank| timeline.rank(rank, pending.clone()).wait(Duration::from_secs(3));
    let timeline = (0..40).fold(Timeline::of_ranks(4), |timeline, i| wait(timeline, i % 4));
    conformance::fault_detector(HangDetector::default).with_timeline(timeline).assert();
}

#[test]
fn a_numerical_detector_passes_the_suite_with_nan_losses() {
    let losses = |mut timeline: Timeline, count: u32, loss: f64| {
        for _ in 0..count {
            timeline = timeline.wait(Duration::from_millis(100));
            for rank in 0..4 {
                let value = if rank == 1 { loss } else { 2.0 };
                timeline = timeline.rank(rank, Signal::Metric { name: Name::new("loss"), value });
            }
        }
        timeline
    };
    let healthy = losses(Timeline::of_ranks(4), 40, 2.0);
    let ill = losses(losses(healthy.clone(), 3, f64::NAN), 20, 2.0);
    conformance::fault_detector(NumericalDetector::default).with_healthy(healthy).with_timeline(ill).assert();
}

#[test]
fn a_log_pattern_detector_passes_the_suite_with_known_lines() {
    let lines =
        ["CUDA out of memory", "Connection closed by peer", "uncorrectable ECC error encountered", "of no table"];
    let timeline = (0..12).zip(lines.into_iter().cycle()).fold(Timeline::of_ranks(4), |timeline, (at, line)| {
        let error = Box::new(ErrorReport::new(Name::new("log"), Name::new("line"), line));
        let signal = if at < 6 { Signal::Error(error) } else { Signal::FailureRecorded(error) };
        timeline.rank(at % 4, signal).wait(Duration::from_secs(1))
    });
    conformance::fault_detector(LogPatternDetector::default).with_timeline(timeline).assert();
}

#[test]
fn strategies_pass_the_conformance_suite() {
    fn passes<S: RecoveryStrategy + 'static>(make: fn() -> S) {
        conformance::recovery_strategy(make).with_seeds(300).assert();
    }
    passes(Shrink::new);
    passes(|| Shrink::new().before_restart());
    passes(Grow::new);
    passes(Retry::new);
    passes(Recover::in_place);
    passes(Recover::elsewhere);
    passes(EmergencyCheckpoint::then_restart);
    passes(EmergencyCheckpoint::then_exit);
    passes(ExitStrategy::new);
    passes(Restart::new);
}

#[test]
fn built_in_strategies() {
    for which in 0..recover::defaults().len() {
        let make = move || recover::defaults().remove(which);
        conformance::recovery_strategy(make).assert();
        conformance::recovery_strategy(move || Arc::new(make().limit(2))).assert();
    }
}

#[test]
fn built_in_detectors_with_something_around_them() {
    for which in 0..detect::defaults().len() {
        let make = move || detect::defaults().remove(which);
        conformance::fault_detector(move || make().when(|o| o.about != Domain::Job)).assert();
        let debounced = conformance::fault_detector(move || make().debounce(2)).assert();
        let skipped: Vec<_> = debounced.skipped().iter().map(|(clause, _)| *clause).collect();
        assert_eq!(skipped, [SNAPSHOT_GOES_ON]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_launcher_with_a_timeout_around_it() {
    let fake = FakeLauncher::new();
    let make = async |_owner| Box::new(fake.attach().timeout(Duration::from_secs(1)));
    conformance::launcher(make, fake.programs()).assert().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_under_another_name() {
    let facts: Vec<Fact> = (0..9).map(|step| Fact::new(Domain::Job, Signal::Progress { step })).collect();
    let make = async || ScriptedSource::new(facts.chunks(2).map(<[Fact]>::to_vec)).named("another").boxed();
    conformance::trace_source(make).with_reference(facts.clone()).assert().await;
}

/// Returns all facts of a source until it ends, or reports nothing for a while.
async fn all(mut source: impl TraceSource) -> Vec<Fact> {
    let mut facts = Vec::new();
    while let Ok(Some(batch)) = tokio::time::timeout(Duration::from_secs(5), source.next()).await {
        facts.extend(batch.unwrap().facts);
    }
    facts
}

#[tokio::test(start_paused = true)]
async fn sources_of_stored_and_synthetic_records() {
    let frozen = || SyntheticJob::new(4).steps(40).inject(Injection::Frozen { rank: Rank(2), at_step: 31 });
    let stored: Vec<RecordBatch> = frozen().run().collect();
    let facts = all(StoredSource::new(stored.clone().into_iter())).await;
    assert!(facts.len() >= 120);
    let make = async || StoredSource::new(stored.clone().into_iter());
    conformance::trace_source(make).with_reference(facts.clone()).with_batches(1000).assert().await;
    let make = async || StoredSource::new(stored.clone().into_iter()).pace(Pace::RealTime);
    conformance::trace_source(make).with_reference(facts).with_batches(1000).assert().await;
    let facts = all(frozen().source()).await;
    let make = async || frozen().source();
    conformance::trace_source(make).with_reference(facts).with_batches(1000).assert().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_of_a_recorder() {
    let config = RecorderConfig { records_per_thread: 1024, ..RecorderConfig::default() };
    let memory = config.memory().unwrap();
    let recorder = Arc::new(Recorder::create(memory.try_clone().unwrap(), config).unwrap());
    let mut next = 0;
    let stimulus = move |_| {
        next += 1;
        let mut thread = recorder.thread();
        let step = thread.begin_step(next).unwrap();
        thread.end_step(step);
    };
    let step_of = |fact: &Fact| if let Signal::Step(times) = &fact.signal { Some(times.step) } else { None };
    let page = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let make = async || RecorderSource::of_this_process(page.clone().into());
    conformance::trace_source(make).with_numbers(step_of).with_stimulus(stimulus).assert().await;
}

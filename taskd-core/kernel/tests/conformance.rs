//! Every built-in detector and strategy passes the conformance suite of its trait.

use std::time::Duration;
use taskd_core::detect::{self, FaultDetectorExt, HangDetector, ShrunkDetector, SlowRankDetector};
use taskd_core::job::Domain;
use taskd_core::recover::{EmergencyCheckpoint, ExitStrategy, Grow, Recover, RecoveryStrategy, Restart, Retry, Shrink};
use taskd_core::testing::{Timeline, conformance};
use taskd_core::trace::{Signal, StepTimes};

#[test]
fn default_detectors_pass_the_conformance_suite() {
    for which in 0..detect::defaults().len() {
        conformance::fault_detector(move || detect::defaults().remove(which)).assert();
    }
    conformance::fault_detector(ShrunkDetector::default).with_seeds(300).assert();
}

#[test]
fn a_slow_rank_detector_passes_the_suite_with_slow_ranks() {
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

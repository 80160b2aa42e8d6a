//! Properties of all built-in detectors under any input: they are pure, their deadline moves forward, and a restored
//! detector behaves like the one that was saved.

use super::fixture::{KILLED, Scene, dead, exception, exited, failed, follow_up, lost_race, rank_domain};
use super::{
    FailSlowDetector, FaultClass, FaultDetector, FaultDetectorExt, Finding, LogPatternDetector, NumericalDetector,
    SilenceDetector, SlowRankDetector, defaults,
};
use crate::job::{Generation, Incarnation, Name, Termination};
use crate::trace::{
    Call, Channel, DeviceTimes, GroupPosition, Observation, Probe, ProbeResult, Signal, StepTimes, StepTransfers,
    TransferTime,
};
use proptest::prelude::*;
use std::time::Duration;

const RANKS: u32 = 3;

/// All built-in detectors, including those that are not registered by default.
fn built_in() -> Vec<Box<dyn FaultDetector>> {
    let mut detectors = defaults();
    detectors.push(SlowRankDetector::default().boxed());
    detectors.push(FailSlowDetector::new().boxed());
    detectors.push(NumericalDetector::default().boxed());
    detectors.push(LogPatternDetector::default().boxed());
    detectors
}

#[derive(Clone, Debug)]
enum Event {
    Tell(u32, Signal),
    /// A signal from a source that names no incarnation, or an older one.
    Foreign(u32, Option<u32>, Signal),
    Answer(u32, ProbeResult),
    Pass(u64),
    Slept,
    Restart,
    Unwant(u32),
}

fn signal() -> impl Strategy<Value = Signal> {
    let ends = prop_oneof![
        Just(Termination::Code(0)),
        Just(Termination::Code(1)),
        Just(Termination::Code(64)),
        Just(KILLED),
        Just(Termination::Unknown)
    ];
    let reports =
        prop_oneof![Just(exception("bad")), Just(exception("NPU out of memory")), Just(follow_up()), Just(lost_race())];
    prop_oneof![
        8 => Just(Signal::Heartbeat),
        4 => (0..20_u64).prop_map(|step| Signal::Progress { step }),
        2 => ends.clone().prop_map(dead),
        2 => ends.prop_map(exited),
        2 => reports.prop_map(failed),
        2 => (0..3_u64).prop_map(pending),
        4 => step().prop_map(|times| Signal::Step(Box::new(times))),
        4 => device_step().prop_map(|times| Signal::DeviceStep(Box::new(times))),
        4 => transfers().prop_map(|transfers| Signal::StepTransfers(Box::new(transfers))),
        4 => metric(),
    ]
}

fn pending(sequence: u64) -> Signal {
    Signal::CollectivePending { group: "default".into(), sequence, nanos: 1_000_000_000 }
}

/// Generates the positions in process groups that a rank may report.
fn groups() -> impl Strategy<Value = ProbeResult> {
    let call = (0..4_u64, 0..2_u64, any::<bool>()).prop_map(|(sequence, elements, is_pending)| Call {
        sequence,
        operation: "allreduce".into(),
        elements,
        data_type: "f32".into(),
        begun: Duration::from_secs(400),
        is_pending,
    });
    proptest::collection::vec(call, 0..4).prop_map(|recent| {
        ProbeResult::Groups(vec![GroupPosition { group: "default".into(), members: (0..RANKS).collect(), recent }])
    })
}

/// Generates a figure of the training.
fn metric() -> impl Strategy<Value = Signal> {
    let name = prop_oneof![Just("loss"), Just("grad_norm"), Just("other")];
    let value = prop_oneof![4 => Just(1.0), 2 => any::<f64>(), 1 => Just(f64::NAN)];
    (name, value).prop_map(|(name, value)| Signal::Metric { name: Name::new(name), value })
}

fn step() -> impl Strategy<Value = StepTimes> {
    let nanos = || prop_oneof![Just(0), 1..200_000_000_u64, Just(u64::MAX)];
    let times = (0..200_u64, nanos(), nanos(), proptest::option::of(nanos()), 0..2_u64);
    times.prop_map(|(step, wall_ns, wait_ns, cpu_ns, lost)| StepTimes {
        step,
        wall_ns,
        wait_ns,
        cpu_ns,
        lost,
        ..StepTimes::default()
    })
}

/// Generates transfers, which may be inconsistent.
fn transfers() -> impl Strategy<Value = StepTransfers> {
    let nanos = || prop_oneof![Just(0), 1..200_000_000_u64, Just(u64::MAX)];
    let time = || (0..4_u64, nanos()).prop_map(|(sequence, before_end_ns)| TransferTime { sequence, before_end_ns });
    let first = || proptest::collection::vec(time(), 0..3);
    let channel = (0..=RANKS, any::<bool>(), prop_oneof![Just(2), Just(u32::MAX)], nanos(), first()).prop_map(
        |(peer, is_send, calls, shortest_ns, first)| Channel { peer, is_send, group: 7, calls, shortest_ns, first },
    );
    (0..200_u64, nanos(), proptest::collection::vec(channel, 0..5))
        .prop_map(|(step, ended_unix_ns, channels)| StepTransfers { step, ended_unix_ns, channels, left_out: 0 })
}

fn device_step() -> impl Strategy<Value = DeviceTimes> {
    let nanos = || prop_oneof![Just(0), 1..200_000_000_u64, Just(u64::MAX)];
    let times = (0..200_u64, nanos(), nanos(), nanos(), 0..2_u64);
    times.prop_map(|(step, compute_ns, wait_ns, idle_ns, lost)| DeviceTimes {
        step,
        compute_ns,
        communication_ns: wait_ns,
        wait_ns,
        idle_ns,
        lost,
        ..DeviceTimes::default()
    })
}

fn event() -> impl Strategy<Value = Event> {
    let exhibit = prop_oneof![
        Just(ProbeResult::Text("state=T".into())),
        Just(ProbeResult::Text("state=S beat_age_ms=7000".into())),
        Just(ProbeResult::Text("state=S beat_age_ms=10".into())),
        Just(ProbeResult::Text("state=R beat_age_ms=7000 runnable=1 ran_age_ms=0".into())),
        Just(ProbeResult::Text("state=S beat_age_ms=7000 ran_age_ms=-".into())),
        Just(ProbeResult::Silence),
        groups(),
    ];
    prop_oneof![
        8 => (0..RANKS, signal()).prop_map(|(rank, signal)| Event::Tell(rank, signal)),
        1 => (0..RANKS + 2, proptest::option::of(0..4_u32), signal()).prop_map(|(r, i, s)| Event::Foreign(r, i, s)),
        3 => (0..RANKS, exhibit).prop_map(|(rank, exhibit)| Event::Answer(rank, exhibit)),
        6 => prop_oneof![0..2_000_u64, 2_000..700_000_u64].prop_map(Event::Pass),
        1 => Just(Event::Slept),
        2 => Just(Event::Restart),
        1 => (0..RANKS).prop_map(Event::Unwant),
    ]
}

/// One detector in its own job.
struct Trial {
    scene: Scene,
    detector: Box<dyn FaultDetector>,
    asked: Option<Probe>,
}

impl Trial {
    fn new(which: usize) -> Trial {
        Trial { scene: Scene::of(RANKS), detector: built_in().remove(which), asked: None }
    }

    fn take(&mut self, event: &Event) -> Vec<Finding> {
        let Trial { scene, detector, asked } = self;
        let detector = &mut **detector;
        let mut found = match event.clone() {
            Event::Tell(rank, signal) => scene.tell(detector, rank, signal),
            Event::Foreign(rank, incarnation, signal) => {
                let incarnation = incarnation.map(Incarnation);
                let (at, about) = (scene.view.now, rank_domain(rank));
                let generation = Some(Generation(1));
                scene.observe(detector, Observation { at, about, incarnation, generation, signal })
            }
            Event::Answer(rank, exhibit) => match asked.clone() {
                Some(ask) => scene.answer(detector, &ask, rank, exhibit),
                None => Vec::new(),
            },
            Event::Pass(ms) => {
                scene.pass(ms);
                Vec::new()
            }
            Event::Slept => scene.slept(detector),
            Event::Restart => {
                scene.restart();
                Vec::new()
            }
            Event::Unwant(rank) => {
                scene.proc(rank).wanted = false;
                Vec::new()
            }
        };
        found.extend(scene.expire(detector)); // also checks that the deadline moves forward
        for finding in &found {
            if let Finding::Probe(ask) = finding {
                *asked = Some(ask.clone());
            }
        }
        found
    }
}

/// Formats findings as text for comparison, because they may contain NaN.
fn said(found: &[Finding], detector: &dyn FaultDetector) -> String {
    format!("{found:?} {:?}", detector.deadline())
}

proptest! {
    #[test]
    fn the_same_events_give_the_same_findings_also_after_a_restore(
        which in 0..built_in().len(),
        events in proptest::collection::vec(event(), 1..120),
        restored_at in 0..120_usize,
    ) {
        let (mut one, mut other) = (Trial::new(which), Trial::new(which));
        for (i, event) in events.iter().enumerate() {
            if i == restored_at {
                let saved = other.detector.snapshot().expect("every built-in detector saves its state");
                let mut fresh = built_in().remove(which);
                fresh.restore(&saved).expect("its own state");
                prop_assert_eq!(fresh.snapshot(), Some(saved));
                other.detector = fresh;
            }
            let (ours, theirs) = (one.take(event), other.take(event));
            prop_assert_eq!(said(&ours, &*one.detector), said(&theirs, &*other.detector));
        }
    }

    #[test]
    fn any_bytes_are_a_state_or_are_refused(
        which in 0..built_in().len(),
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        events in proptest::collection::vec(event(), 1..20),
    ) {
        let mut trial = Trial::new(which);
        let bytes = [&[1], &bytes[..]].concat(); // version 1: states with another first byte are refused
        if trial.detector.restore(&bytes).is_ok() {
            for event in &events {
                trial.take(event);
            }
        }
    }
}

proptest! {
    /// Under any other input, a process that was not seen frozen or asleep is not blamed for silence within the busy
    /// limit.
    #[test]
    fn no_busy_process_is_blamed_for_its_silence(events in proptest::collection::vec(event(), 1..120)) {
        for which in 0..built_in().len() {
            let mut trial = Trial::new(which);
            let began = trial.scene.view.now;
            for event in &events {
                let event = match event {
                    Event::Answer(rank, _) => Event::Answer(*rank, ProbeResult::Text("state=R beat_age_ms=7000 runnable=1".into())),
                    Event::Pass(ms) => Event::Pass(*ms % 20_000),
                    other => other.clone(),
                };
                let found = trial.take(&event);
                let is_silence = |f: &Finding| matches!(f, Finding::Blame(fault) if fault.primary_suspect().class == FaultClass::Silence);
                let within_minutes = trial.scene.view.now.since(began) < SilenceDetector::BUSY_FOR;
                prop_assert!(!within_minutes || !found.iter().any(is_silence), "{found:?}");
            }
        }
    }
}

#[test]
fn default_detectors_have_distinct_names_and_report_their_settings() {
    let names: Vec<String> = defaults().iter().map(|d| d.name().to_string()).collect();
    assert_eq!(names, ["exit", "failed-step", "program-error", "silence", "stall", "restart-storm", "hang", "shrunk"]);
    let configs: Vec<String> = defaults().iter().map(|d| d.config()).collect();
    assert_eq!(configs[0], "exact_within_ms=10000");
    let of_times = [
        "limit_ms=10000 busy_limit_ms=300000",
        "bound_ms=600000",
        "restarts_max=5 window_ms=600000",
        "missing_after_ms=300000",
    ];
    let others = [&of_times[..], &["after_ms=300000"]].concat();
    assert_eq!(configs[3..], others);
    assert_eq!(super::ExitDetector::new().debounce(2).name(), "exit");
}

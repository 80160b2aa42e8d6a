use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::VecDeque;
use taskd_core::detect::{Fault, FaultClass, Finding, Health};
use taskd_core::job::{Incarnation, NodeId, Rank, Role};
use taskd_core::launch::Phase;
use taskd_core::testing::{Timeline, conformance};
use taskd_core::trace::Ext;

/// Ranks 0 to 3 run on host-0 with a device each, the others on host-1.
struct Job {
    detector: GpuDetector,
    view: View,
}

fn device(index: u16) -> Domain {
    Domain::Device(NodeId(Name::new("host-0")), index)
}

fn rank(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

fn error(family: Name, code: impl ToString, text: &str) -> Signal {
    let code = Name::from(code.to_string());
    Signal::Error(Box::new(ErrorReport::new(family, code, text)))
}

fn xid(code: u32, text: &str) -> Signal {
    error(XID, code, text)
}

impl Job {
    fn new() -> Job {
        Job { detector: GpuDetector::new(), view: Timeline::of_ranks(8).steady(Duration::from_secs(1)).view().clone() }
    }

    fn tell(&mut self, about: Domain, signal: Signal) -> Vec<Finding> {
        let at = self.view.now;
        let mut out = Findings::default();
        let o = Observation::new(at, about, signal);
        self.detector.observe(&o, &self.view, &mut out);
        out.drain().collect()
    }

    fn figure(&mut self, name: Name, value: f64) -> Vec<Finding> {
        self.tell(device(1), Signal::Metric { name, value })
    }

    /// Advances the time, and judges what is due.
    fn pass(&mut self, seconds: f64) -> Vec<Finding> {
        self.view.now = self.view.now + Duration::from_secs_f64(seconds);
        let mut out = Findings::default();
        if self.detector.deadline().is_some_and(|at| at <= self.view.now) {
            self.detector.expire(&self.view, &mut out);
            assert!(self.detector.deadline().is_none_or(|at| at > self.view.now));
        }
        out.drain().collect()
    }

    fn pid(&self, rank: u32) -> u32 {
        self.view.procs[&Role::Rank(Rank(rank))].pid.expect("a pid")
    }
}

fn fault(findings: &[Finding]) -> &Fault {
    match findings {
        [Finding::Blame(fault)] => fault,
        other => panic!("one fault was expected: {other:?}"),
    }
}

fn class(findings: &[Finding]) -> String {
    fault(findings).primary_suspect().class.to_string()
}

fn clue<'a>(fault: &'a Fault, what: &str) -> &'a str {
    &fault.evidence.iter().find(|clue| clue.what == what).unwrap_or_else(|| panic!("no clue {what}: {fault:?}")).text
}

#[test]
fn gpu_off_the_bus_is_blamed_with_the_advice_of_nvidia() {
    let mut job = Job::new();
    let identity =
        GpuIdentity { uuid: "GPU-1".into(), pci: "0000:3c:00".into(), model: "H100".into(), ..GpuIdentity::default() };
    assert_eq!(job.tell(device(1), Signal::Ext(Box::new(Ext::of(&identity)))), []);
    assert_eq!(job.tell(device(1), xid(63, "Row Remapper: New row")), [], "information");
    let found = job.tell(device(1), xid(79, "GPU has fallen off the bus."));
    let fault = fault(&found);
    let suspect = fault.primary_suspect();
    assert_eq!(
        (&suspect.domain, suspect.class.to_string().as_str(), suspect.is_certain()),
        (&device(1), "device", true)
    );
    let damage = suspect.damage;
    assert_eq!(
        [damage.process, damage.state, damage.device, damage.program],
        [Health::Faulty, Health::Faulty, Health::Faulty, Health::Unknown]
    );
    assert_eq!(clue(fault, "said"), "Xid 79, GPU has fallen off the bus: GPU has fallen off the bus.");
    assert!(clue(fault, "to_do").contains("reboot"));
    assert!(clue(fault, "xids_before").starts_with("63 "));
    assert_eq!(clue(fault, "card"), "H100, GPU-1, at 0000:3c:00");
    assert_eq!(fault.error.as_ref().map(|error| error.code.as_str()), Some("79"));
}

#[test]
fn xid_of_an_unused_gpu_is_reported_without_damage() {
    let mut job = Job::new();
    let found = job.tell(device(7), xid(79, "gone"));
    assert_eq!(class(&found), "gpu-xid");
    assert!(fault(&found).primary_suspect().damage.is_still_training());
    let found = job.tell(Domain::Node(NodeId(Name::new("host-0"))), xid(79, "device 0000:99:00: gone"));
    assert!(fault(&found).primary_suspect().damage.is_still_training(), "of a device that is not watched");
}

#[test]
fn an_applications_error_never_blames_the_gpu() {
    for code in [13, 31, 43, 45, 11, 32, 69, 94] {
        for ours in [true, false] {
            let mut job = Job::new();
            let pid = if ours { job.pid(1) } else { 4_000_000 };
            let text = format!("pid={pid}, name=python3, Graphics SM Warp Exception");
            let mut found = job.tell(device(1), xid(code, &text));
            found.extend(job.pass(30.0));
            for finding in found {
                let Finding::Blame(fault) = finding else { panic!("{finding:?}") };
                assert!(fault.suspects().iter().all(|suspect| suspect.domain == rank(1)), "Xid {code}: {fault:?}");
                assert_ne!(fault.primary_suspect().damage.device, Health::Faulty);
            }
        }
    }
}

#[test]
fn rank_is_blamed_only_if_it_hangs_after_its_gpu_error() {
    let sent = |job: &mut Job| {
        let text = format!("pid={}, name=python3, MMU Fault", job.pid(1));
        assert_eq!(job.tell(device(1), xid(31, &text)), []);
        assert_eq!(job.pass(9.0), [], "it has time to end by itself");
    };
    let mut job = Job::new();
    sent(&mut job);
    let found = job.pass(1.1);
    let fault = fault(&found);
    assert_eq!((&fault.primary_suspect().domain, fault.incarnation()), (&rank(1), Some(Incarnation(1))));
    assert_eq!(fault.primary_suspect().class, FaultClass::Program);
    assert_eq!(
        (fault.primary_suspect().damage.process, fault.primary_suspect().damage.device),
        (Health::Faulty, Health::Healthy)
    );
    assert_eq!(fault.advice, Some(Name::new("restart")));
    assert!(clue(fault, "process").contains("10 s"));

    let change = |change: fn(&mut taskd_core::state::Proc, JobTime)| {
        let mut job = Job::new();
        sent(&mut job);
        let now = job.view.now;
        change(job.view.procs.get_mut(&Role::Rank(Rank(1))).unwrap(), now);
        job.pass(5.0)
    };
    assert_eq!(change(|proc, now| (proc.step, proc.progress_at) = (Some(9), now)), [], "it trains on");
    assert_eq!(change(|proc, _| proc.phase = Phase::Dead(taskd_core::job::Termination::Code(1))), [], "it ended");
    assert_eq!(change(|proc, _| proc.incarnation = Incarnation(2)), [], "it was replaced");
    assert_eq!(change(|proc, _| proc.wanted = false), [], "it is being stopped");
}

#[test]
fn an_error_of_a_process_on_a_broken_gpu_is_the_gpus() {
    let mut job = Job::new();
    let text = format!("pid={}, name=python3, MMU Fault", job.pid(1));
    job.tell(device(1), xid(31, &text));
    assert_eq!(class(&job.tell(device(1), xid(79, "gone"))), "device");
    job.tell(device(1), xid(13, &text));
    assert_eq!(job.pass(60.0), []);
}

#[test]
fn a_double_bit_error_is_the_gpus_unless_it_was_contained() {
    let mut job = Job::new();
    assert_eq!(job.tell(device(1), xid(48, "DBE")), [], "more may follow");
    assert_eq!(job.tell(device(1), xid(48, "DBE")), [], "the same again");
    assert_eq!(class(&job.pass(2.0)), "device");

    let mut job = Job::new();
    let contained = format!("pid={}, Contained: SM (0x1). RST: No, D-RST: No", job.pid(1));
    job.tell(device(1), xid(48, "DBE"));
    assert_eq!(job.tell(device(1), xid(94, &contained)), []);
    let found = job.pass(11.0);
    assert_eq!(fault(&found).primary_suspect().domain, rank(1), "its process only, which did not end");
    assert_eq!(fault(&found).primary_suspect().class, FaultClass::Device, "not the program's own error");

    let mut job = Job::new();
    job.tell(device(1), xid(94, "Contained"));
    assert_eq!(job.tell(device(1), xid(48, "DBE")), [], "in the other order");
    assert_eq!(job.pass(20.0), []);
}

#[test]
fn unknown_and_manual_action_xids_are_reported_without_damage() {
    let mut job = Job::new();
    for (code, to_do) in
        [(9999, "reported only"), (74, "NVLink"), (151, "virtual machine"), (54, "cables"), (167, "support")]
    {
        let found = job.tell(device(1), xid(code, "words"));
        let fault = fault(&found);
        assert!(fault.primary_suspect().damage.is_still_training() && fault.primary_suspect().is_cause(), "Xid {code}");
        assert!(clue(fault, "to_do").contains(to_do), "Xid {code}: {}", clue(fault, "to_do"));
    }
    assert_eq!(class(&job.tell(Domain::Node(NodeId(Name::new("host-0"))), error(SXID, 28006, "switch"))), "gpu-xid");
    assert_eq!(job.tell(device(1), xid(0, "").clone()).len(), 1, "also a number that cannot be");
    assert_eq!(job.tell(device(1), error(XID, "no number", "")), []);
}

#[test]
fn the_drivers_own_word_counts() {
    let mut job = Job::new();
    let changed = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
    assert_eq!(class(&job.tell(device(1), xid(154, changed))), "device");
    let back = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
    assert_eq!(job.tell(device(1), xid(154, back)), []);
    assert_eq!(class(&job.tell(device(2), xid(154, "in an unknown form"))), "gpu-xid");

    let mut job = Job::new();
    assert_eq!(job.figure(metric::RECOVERY_ACTION, 0.0), []);
    assert_eq!(class(&job.figure(metric::RECOVERY_ACTION, 2.0)), "device");
    assert_eq!(job.figure(metric::RECOVERY_ACTION, 0.0), [Finding::Clear(device(1), FaultClass::Device)]);
    assert_eq!(class(&job.figure(metric::RECOVERY_ACTION, 3.0)), "gpu-xid");
    assert_eq!(class(&job.figure(metric::RECOVERY_ACTION, 77.0)), "gpu-xid");
}

#[test]
fn a_gpu_is_well_again_when_it_answers_is_reset_or_is_another() {
    let gpu = |uuid: &str| Signal::Ext(Box::new(Ext::of(&GpuIdentity { uuid: uuid.into(), ..GpuIdentity::default() })));
    let cleared = [Finding::Clear(device(1), FaultClass::Device)];
    let mut job = Job::new();
    job.tell(device(1), gpu("GPU-1"));
    assert_eq!(class(&job.tell(device(1), error(NVML, GPU_LOST, "lost"))), "device");
    assert_eq!(job.tell(device(1), gpu("GPU-1")), cleared, "it answers");

    job.tell(device(1), xid(79, "gone"));
    assert_eq!(job.tell(device(1), gpu("GPU-1")), [], "the identity of the same card is no repair");
    assert_eq!(job.tell(device(1), gpu("GPU-2")), cleared, "it was replaced");

    job.tell(device(1), error(NVML, RESET_REQUIRED, "reset"));
    assert_eq!(job.tell(device(1), error(NVML, COUNTER_WENT_BACK, "it was reset")), cleared);
    assert_eq!(job.tell(device(1), error(NVML, Name::new("kernel-log-unavailable"), "")), []);
}

#[test]
fn lasting_heat_is_reported_and_cleared_after_a_cool_period() {
    let mut job = Job::new();
    assert_eq!(job.figure(metric::TEMPERATURE, 200.0), [], "no limit is known");
    job.figure(metric::TEMPERATURE_SLOWDOWN, 95.0);
    let hot = |job: &mut Job, value| {
        job.pass(5.0);
        job.figure(metric::TEMPERATURE, value)
    };
    for _ in 0..20 {
        assert_eq!(hot(&mut job, 96.0), [], "two of five are none");
        assert_eq!(hot(&mut job, 80.0), []);
        assert_eq!(hot(&mut job, 80.0), []);
    }
    hot(&mut job, 80.0);
    hot(&mut job, 96.0);
    hot(&mut job, 97.0);
    let found = hot(&mut job, 98.0);
    let heat = fault(&found);
    assert_eq!(heat.primary_suspect().class, FaultClass::Other(Name::new("gpu-hot")));
    assert!(heat.primary_suspect().damage.is_still_training());
    let figure = heat.evidence.iter().find(|clue| clue.what == metric::TEMPERATURE).unwrap();
    assert_eq!((figure.value, figure.usual), (Some(98.0), Some(95.0)));
    assert!(clue(heat, "to_do").contains("air flow"));
    for _ in 0..20 {
        assert_eq!(hot(&mut job, 93.0), [], "below the limit, and not by the margin");
    }
    let mut found = Vec::new();
    for _ in 0..6 {
        assert_eq!(found, [], "not for long");
        found = hot(&mut job, 85.0);
    }
    found.extend(hot(&mut job, 85.0));
    assert_eq!(found, [Finding::Clear(device(1), FaultClass::Other(Name::new("gpu-hot")))]);
}

/// A driver without a threshold may report 0.
#[test]
fn a_limit_of_zero_is_none() {
    let mut job = Job::new();
    for value in [0.0, 41.0, 0.0, 60.0] {
        job.pass(5.0);
        assert_eq!(job.figure(metric::MEMORY_TEMPERATURE_MAX, 0.0), []);
        assert_eq!(job.figure(metric::MEMORY_TEMPERATURE, value), [], "no limit is known");
        assert_eq!(job.figure(metric::TEMPERATURE_SLOWDOWN, 0.0), []);
        assert_eq!(job.figure(metric::TEMPERATURE, value), []);
    }
}

#[test]
fn counter_growth_is_reported_only_within_its_time_window() {
    let mut job = Job::new();
    assert_eq!(job.figure(metric::PCIE_REPLAY, 100.0), [], "what was before is not growth");
    for count in 1..20 {
        job.pass(30.0);
        assert_eq!(job.figure(metric::PCIE_REPLAY, 100.0 + 3.0 * f64::from(count)), [], "six a minute are not eight");
    }
    job.pass(10.0);
    let found = job.figure(metric::PCIE_REPLAY, 170.0);
    assert_eq!(class(&found), "gpu-pcie-replays");
    let mut cleared = 0;
    for _ in 0..100 {
        job.pass(5.0);
        cleared += job.figure(metric::TEMPERATURE, 40.0).len();
    }
    assert_eq!(cleared, 1, "another metric shows that time has passed");
    assert_eq!(job.figure(metric::PCIE_REPLAY, 0.0), [], "a counter that restarts has not grown");
}

#[test]
fn device_bound_reached_is_reported_once() {
    let mut job = Job::new();
    let node = |n: usize| Domain::Device(NodeId(Name::from(format!("host-{n}"))), 0);
    let mut found = Vec::new();
    for n in 0..DEVICES_MAX + 3 {
        found.extend(job.tell(node(n), Signal::Metric { name: metric::POWER, value: 1.0 }));
    }
    assert_eq!(fault(&found).primary_suspect().domain, Domain::Plugin(NAME));
    assert_eq!(job.detector.state.watches.len(), DEVICES_MAX);
}

#[test]
fn a_users_rules_and_table_are_used_and_stand_in_the_configuration() {
    let rule = Rule::level("warm", metric::TEMPERATURE, Limit::Value(30.0), 0.0, "open a window");
    let rule = Rule { way: Way::Level { least: 1, of: 1 }, ..rule };
    let mut table = XidTable::built_in();
    table.extend_from(r#"{"xids": [{"xid": 4242, "name": "ours", "action": "reset-gpu"}]}"#).unwrap();
    let mut job = Job::new();
    let usual = job.detector.config();
    job.detector = GpuDetector::new().with_rules([rule]).with_table(table);
    assert_ne!(job.detector.config(), usual);
    assert!(job.detector.config().contains("warm: gpu.temperature_c>=30 1/1"), "{}", job.detector.config());
    assert_eq!(class(&job.figure(metric::TEMPERATURE, 31.0)), "warm");
    assert_eq!(class(&job.tell(device(1), xid(4242, ""))), "device");
}

/// Possible observations about GPUs, including invalid ones.
fn signal() -> impl Strategy<Value = Signal> {
    let codes = prop_oneof![0..180_u32, Just(999), any::<u32>()];
    let texts = prop_oneof![
        Just("pid=1001, name=python3, words".to_owned()),
        Just("changed from 0x0 to 0x2 (x)".to_owned()),
        ".{0,40}",
    ];
    let nvml = prop::sample::select(vec![GPU_LOST, RESET_REQUIRED, COUNTER_WENT_BACK, Name::new("other")]);
    let values = prop_oneof![-10.0..200.0_f64, Just(f64::NAN), Just(f64::INFINITY), Just(1.0), Just(0.0), Just(2.0)];
    let uuids = prop::sample::select(vec!["", "GPU-1", "GPU-2"]);
    prop_oneof![
        3 => (codes, texts).prop_map(|(code, text)| xid(code, &text)),
        1 => nvml.prop_map(|code| error(NVML, code, "")),
        4 => (prop::sample::select(metric::ALL), values).prop_map(|(name, value)| Signal::Metric { name, value }),
        1 => uuids.prop_map(|uuid| Signal::Ext(Box::new(Ext::of(&GpuIdentity { uuid: uuid.into(), ..GpuIdentity::default() })))),
    ]
}

fn text(findings: &[Finding], detector: &GpuDetector) -> String {
    format!("{findings:?} {:?}", detector.deadline()) // compared as text, since NaN is not equal to itself
}

proptest! {
    #[test]
    fn the_same_events_give_the_same_findings_also_after_a_restore(
        events in prop::collection::vec((0..3_u16, signal(), 0.0..40.0_f64), 1..120),
        restored_at in 0..120_usize,
    ) {
        let (mut one, mut other) = (Job::new(), Job::new());
        for (i, (index, signal, seconds)) in events.into_iter().enumerate() {
            if i == restored_at {
                let saved = other.detector.snapshot().expect("its state");
                other.detector = GpuDetector::new();
                prop_assert_eq!(other.detector.restore(&saved), Ok(()));
                prop_assert_eq!(other.detector.snapshot(), Some(saved));
            }
            let (ours, theirs) = (one.tell(device(index), signal.clone()), other.tell(device(index), signal));
            prop_assert_eq!(text(&ours, &one.detector), text(&theirs, &other.detector));
            let (ours, theirs) = (one.pass(seconds), other.pass(seconds));
            prop_assert_eq!(text(&ours, &one.detector), text(&theirs, &other.detector));
        }
    }

    #[test]
    fn any_bytes_are_a_state_or_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        events in prop::collection::vec(signal(), 1..20),
    ) {
        let mut job = Job::new();
        let held = job.detector.snapshot();
        if job.detector.restore(&[&[SNAPSHOT_VERSION], &bytes[..]].concat()).is_err() {
            prop_assert_eq!(job.detector.snapshot(), held);
        }
        for event in events {
            job.tell(device(0), event);
            job.pass(1.0);
        }
    }
}

#[test]
fn gpu_detector_passes_the_conformance_suite() {
    let mut timelines = VecDeque::new();
    for seed in 0..8_u32 {
        let mut timeline = Timeline::of_ranks(4).steady(Duration::from_secs(5));
        for step in 0..60_u32 {
            let code = [79, 13, 48, 94, 9999, 154, 63, 74][((seed + step) % 8) as usize];
            let text = format!("pid={}, name=python3, words to 0x{:x}", 1000 + step % 4, step % 9);
            timeline = timeline.tell(device((step % 4) as u16), xid(code, &text));
            timeline = timeline.tell(
                device(0),
                Signal::Metric {
                    name: metric::ALL[(step as usize * 7) % metric::ALL.len()].clone(),
                    value: f64::from(step),
                },
            );
            timeline = timeline.wait(Duration::from_millis(u64::from(step) * 137));
        }
        timelines.push_back(timeline);
    }
    let mut suite = conformance::fault_detector(GpuDetector::new);
    for timeline in timelines {
        suite = suite.with_timeline(timeline);
    }
    let report = suite.assert();
    assert!(report.skipped().is_empty(), "{:?}", report.skipped());
}

#[test]
fn a_state_of_another_version_is_refused() {
    let mut detector = GpuDetector::new();
    assert_eq!(detector.restore(&Bytes::from_static(&[9, 0, 0])), Err(DecodeError));
    assert_eq!(detector.restore(&[]), Err(DecodeError));
}

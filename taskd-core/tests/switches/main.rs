//! Switches over real recorders: which ranks are switched, how fast, and what is reported of it.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod documents;
mod operator;

use serde_json::{Value, json};
use std::fs::File;
use std::time::{Duration, Instant};
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::Origin;
use taskd_core::trace::recorder::{Detail, Event, Kind, NameId, Recorder, RecorderConfig, RecorderReader};
use taskd_core::trace::switches::*;

const FIVE: [Kind; 5] = [Kind::Communication, Kind::Step, Kind::SaveCheckpoint, Kind::Forward, Kind::DataLoader];
const STEPS: Requested = Requested { step: Switch::On, ..Requested::NONE };

/// A rank that has hooks for all five kinds, as the supervisor sees it: the same memory from both ends.
struct FakeRank {
    recorder: Recorder,
    memory: File,
    origin: Origin,
}

impl FakeRank {
    fn new(rank: u32, incarnation: u32) -> FakeRank {
        let config = RecorderConfig { threads_max: 1, records_per_thread: 1024, ..RecorderConfig::default() };
        let memory = config.memory().unwrap();
        let recorder = Recorder::create(memory.try_clone().unwrap(), config).unwrap();
        FIVE.into_iter().for_each(|kind| recorder.hooked(kind));
        let origin = Origin { rank: Rank(rank), incarnation: Incarnation(incarnation), pid: std::process::id() };
        FakeRank { recorder, memory, origin }
    }

    fn attach(&self, control: &TraceControl) {
        control.attach(self.origin, SwitchHandle::open(&self.memory).unwrap());
    }

    /// Which of the five are on, in the order of the document.
    fn on(&self) -> [bool; 5] {
        FIVE.map(|kind| self.recorder.is_on(kind))
    }
}

fn json_of(control: &TraceControl) -> Value {
    serde_json::to_value(control.status()).unwrap()
}

/// Switches 64 ranks so often, and prints how long it takes from `publish` until all of them have it: the median.
fn median_of(rounds: usize, control: &TraceControl, mut publish: impl FnMut(&Requested)) -> Duration {
    let ranks: Vec<FakeRank> = (0..64).map(|rank| FakeRank::new(rank, 1)).collect();
    ranks.iter().for_each(|rank| rank.attach(control));
    let mut took = Vec::new();
    for round in 0..rounds {
        let on = round % 2 == 1;
        let called = Instant::now();
        publish(if on { &Requested::USUAL } else { &Requested::NONE });
        while !ranks.iter().all(|rank| rank.on() == [on; 5]) {
            assert!(called.elapsed() < Duration::from_secs(10), "round {round}: {:?}", control.status());
            std::thread::yield_now();
        }
        took.push(called.elapsed());
    }
    took.sort();
    println!("64 ranks: {:?} at the median, {:?} at most", took[rounds / 2], took[rounds - 1]);
    took[rounds / 2]
}

#[test]
fn a_switch_reaches_64_ranks_within_a_tenth_of_a_second() {
    let control = TraceControl::new(Mode::Compatible);
    let median = median_of(101, &control, |requested| assert_eq!(control.switch(*requested, "test"), 64));
    assert!(median < Duration::from_millis(100), "{median:?}");
}

#[test]
fn a_file_reaches_64_ranks_soon_after_it_was_published() {
    let control = TraceControl::new(Mode::Native);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profilingSwitch");
    let _file = SwitchFile::follow(&path, control.clone()).unwrap();
    let median = median_of(11, &control, |requested| {
        let next = dir.path().join("next");
        std::fs::write(&next, serde_json::to_string(requested).unwrap()).unwrap();
        std::fs::rename(&next, &path).unwrap();
    });
    assert!(median < 5 * LOOK_EVERY, "{median:?}");
}

#[test]
fn ranks_without_a_request_record_the_kinds_of_their_environment() {
    let control = TraceControl::new(Mode::Native);
    let rank = FakeRank::new(0, 1);
    rank.attach(&control);
    assert_eq!((rank.on(), control.requested()), ([true; 5], None));
    let status = json_of(&control);
    assert_eq!((&status["by"], &status["kinds"]["Step"]["requested"]), (&Value::Null, &Value::Null));
    assert_eq!(status["kinds"]["Step"]["overall"], "on");
}

#[test]
fn rank_started_later_or_again_gets_the_current_switches() {
    let control = TraceControl::new(Mode::Native);
    let first = FakeRank::new(3, 1);
    first.attach(&control);
    assert_eq!(control.switch(STEPS, "ann"), 1);
    let (again, late) = (FakeRank::new(3, 2), FakeRank::new(4, 1));
    again.attach(&control);
    late.attach(&control);
    assert_eq!([again.on(), late.on()], [[false, true, false, false, false]; 2]);
    assert_eq!(control.switch(Requested::NONE, "ann"), 2, "the earlier start is not switched any more");
    assert_eq!((first.on()[1], again.on()[1], late.on()[1]), (true, false, false));

    first.attach(&control); // attached late
    control.detach(first.origin); // as well
    assert_eq!(control.switch(STEPS, "ann"), 2);
    assert!(again.on()[1]);
    control.detach(again.origin);
    assert_eq!(control.switch(Requested::NONE, "ann"), 1);
}

#[test]
fn restored_request_does_not_replace_a_newer_request() {
    let control = TraceControl::new(Mode::Native);
    control.restore(STEPS, "ann");
    assert_eq!(control.requested(), Some(STEPS));
    control.restore(Requested::USUAL, "ann");
    assert_eq!(control.requested(), Some(STEPS));
}

#[test]
fn status_lists_requested_and_effective_switches_and_each_rank() {
    let control = TraceControl::new(Mode::Compatible);
    let ranks = [FakeRank::new(0, 1), FakeRank::new(1, 1)];
    ranks.iter().for_each(|rank| rank.attach(&control));
    control.switch(STEPS, "ann");
    let status = json_of(&control);
    assert_eq!((&status["mode"], &status["by"]), (&json!("compatible"), &json!("ann")));
    let loader = json!({"requested": "off", "effective": "on", "overall": "on", "off": 0, "on": 2, "exception": 0,
        "not_supported": 0});
    assert_eq!(status["kinds"]["DataLoader"], loader, "it goes together with steps");
    assert_eq!(status["kinds"]["CommunicationOperator"]["overall"], "off");
    let pid = std::process::id();
    let kinds = json!({"CommunicationOperator": "off", "Step": "on", "SaveCheckpoint": "on", "FP": "on",
        "DataLoader": "on"});
    assert_eq!(status["ranks"][1], json!({"rank": 1, "incarnation": 1, "pid": pid, "kinds": kinds}));
}

#[test]
fn all_ranks_in_one_word() {
    let control = TraceControl::new(Mode::Native);
    let overall = |control: &TraceControl| control.status().kinds.map(|kind| kind.overall).into_array();
    assert_eq!(overall(&control), [Overall::NoRank; 9]);
    let config = RecorderConfig::default();
    let memory = config.memory().unwrap();
    let bare = Recorder::create(memory.try_clone().unwrap(), config).unwrap(); // of a program without hooks
    let origin = |rank| Origin { rank: Rank(rank), incarnation: Incarnation(1), pid: 1 };
    control.attach(origin(0), SwitchHandle::open(&memory).unwrap());
    assert_eq!(overall(&control)[..5], [Overall::NotSupported; 5]);
    assert_eq!(overall(&control)[5..], [Overall::Off; 4], "what devices do is off unless it is asked for");
    bare.hooked(Kind::Step);
    assert_eq!(overall(&control)[..2], [Overall::NotSupported, Overall::On]);
    FakeRank::new(1, 1).attach(&control);
    assert_eq!(overall(&control)[..2], [Overall::Mixed, Overall::On]);
    control.switch(Requested::NONE, "ann");
    assert_eq!(overall(&control), [Overall::Off; 9], "what is not wanted is not missed");
}

/// A source double: it records as a hook does that needs the device's trace interface, which another process may hold.
/// It is none of a device.
struct DeviceDouble<'a> {
    rank: &'a FakeRank,
    held_by_another: bool,
}

impl DeviceDouble<'_> {
    /// Whether an operation was recorded. The process that holds the interface keeps it.
    fn operation(&self) -> bool {
        let reason = self.held_by_another.then_some("another profiler is active");
        self.rank.recorder.except(Kind::Communication, reason);
        let mut thread = self.rank.recorder.thread();
        !self.held_by_another && thread.record(Kind::Communication, Event::Instant, NameId(0), Detail::None)
    }
}

#[test]
fn kind_held_by_another_profiler_is_an_exception_until_released() {
    let control = TraceControl::new(Mode::Native);
    let ranks = [FakeRank::new(0, 1), FakeRank::new(1, 1)];
    ranks.iter().for_each(|rank| rank.attach(&control));
    control.switch(Requested::USUAL, "ann");
    let mut device = DeviceDouble { rank: &ranks[1], held_by_another: false };
    assert!(device.operation());
    assert_eq!(control.status().kinds.communication.overall, Overall::On);

    device.held_by_another = true;
    assert!(!device.operation());
    let status = control.status();
    let counts = status.kinds.communication;
    assert_eq!((counts.overall, counts.on, counts.exception), (Overall::Exception, 1, 1));
    let kinds = &status.ranks[1].kinds;
    let reason = KindState::Exception("another profiler is active".into());
    assert_eq!((&kinds.communication, &kinds.step), (&reason, &KindState::On), "the others are recorded");
    assert!(ranks[1].on()[0], "its switch stays on");

    device.held_by_another = false;
    assert!(device.operation(), "by itself");
    assert_eq!(control.status().kinds.communication.overall, Overall::On);
    let mut taken = 0;
    RecorderReader::open(ranks[1].memory.try_clone().unwrap()).unwrap().take(|_| taken += 1).unwrap();
    assert_eq!(taken, 2, "what was done meanwhile is not there, and nothing else is missing");
}

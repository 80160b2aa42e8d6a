//! The correct detector passes; for every clause, a detector that breaks it fails that clause.

use super::*;
use crate::detect::{Damage, Fault, FaultClass, Findings, Suspect};
use crate::job::{Domain, JobTime, Name};
use crate::state::View;
use crate::testing::doubles::{Faulty, HeartbeatDetector};
use crate::trace::{DecodeError, Observation, Probe, Signal};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const SILENCE: Duration = Duration::from_secs(5);

/// A detector that breaks one clause of the contract.
struct Broken {
    good: HeartbeatDetector,
    clause: Clause,
    /// Shared by all detectors of one suite, like a clock or a static.
    calls: Arc<AtomicU32>,
    has_beat: bool,
}

impl Broken {
    fn suite(clause: Clause) -> DetectorSuite {
        let calls = Arc::new(AtomicU32::new(0));
        let broken =
            move || Broken { good: HeartbeatDetector::new(SILENCE), clause, calls: calls.clone(), has_beat: false };
        fault_detector(broken).with_seeds(3)
    }

    fn fault(&self, o: &Observation) -> Fault {
        let sure = if self.clause == CONFIDENCE_IN_RANGE { 1001 } else { 400 };
        let victim = Suspect::victim(o.about.clone(), FaultClass::Slow, Damage::default());
        let by = if self.clause == SIGNED { Name::new("somebody-else") } else { self.name() };
        let onset = if self.clause == ONSET_NOT_IN_FUTURE { o.at + SILENCE } else { o.at };
        Fault::new(by, onset, victim.with_confidence_permille(sure))
    }
}

impl FaultDetector for Broken {
    fn name(&self) -> Name {
        self.good.name()
    }

    fn version(&self) -> Name {
        match self.clause {
            IDENTITY_CONSTANT => Name::from(self.calls.load(Ordering::Relaxed).to_string()),
            _ => self.good.version(),
        }
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let beat = o.signal == Signal::Heartbeat;
        let error = matches!(o.signal, Signal::Error(_));
        self.has_beat |= beat;
        match self.clause {
            PURE if call.is_multiple_of(1000) => out.blame(self.fault(o)),
            QUICK if beat => std::thread::yield_now(),
            NEVER_PANICS if matches!(o.signal, Signal::Lost { count: u64::MAX }) => panic!("so many were lost"),
            COLD_BLAMES_NOBODY if beat => {
                out.blame(Fault::new(
                    self.name(),
                    o.at,
                    Suspect::certain(o.about.clone(), FaultClass::Slow, Damage::default()),
                ));
            }
            CONFIDENCE_IN_RANGE | ONSET_NOT_IN_FUTURE | SIGNED if error => out.blame(self.fault(o)),
            ASK_CAN_BE_ANSWERED if beat => {
                let (what, about) = (Name::new("process-state"), vec![Domain::Job]);
                out.probe(Probe::new(self.name(), what, about, Duration::ZERO).with_tag(1));
            }
            _ => {}
        }
        self.good.observe(o, view, out);
    }

    fn deadline(&self) -> Option<JobTime> {
        if self.clause == DEADLINE_MOVES_ON && self.has_beat { Some(JobTime::START) } else { self.good.deadline() }
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        self.good.expire(view, out);
    }

    fn snapshot(&self) -> Option<Bytes> {
        self.good
            .snapshot()
            .map(|saved| if self.clause == SNAPSHOT_GOES_ON { Bytes::from_static(b"\0") } else { saved })
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        let restored = self.good.restore(saved);
        if self.clause == REFUSED_RESTORE_IS_COLD && restored.is_err() {
            self.good = HeartbeatDetector::new(SILENCE * 2);
        }
        restored
    }
}

#[test]
fn a_correct_detector_passes_every_clause() {
    let report = fault_detector(|| HeartbeatDetector::new(SILENCE)).assert();
    assert_eq!((report.checked(), report.skipped()), (ALL, [].as_slice()));
}

#[test]
fn every_clause_convicts_the_detector_that_breaks_it() {
    let mut missed = Vec::new();
    for clause in ALL {
        let suite = Broken::suite(*clause);
        // Zero makes every call slow, because every call takes at least a nanosecond.
        let suite = if *clause == QUICK { suite.with_quick(Duration::ZERO) } else { suite };
        let broken = suite.check().err().unwrap_or_default();
        if broken.first().is_none_or(|first| first.clause != *clause) {
            missed.push(clause.to_string());
        }
    }
    assert_eq!(missed, [] as [String; 0], "broken by a detector that was not convicted of it first");
}

#[test]
fn slow_and_panicking_detectors_fail_their_own_clauses() {
    let good = || HeartbeatDetector::new(SILENCE);
    let slow = fault_detector(move || Faulty::slow(good(), Duration::from_millis(20))).check().unwrap_err();
    assert_eq!((slow.len(), slow[0].clause), (1, QUICK));
    let panics = fault_detector(move || Faulty::panicking(good(), 3)).check().unwrap_err();
    assert_eq!((panics.len(), panics[0].clause), (1, NEVER_PANICS));
    assert!(panics[0].seen.ends_with("panicked: a double panics as scripted"), "{}", panics[0]);
    let deaf = fault_detector(move || Faulty::failing(good(), 3)).assert();
    let cold = "the detector gave no snapshot: it starts cold after a restart of the supervisor";
    assert_eq!(deaf.skipped(), [(SNAPSHOT_GOES_ON, cold.to_owned())]);
}

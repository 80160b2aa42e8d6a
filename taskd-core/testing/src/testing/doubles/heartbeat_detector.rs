//! A correct detector, short enough to be read in a minute.

use crate::detect::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Health, Suspect};
use crate::job::{Domain, JobTime, Name};
use crate::state::View;
use crate::trace::{DecodeError, Observation, Signal};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// Detector that blames a process whose heartbeats have stopped, and clears the blame at the next heartbeat. A
/// process that has never sent a heartbeat is not blamed. Implements `snapshot` and `restore`.
///
/// ```
/// use std::time::Duration;
/// use taskd_core::testing::{conformance, doubles::HeartbeatDetector};
///
/// conformance::fault_detector(|| HeartbeatDetector::new(Duration::from_secs(5))).assert();
/// ```
#[derive(Debug)]
pub struct HeartbeatDetector {
    silence_max: Duration,
    /// The time at which each process becomes overdue; `None` if the process is overdue and was blamed.
    due: BTreeMap<Domain, Option<JobTime>>,
}

impl HeartbeatDetector {
    /// Creates a detector that blames a process after `silence_max` without a heartbeat.
    #[must_use]
    pub fn new(silence_max: Duration) -> HeartbeatDetector {
        HeartbeatDetector { silence_max, due: BTreeMap::new() }
    }
}

impl FaultDetector for HeartbeatDetector {
    fn name(&self) -> Name {
        Name::new("double.heartbeat")
    }

    fn config(&self) -> String {
        format!("silence_max_ms={}", self.silence_max.as_millis())
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let due = view.now + self.silence_max;
        match &o.signal {
            Signal::Heartbeat => {
                if let Some(None) = self.due.insert(o.about.clone(), Some(due)) {
                    out.clear(o.about.clone(), FaultClass::Silence);
                }
            }
            Signal::Phase(phase) if phase.is_over() => {
                self.due.remove(&o.about); // another detector handles its exit
            }
            Signal::SupervisorSlept { .. } => self.due.values_mut().flatten().for_each(|at| *at = due),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        self.due.values().flatten().min().copied()
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        for (domain, due) in &mut self.due {
            let Some(at) = due.filter(|at| *at <= view.now) else { continue };
            *due = None;
            let damage = Damage { process: Health::Unknown, ..Damage::default() };
            let suspect = Suspect::certain(domain.clone(), FaultClass::Silence, damage);
            let bound = self.silence_max.as_secs_f64() * 1e3;
            let age = bound + view.now.since(at).as_secs_f64() * 1e3;
            let clue = Evidence::figure("heartbeat_age_ms", age, bound, format!("{domain} has sent no heartbeat"));
            out.blame(Fault::new(Name::new("double.heartbeat"), at, suspect).with_evidence(clue));
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        postcard::to_stdvec(&self.due).ok().map(Bytes::from)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.due = postcard::from_bytes(saved).map_err(|_| DecodeError)?;
        Ok(())
    }
}

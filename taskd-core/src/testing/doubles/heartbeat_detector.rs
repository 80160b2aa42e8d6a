//! A good detector, small enough to be read in a minute.

use crate::detect::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Sound, Suspect};
use crate::job::{Domain, JobTime, Name};
use crate::kernel::View;
use crate::trace::{Malformed, Observation, Signal};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// Blames a process that was heard once and then keeps silent, and clears it when it speaks again. It can be saved and
/// restored.
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
    /// When each process falls silent; `None`: it has, and was blamed.
    due: BTreeMap<Domain, Option<JobTime>>,
}

impl HeartbeatDetector {
    /// A process that is not heard for longer than `silence_max` is to blame.
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
                self.due.remove(&o.about); // its exit is another detector's business
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
            let damage = Damage { process: Sound::Unknown, ..Damage::default() };
            let suspect = Suspect::certain(domain.clone(), FaultClass::Silence, damage);
            let bound = self.silence_max.as_secs_f64() * 1e3;
            let age = bound + view.now.since(at).as_secs_f64() * 1e3;
            let clue = Clue::figure("heartbeat_age_ms", age, bound, format!("{domain} has not been heard"));
            out.blame(Fault::new(Name::new("double.heartbeat"), at, suspect).because(clue));
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        postcard::to_stdvec(&self.due).ok().map(Bytes::from)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
        self.due = postcard::from_bytes(saved).map_err(|_| Malformed)?;
        Ok(())
    }
}

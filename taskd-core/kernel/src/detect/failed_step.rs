//! Reports failed steps of processes that continue to run, as the processes themselves report them.
//!
//! The detector does not search for a cause: a rank that fails in a collective is a victim, and only a rank that
//! reports a failure of its own step is a suspect.

use super::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Health, Suspect, saved};
use crate::job::{Domain, Name, Role};
use crate::state::{FailureKind, StepFailure, View};
use crate::trace::{DecodeError, Observation, Signal};
use bytes::Bytes;

const NAME: Name = Name::new("failed-step");
const SNAPSHOT_VERSION: u8 = 1;

/// Confidence for a rank that reports a failure of its own step.
const OWN_STEP_PERMILLE: u16 = 900;

/// Damage of a process that survived the failure of its step: it runs, and its state may be inconsistent.
const SURVIVED: Damage =
    Damage { process: Health::Healthy, state: Health::Unknown, device: Health::Unknown, program: Health::Unknown };

/// Reports failures of training steps, which processes send over their control link to the supervisor
/// ([`Signal::StepFailed`]).
///
/// A failed collective makes the reporting rank a victim: a peer or a connection failed, which other signals usually
/// show. A rank that reports a failure of its own step (invalid numbers, a memory error) is blamed with 900 permille,
/// with class `step`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailedStepDetector;

impl FailedStepDetector {
    /// Creates the detector.
    #[must_use]
    pub const fn new() -> FailedStepDetector {
        FailedStepDetector
    }
}

impl FaultDetector for FailedStepDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let (Signal::StepFailed(failure), Domain::Process(Role::Rank(_))) = (&o.signal, &o.about) else { return };
        let suspect = suspect(&o.about, failure);
        out.blame(Fault::new(NAME, view.now, suspect).with_incarnation(o.incarnation).with_evidence(clue(failure)));
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        saved::load(SNAPSHOT_VERSION, saved)
    }
}

fn suspect(about: &Domain, failure: &StepFailure) -> Suspect {
    match failure.kind {
        FailureKind::Collective => Suspect::victim(about.clone(), FaultClass::Network, SURVIVED),
        FailureKind::Step | FailureKind::Exception => Suspect {
            domain: about.clone(),
            class: FaultClass::Other(Name::new("step")),
            damage: SURVIVED,
            confidence_permille: OWN_STEP_PERMILLE,
        },
    }
}

fn clue(failure: &StepFailure) -> Evidence {
    let step = failure.step.map_or_else(String::new, |step| format!(" in step {step}"));
    let op = failure.op.as_ref().map_or_else(String::new, |op| {
        let group = failure.group.as_deref().map_or_else(String::new, |group| format!(" of group {group}"));
        format!("{op}{group}: ")
    });
    Evidence::text("step_failure", format!("failed{step}, process still runs: {op}{}", failure.message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::Finding;
    use crate::detect::fixture::{Scene, fault};
    use crate::job::Generation;

    fn failed(kind: FailureKind) -> Vec<Finding> {
        let mut scene = Scene::of(2);
        let (op, group) = (Some("allreduce".into()), Some("default".into()));
        let message = "Connection closed by peer".into();
        let failure = StepFailure { generation: Generation(1), kind, step: Some(41), message, op, group };
        scene.tell(&mut FailedStepDetector::new(), 1, Signal::StepFailed(Box::new(failure)))
    }

    #[test]
    fn a_rank_that_fails_in_a_collective_is_a_healthy_victim() {
        let found = failed(FailureKind::Collective);
        let suspect = fault(&found).primary_suspect();
        assert!(
            !suspect.is_cause() && suspect.damage.process == Health::Healthy && !suspect.damage.is_still_training()
        );
        let text = &fault(&found).evidence[0].text;
        assert_eq!(
            text,
            "failed in step 41, process still runs: allreduce of group default: Connection closed by peer"
        );
    }

    #[test]
    fn a_rank_that_reports_its_own_failed_step_is_the_cause() {
        assert!(fault(&failed(FailureKind::Step)).primary_suspect().is_cause());
    }
}

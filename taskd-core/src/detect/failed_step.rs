//! Passes on what training processes say of themselves: a step failed, and the process lives.
//!
//! It never looks for a cause: who fails in a collective is a victim, and only who reports its own step is a suspect.

use super::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Sound, Suspect, saved};
use crate::job::{Domain, Name, Role};
use crate::kernel::View;
use crate::launch::{FailureKind, StepFailure};
use crate::trace::{Malformed, Observation, Signal};
use bytes::Bytes;

const NAME: Name = Name::new("failed-step");
const SNAPSHOT_VERSION: u8 = 1;

/// How sure it is of who reports its own step.
const OWN_STEP_PERMILLE: u16 = 900;

/// What is known of a process that has survived the failure of its step: it runs, and its state may be of no step.
const SURVIVED: Damage =
    Damage { process: Sound::Yes, state: Sound::Unknown, device: Sound::Unknown, program: Sound::Unknown };

/// Blames what processes report over their control link ([`Signal::StepFailed`]).
///
/// A failed collective makes its reporter a victim: a peer or a connection failed, and mostly that is told by others. Who says
/// that its own step failed (bad numbers, a memory error) is blamed with 900 permille, as class `step`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailedStepDetector;

impl FailedStepDetector {
    /// The detector.
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
        out.blame(Fault::new(NAME, view.now, suspect).of(o.incarnation).because(clue(failure)));
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
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

fn clue(failure: &StepFailure) -> Clue {
    let step = failure.step.map_or_else(String::new, |step| format!(" in step {step}"));
    let op = failure.op.as_ref().map_or_else(String::new, |op| {
        let group = failure.group.as_deref().map_or_else(String::new, |group| format!(" of group {group}"));
        format!("{op}{group}: ")
    });
    Clue::text("step_failure", format!("failed{step}, and lives: {op}{}", failure.message))
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
    fn who_fails_in_a_collective_is_a_victim_whose_process_is_sound() {
        let found = failed(FailureKind::Collective);
        let suspect = fault(&found).prime();
        assert!(!suspect.is_cause() && suspect.damage.process == Sound::Yes && !suspect.damage.still_trains());
        let text = &fault(&found).clues[0].text;
        assert_eq!(text, "failed in step 41, and lives: allreduce of group default: Connection closed by peer");
    }

    #[test]
    fn who_reports_its_own_step_is_the_cause() {
        assert!(fault(&failed(FailureKind::Step)).prime().is_cause());
    }
}

//! In a job that is only observed, no process is ever touched.

use super::super::outcome::Violation;
use super::Moment;
use crate::job::Mode;
use crate::kernel::Command;
use crate::kernel::Effect;
use crate::recover::Action;

pub(super) fn check(m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
    let acts = match &command.effect {
        Effect::Act(Action::Collect(_) | Action::Finish { .. })
        | Effect::Acknowledge(_)
        | Effect::Publish(_)
        | Effect::Reply { .. } => false,
        Effect::Act(_) | Effect::Switch { .. } => true,
    };
    match acts && is_observed(m) {
        true => Err(Violation::NotOnlyObserved { command: Box::new(command.clone()) }),
        false => Ok(()),
    }
}

/// Returns true if another system runs the job.
pub(super) fn is_observed(m: &Moment<'_>) -> bool {
    m.kernel.view().spec.policy.mode == Mode::DryRun
}

//! In a job that is only observed no process is ever touched.

use super::super::outcome::Violation;
use super::Moment;
use crate::job::Mode;
use crate::kernel::Command;
use crate::recover::Action;

pub(super) fn check(m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
    let acts = match &command.action {
        Action::Start { .. }
        | Action::Stop { .. }
        | Action::Enter(_)
        | Action::Cordon { .. }
        | Action::Direct(_)
        | Action::Switch { .. } => true,
        Action::Collect(_)
        | Action::Acknowledge(_)
        | Action::Announce(_)
        | Action::Finish { .. }
        | Action::Reply { .. } => false,
    };
    match acts && is_observed(m) {
        true => Err(Violation::NotOnlyObserved { command: Box::new(command.clone()) }),
        false => Ok(()),
    }
}

/// Whether the job is run by something else.
pub(super) fn is_observed(m: &Moment<'_>) -> bool {
    m.kernel.view().spec.policy.mode == Mode::Observe
}

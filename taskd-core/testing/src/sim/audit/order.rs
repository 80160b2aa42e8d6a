//! Time never goes back, and there are no commands after the end.

use super::super::outcome::Violation;
use super::Moment;
use crate::job::JobTime;
use crate::kernel::Effect;
use crate::recover::Action;

#[derive(Debug, Default)]
pub(super) struct Order {
    now: JobTime,
    finished: Option<JobTime>,
}

impl Order {
    pub(super) fn check(&mut self, m: &Moment<'_>) -> Result<(), Violation> {
        let view_now = m.kernel.view().now;
        if view_now < self.now || m.now < self.now {
            return Err(Violation::TimeWentBack { from: self.now, to: view_now.min(m.now) });
        }
        self.now = view_now;
        for command in m.commands {
            if let Some(at) = self.finished {
                return Err(Violation::CommandAfterFinish { finished: at, command: Box::new(command.clone()) });
            }
            if matches!(command.effect, Effect::Act(Action::Finish { .. })) {
                self.finished = Some(m.now);
            }
        }
        Ok(())
    }
}

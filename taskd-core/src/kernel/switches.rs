//! What ranks record, as operators order it: asked of this supervisor, and again of the one after it.
//!
//! It switches nothing, and does not know how ranks stand: that is in their recorders.

use super::Kernel;
use super::operator::{refused, taken};
use super::order::{Denial, NO_TRACE_CONTROL, Ordered, Taken};
use crate::job::Name;
use crate::recover::Action;
use crate::trace::switches::{Mode, Requested, by_rule};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is known of the recorders' switches.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Switches {
    /// How this supervisor takes a request; `None`: it has no control over recorders.
    mode: Option<Mode>,
    /// What was ordered last, and by whom.
    ordered: Option<(Requested, Name)>,
}

impl Switches {
    pub(super) const fn start(&mut self, mode: Option<Mode>) {
        self.mode = mode;
    }
}

impl Kernel {
    pub(super) fn switch_trace(&mut self, kinds: Requested, ordered: &Ordered) -> Result<Taken, Denial> {
        if self.observes() {
            return refused("this runtime only observes: it touches no process");
        }
        let Some(mode) = self.state.switches.mode else {
            return Err(Denial::Unsupported(NO_TRACE_CONTROL.into()));
        };
        self.state.switches.ordered = Some((kinds, ordered.by.clone()));
        self.give_switches(false);
        let comes_to = by_rule(&kinds, mode);
        let asked = if comes_to == kinds { String::new() } else { format!(" (asked for: {kinds})") };
        Ok(taken(format!("recorded from now on: {comes_to}{asked}")))
    }

    /// Asks a new supervisor for what was in force under the one before.
    pub(super) fn switch_again(&mut self) {
        if self.state.switches.mode.is_some() && !self.observes() {
            self.give_switches(true);
        }
    }

    fn give_switches(&mut self, again: bool) {
        if let Some((kinds, by)) = self.state.switches.ordered.clone() {
            self.command(None, Action::Switch { kinds, by, again }, Duration::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobSpec, JobTime, Mode as JobMode, OrderId, WorkerSpec};
    use crate::kernel::{Input, Order, Plugins, Start};
    use crate::launch::Listing;
    use crate::trace::switches::Switch;
    use std::sync::Arc;

    const STEPS: Requested = Requested { step: Switch::On, ..Requested::NONE };

    /// Starts a supervisor over this kernel, and says what it was given besides starts and events.
    fn supervise(kernel: &mut Kernel, trace: Option<Mode>, mode: JobMode) -> Vec<Action> {
        let mut spec = JobSpec::new("test", 1, WorkerSpec::new(["train"]));
        spec.policy.mode = mode;
        let start = Input::Start(Box::new(Start { spec: Arc::new(spec), trace, meets_at: None }));
        give(kernel, &[start, Input::Listed(Listing::default())])
    }

    fn give(kernel: &mut Kernel, inputs: &[Input]) -> Vec<Action> {
        let commands = inputs.iter().flat_map(|input| kernel.step(JobTime::START, input));
        let actions = commands.map(|command| command.action);
        actions.filter(|action| matches!(action, Action::Switch { .. } | Action::Reply { .. })).collect()
    }

    fn order(kinds: Requested) -> Input {
        let (by, reason) = (Name::new("ann"), "to see".to_owned());
        Input::Ordered(Box::new(Ordered { id: OrderId(1), by, reason, order: Order::Switch { kinds } }))
    }

    fn switch(kinds: Requested, again: bool) -> Action {
        Action::Switch { kinds, by: Name::new("ann"), again }
    }

    fn reply(result: Result<&str, Denial>) -> Action {
        Action::Reply { order: OrderId(1), result: result.map(|text| taken(text.to_owned())) }
    }

    #[test]
    fn an_order_becomes_a_command_and_is_answered_with_what_it_comes_to() {
        let mut kernel = Kernel::new(Plugins::default());
        assert_eq!(supervise(&mut kernel, Some(Mode::Compatible), JobMode::Act), []);
        let answer = "recorded from now on: Step, SaveCheckpoint, FP, DataLoader (asked for: Step)";
        assert_eq!(give(&mut kernel, &[order(STEPS)]), [switch(STEPS, false), reply(Ok(answer))]);
        let answer = reply(Ok("recorded from now on: nothing"));
        assert_eq!(give(&mut kernel, &[order(Requested::NONE)]), [switch(Requested::NONE, false), answer]);
    }

    #[test]
    fn what_was_ordered_is_asked_of_the_next_supervisor_which_may_know_better() {
        let mut kernel = Kernel::new(Plugins::default());
        supervise(&mut kernel, Some(Mode::Native), JobMode::Act);
        give(&mut kernel, &[order(STEPS)]);
        let snapshot = kernel.snapshot();
        let mut kernel = Kernel::restore(Plugins::default(), &snapshot).expect("the same version").0;
        assert_eq!(supervise(&mut kernel, Some(Mode::Native), JobMode::Act), [switch(STEPS, true)]);
        assert_eq!(supervise(&mut kernel, None, JobMode::Act), [], "one without a control is not asked");
        assert_eq!(supervise(&mut kernel, Some(Mode::Native), JobMode::Observe), [], "nor one that only observes");
    }

    #[test]
    fn without_a_control_and_where_nothing_is_touched_it_is_denied_in_a_sentence() {
        let mut kernel = Kernel::new(Plugins::default());
        supervise(&mut kernel, None, JobMode::Act);
        let denial = Denial::Unsupported(NO_TRACE_CONTROL.into());
        assert_eq!(give(&mut kernel, &[order(STEPS)]), [reply(Err(denial))]);
        let mut kernel = Kernel::new(Plugins::default());
        supervise(&mut kernel, Some(Mode::Native), JobMode::Observe);
        let denial = Denial::Refused("this runtime only observes: it touches no process".into());
        assert_eq!(give(&mut kernel, &[order(STEPS)]), [reply(Err(denial))]);
    }
}

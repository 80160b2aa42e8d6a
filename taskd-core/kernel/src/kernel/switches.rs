//! What ranks record, as operators order it. The setting is sent to this supervisor, and again to its successor.
//!
//! It switches nothing itself, and does not know the actual state, which is in the ranks' recorders.

use super::Effect;
use super::operator::{refused, taken};
use super::order::{NO_TRACE_CONTROL, OrderAccepted, OrderEnvelope, OrderRejected};
use super::outbox::Outbox;
use crate::job::Name;
use crate::trace::switches::{Mode, Requested, by_rule};
use serde::{Deserialize, Serialize};

/// The known state of the recorders' switches.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Switches {
    /// How requests to switch the ranks' trace recorders are applied. `None`: this supervisor has no control over the
    /// recorders.
    mode: Option<Mode>,
    /// The last request to switch the recorders, and its sender.
    ordered: Option<(Requested, Name)>,
}

impl Switches {
    pub(super) const fn start(&mut self, mode: Option<Mode>) {
        self.mode = mode;
    }
}

/// Requests what ranks record, as an operator orders it.
pub(super) struct TraceSwitches<'a> {
    /// True if the runtime only observes.
    pub(super) is_dry_run: bool,
    pub(super) switches: &'a mut Switches,
    pub(super) outbox: Outbox<'a>,
}

impl TraceSwitches<'_> {
    pub(super) fn switch(&mut self, kinds: Requested, ordered: &OrderEnvelope) -> Result<OrderAccepted, OrderRejected> {
        if self.is_dry_run {
            return refused("this runtime only observes: it changes no process");
        }
        let Some(mode) = self.switches.mode else {
            return Err(OrderRejected::Unsupported(NO_TRACE_CONTROL.into()));
        };
        self.switches.ordered = Some((kinds, ordered.by.clone()));
        self.request(false);
        let comes_to = by_rule(&kinds, mode);
        let asked = if comes_to == kinds { String::new() } else { format!(" (asked for: {kinds})") };
        Ok(taken(format!("recorded from now on: {comes_to}{asked}")))
    }

    /// Requests the setting from a new supervisor that was in force under the previous one.
    pub(super) fn switch_again(&mut self) {
        if self.switches.mode.is_some() && !self.is_dry_run {
            self.request(true);
        }
    }

    fn request(&mut self, again: bool) {
        if let Some((kinds, by)) = self.switches.ordered.clone() {
            self.outbox.effect(Effect::Switch { kinds, by, again });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobSpec, JobTime, Mode as JobMode, OrderId, WorkerSpec};
    use crate::kernel::{Input, Kernel, Order, Plugins, Start};
    use crate::state::Listing;
    use crate::trace::switches::Switch;
    use std::sync::Arc;

    const STEPS: Requested = Requested { step: Switch::On, ..Requested::NONE };

    /// Starts a supervisor over this kernel, and returns its actions other than starts and events.
    fn supervise(kernel: &mut Kernel, trace: Option<Mode>, mode: JobMode) -> Vec<Effect> {
        let mut spec = JobSpec::new("test", 1, WorkerSpec::new(["train"]));
        spec.policy.mode = mode;
        let start =
            Input::Start(Box::new(Start { spec: Arc::new(spec), trace, rendezvous_service: None, resume: None }));
        give(kernel, &[start, Input::Listed(Listing::default())])
    }

    fn give(kernel: &mut Kernel, inputs: &[Input]) -> Vec<Effect> {
        let commands = inputs.iter().flat_map(|input| kernel.step(JobTime::START, input));
        let effects = commands.map(|command| command.effect);
        effects.filter(|effect| matches!(effect, Effect::Switch { .. } | Effect::Reply { .. })).collect()
    }

    fn order(kinds: Requested) -> Input {
        let (by, reason) = (Name::new("ann"), "to see".to_owned());
        Input::Ordered(Box::new(OrderEnvelope { id: OrderId(1), by, reason, order: Order::SwitchTrace { kinds } }))
    }

    fn switch(kinds: Requested, again: bool) -> Effect {
        Effect::Switch { kinds, by: Name::new("ann"), again }
    }

    fn reply(result: Result<&str, OrderRejected>) -> Effect {
        Effect::Reply { order: OrderId(1), result: result.map(|text| taken(text.to_owned())) }
    }

    #[test]
    fn an_order_becomes_a_command_and_is_answered_with_what_it_comes_to() {
        let mut kernel = Kernel::new(Plugins::default());
        assert_eq!(supervise(&mut kernel, Some(Mode::Compatible), JobMode::Enforce), []);
        let answer = "recorded from now on: Step, SaveCheckpoint, FP, DataLoader (asked for: Step)";
        assert_eq!(give(&mut kernel, &[order(STEPS)]), [switch(STEPS, false), reply(Ok(answer))]);
        let answer = reply(Ok("recorded from now on: nothing"));
        assert_eq!(give(&mut kernel, &[order(Requested::NONE)]), [switch(Requested::NONE, false), answer]);
    }

    #[test]
    fn a_trace_order_is_repeated_for_the_next_supervisor() {
        let mut kernel = Kernel::new(Plugins::default());
        supervise(&mut kernel, Some(Mode::Native), JobMode::Enforce);
        give(&mut kernel, &[order(STEPS)]);
        let snapshot = kernel.snapshot();
        let mut kernel = Kernel::restore(Plugins::default(), &snapshot).expect("the same version").0;
        assert_eq!(supervise(&mut kernel, Some(Mode::Native), JobMode::Enforce), [switch(STEPS, true)]);
        assert_eq!(supervise(&mut kernel, None, JobMode::Enforce), [], "one without a control is not asked");
        assert_eq!(supervise(&mut kernel, Some(Mode::Native), JobMode::DryRun), [], "nor one that only observes");
    }

    #[test]
    fn a_trace_order_without_control_or_in_a_dry_run_is_rejected() {
        let mut kernel = Kernel::new(Plugins::default());
        supervise(&mut kernel, None, JobMode::Enforce);
        let denial = OrderRejected::Unsupported(NO_TRACE_CONTROL.into());
        assert_eq!(give(&mut kernel, &[order(STEPS)]), [reply(Err(denial))]);
        let mut kernel = Kernel::new(Plugins::default());
        supervise(&mut kernel, Some(Mode::Native), JobMode::DryRun);
        let denial = OrderRejected::Refused("this runtime only observes: it changes no process".into());
        assert_eq!(give(&mut kernel, &[order(STEPS)]), [reply(Err(denial))]);
    }
}

//! Calls detectors and strategies. One that panics becomes a fault, and a detector is then out of service.
//!
//! Proposals are asked for by the `arbiter`.

use super::{Counts, DropReason};
use crate::detect::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Suspect};
use crate::job::{Domain, JobTime, Name};
use crate::recover::{Advance, PlanExecution, RecoveryStrategy};
use crate::state::View;
use crate::trace::Observation;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long a detector is not called if its deadline stays in the past.
const STUBBORN_HOLD: Duration = Duration::from_secs(1);

/// The fault detectors and recovery strategies with which a kernel makes its decisions.
#[derive(Debug, Default)]
pub struct Plugins {
    /// Fault detectors, called in this order.
    pub detectors: Vec<Box<dyn FaultDetector>>,
    /// Recovery strategies. If two proposals cost the same, the proposal of the strategy that is earlier in this list
    /// wins.
    pub strategies: Vec<Box<dyn RecoveryStrategy>>,
}

/// A registered detector. `detector` is `None` once it has panicked and is out of service.
pub(super) struct Slot {
    pub(super) detector: Option<Box<dyn FaultDetector>>,
    /// Earliest time at which a deadline of this detector is handled.
    ///
    /// It is set after the supervisor slept, or if the detector's deadline does not move.
    pub(super) not_before: JobTime,
}

impl Slot {
    pub(super) fn new(detector: Box<dyn FaultDetector>) -> Slot {
        Slot { detector: Some(detector), not_before: JobTime::START }
    }

    pub(super) fn deadline(&self) -> Option<JobTime> {
        self.detector.as_ref()?.deadline().map(|at| at.max(self.not_before))
    }

    fn call(
        &mut self,
        view: &View,
        found: &mut Findings,
        mut call: impl FnMut(&mut dyn FaultDetector, &View, &mut Findings),
    ) {
        let Some(detector) = &mut self.detector else { return };
        if catch_unwind(AssertUnwindSafe(|| call(&mut **detector, view, found))).is_ok() {
            return;
        }
        let name = catch_unwind(AssertUnwindSafe(|| detector.name())).unwrap_or(Name::new("unnamed detector"));
        self.detector = None;
        found.blame(plugin_fault(view, name, "the detector panicked and is disabled".into()));
    }
}

/// Passes observations and the time to the detectors, which report findings.
pub(super) struct Detectors<'a> {
    pub(super) view: &'a View,
    pub(super) slots: &'a mut [Slot],
    pub(super) found: &'a mut Findings,
    pub(super) counts: &'a mut Counts,
}

impl Detectors<'_> {
    /// Passes an observation to every detector.
    pub(super) fn tell(&mut self, o: &Observation) {
        for slot in &mut *self.slots {
            slot.call(self.view, self.found, |detector, view, out| detector.observe(o, view, out));
        }
    }

    /// Calls the detectors whose deadline has passed.
    pub(super) fn expire(&mut self) {
        let now = self.view.now;
        for slot in &mut *self.slots {
            if slot.deadline().is_none_or(|at| at > now) {
                continue;
            }
            slot.call(self.view, self.found, |detector, view, out| detector.expire(view, out));
            if slot.deadline().is_some_and(|at| at <= now) {
                slot.not_before = now + STUBBORN_HOLD;
                self.counts.drop(DropReason::StubbornDeadline);
            }
        }
    }

    /// Delays all deadlines until this time.
    pub(super) fn hold(&mut self, until: JobTime) {
        for slot in &mut *self.slots {
            slot.not_before = slot.not_before.max(until);
        }
    }
}

/// Asks the strategies that exist.
pub(super) struct Strategies<'a> {
    pub(super) view: &'a View,
    pub(super) strategies: &'a [Box<dyn RecoveryStrategy>],
    pub(super) found: &'a mut Findings,
}

impl Strategies<'_> {
    /// Asks the strategy of a run how to continue after a stage.
    pub(super) fn advance(&mut self, run: &PlanExecution) -> Advance {
        let Some(strategy) = self.strategies.iter().find(|strategy| strategy.name() == run.strategy) else {
            return Advance::Continue;
        };
        catch_unwind(AssertUnwindSafe(|| strategy.advance(run, self.view))).unwrap_or_else(|_| {
            let what = "the strategy panicked in `advance`".into();
            self.found.blame(plugin_fault(self.view, strategy.name(), what));
            Advance::Fail("the strategy panicked".into())
        })
    }
}

/// Returns a fault of a plugin of the runtime itself.
pub(super) fn plugin_fault(view: &View, plugin: Name, what: String) -> Fault {
    let suspect = Suspect::certain(Domain::Plugin(plugin), FaultClass::Plugin, Damage::default());
    Fault::new(Name::new("runtime"), view.now, suspect).with_evidence(Evidence::text("plugin", what))
}

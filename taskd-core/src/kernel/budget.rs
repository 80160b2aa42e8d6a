//! The recovery budget: recoveries withdraw, healthy training time deposits.

use crate::job::{BudgetSpec, JobTime};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is left for recoveries, and how much healthy time has been saved towards the next deposit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Budget {
    left: u32,
    saved: Duration,
    counted_until: JobTime,
}

impl Budget {
    /// A full budget.
    pub(super) fn full(spec: &BudgetSpec) -> Budget {
        Budget { left: spec.recoveries_max, saved: Duration::ZERO, counted_until: JobTime::START }
    }

    /// Recoveries left.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// The time until `now` has passed, healthy or not.
    pub(super) fn pass(&mut self, now: JobTime, healthy: bool, spec: &BudgetSpec) {
        let passed = now.since(self.counted_until);
        self.counted_until = now;
        self.left = self.left.min(spec.recoveries_max); // the policy may have become stricter
        if !healthy || self.left >= spec.recoveries_max || spec.refill_every.is_zero() {
            return; // a full budget saves nothing up
        }
        self.saved += passed;
        while self.saved >= spec.refill_every && self.left < spec.recoveries_max {
            self.saved -= spec.refill_every;
            self.left += 1;
        }
    }

    /// Takes one recovery; nothing happens to an empty budget.
    pub(super) fn withdraw(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_time_refills_up_to_the_maximum_and_unhealthy_time_does_not() {
        let spec = BudgetSpec { recoveries_max: 2, refill_every: Duration::from_secs(10) };
        let at = |s: u64| JobTime::START + Duration::from_secs(s);
        let mut budget = Budget::full(&spec);
        budget.pass(at(100), true, &spec);
        assert_eq!(budget.left(), 2, "never above the maximum");
        budget.withdraw();
        budget.withdraw();
        budget.withdraw();
        assert_eq!(budget.left(), 0, "never below zero");
        budget.pass(at(150), false, &spec);
        assert_eq!(budget.left(), 0, "a sick job earns nothing");
        budget.pass(at(159), true, &spec);
        assert_eq!(budget.left(), 0);
        budget.pass(at(160), true, &spec);
        assert_eq!(budget.left(), 1);
    }
}

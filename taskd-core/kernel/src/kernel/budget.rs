//! The recovery budget: recoveries withdraw from it, healthy training time refills it.

use super::arbiter::Price;
use super::incidents::Open;
use super::{Branch, Counts};
use crate::job::{BudgetSpec, JobTime};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The number of recoveries left, and the healthy time accumulated towards the next refill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Budget {
    left: u32,
    saved: Duration,
    counted_until: JobTime,
}

impl Budget {
    /// Creates a full budget.
    pub(super) fn full(spec: &BudgetSpec) -> Budget {
        Budget { left: spec.recoveries_max, saved: Duration::ZERO, counted_until: JobTime::START }
    }

    /// Returns the number of recoveries left.
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Accounts for the time until `now`, which counts towards a refill only if it was healthy.
    pub(super) fn pass(&mut self, now: JobTime, healthy: bool, spec: &BudgetSpec) {
        let passed = now.since(self.counted_until);
        self.counted_until = now;
        self.left = self.left.min(spec.recoveries_max); // the policy may have become stricter
        if !healthy || self.left >= spec.recoveries_max || spec.refill_every.is_zero() {
            return; // a full budget accumulates nothing
        }
        self.saved += passed;
        while self.saved >= spec.refill_every && self.left < spec.recoveries_max {
            self.saved -= spec.refill_every;
            self.left += 1;
        }
    }

    /// Withdraws one recovery. An empty budget stays empty.
    pub(super) fn withdraw(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

/// Pays for recoveries.
pub(super) struct Account<'a> {
    pub(super) budget: &'a mut Budget,
    pub(super) free_in_row: &'a mut u32,
    pub(super) counts: &'a mut Counts,
}

impl Account<'_> {
    /// Takes the price of an incident's recovery.
    pub(super) fn pay(&mut self, open: &mut Open, price: Price) {
        match price {
            Price::Nothing => {}
            Price::Token => {
                open.paid = open.worth();
                self.budget.withdraw();
                *self.free_in_row = 0;
            }
            Price::FreeRetry => {
                open.let_off = open.worth();
                self.counts.branch(Branch::FreeRetry);
                *self.free_in_row += 1;
            }
        }
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

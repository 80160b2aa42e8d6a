//! The order in which inputs reach the kernel: deaths, exits and answers first, then facts and deadlines by time.
//!
//! Pure, so that shell and simulation share it. It never drops anything; bounds are those of the queues before it.

use super::{Check, Checks, Input};
use crate::job::JobTime;
use crate::trace::Observation;
use std::collections::VecDeque;

/// Inputs that wait for the kernel.
#[derive(Debug, Default)]
pub struct Mailbox {
    urgent: VecDeque<Input>,
    facts: VecDeque<(JobTime, Vec<Observation>)>,
    checks: Checks,
}

impl Mailbox {
    /// An empty mailbox.
    #[must_use]
    pub fn new(checks: Checks) -> Mailbox {
        Mailbox { checks, ..Mailbox::default() }
    }

    /// Takes a change, an answer, a listing or a request.
    pub fn push(&mut self, input: Input) {
        self.urgent.push_back(input);
    }

    /// Takes an input if there is one.
    pub fn extend(&mut self, input: Option<Input>) {
        self.urgent.extend(input);
    }

    /// Takes facts that arrived at this time. Times must not go back.
    pub fn push_facts(&mut self, arrived: JobTime, facts: Vec<Observation>) {
        self.facts.push_back((arrived, facts));
    }

    /// Takes an input that goes before all others: that we slept.
    pub fn push_first(&mut self, input: Input) {
        self.urgent.push_front(input);
    }

    /// Whether facts wait.
    #[must_use]
    pub fn has_facts(&self) -> bool {
        !self.facts.is_empty()
    }

    /// How many inputs wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.urgent.len() + self.facts.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the kernel should be given now, if anything. `deadline` is the kernel's.
    ///
    /// A deadline comes only after the facts that arrived before it: a heartbeat that is already here must not be
    /// overtaken by the verdict that there was none.
    pub fn next(&mut self, now: JobTime, deadline: Option<JobTime>) -> Option<Input> {
        if let Some(input) = self.urgent.pop_front() {
            return Some(input);
        }
        let due = deadline.filter(|d| *d <= now);
        let fact_is_earlier = match (due, self.facts.front()) {
            (Some(due), Some((arrived, _))) => *arrived <= due && self.checks.has(Check::DeadlineAfterObservations),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        match due {
            _ if fact_is_earlier => self.facts.pop_front().map(|(_, facts)| Input::Observed(facts)),
            Some(_) => Some(Input::Deadline),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Request;

    const fn at(n: u64) -> JobTime {
        JobTime::from_nanos(n)
    }

    #[test]
    fn urgent_first_then_facts_and_deadlines_by_time() {
        let mut mailbox = Mailbox::default();
        mailbox.push_facts(at(5), vec![]);
        mailbox.push_facts(at(20), vec![]);
        mailbox.push(Input::Requested(Request::Stop { reason: "test".into(), grace: None }));
        assert!(matches!(mailbox.next(at(30), Some(at(10))), Some(Input::Requested(_))));
        assert_eq!(mailbox.next(at(30), Some(at(10))), Some(Input::Observed(vec![])), "arrived at 5, before 10");
        assert_eq!(mailbox.next(at(30), Some(at(10))), Some(Input::Deadline), "10 comes before 20");
        assert_eq!(mailbox.next(at(30), None), Some(Input::Observed(vec![])));
        assert_eq!(mailbox.next(at(30), Some(at(31))), None, "not due yet");
    }
}

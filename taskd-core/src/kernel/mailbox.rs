//! The order in which inputs reach the kernel, and the time at which: deaths, exits and answers first, then facts and
//! deadlines by time.
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
    /// The time of the input that was given last.
    given: JobTime,
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

    /// What the kernel should be given now, if anything, and at what time. `deadline` is the kernel's.
    ///
    /// A deadline comes only after the facts that arrived before it: a heartbeat that is already here must not be
    /// overtaken by the verdict that there was none. For the same reason facts are taken at the time at which they
    /// arrived and deadlines at the time for which they were set, however busy we are: a deadline that is handled late
    /// must not find others due whose facts are still waiting here.
    pub fn next(&mut self, now: JobTime, deadline: Option<JobTime>) -> Option<(JobTime, Input)> {
        if let Some(input) = self.urgent.pop_front() {
            return Some(self.give(now, input));
        }
        let due = deadline.map(|at| at.max(self.given)).filter(|at| *at <= now);
        let facts_are_earlier = match (due, self.facts.front()) {
            (Some(due), Some((arrived, _))) => *arrived <= due && self.checks.has(Check::DeadlineAfterObservations),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if facts_are_earlier && let Some((arrived, facts)) = self.facts.pop_front() {
            return Some(self.give(arrived, Input::Observed(facts)));
        }
        due.map(|at| self.give(at, Input::Deadline))
    }

    fn give(&mut self, at: JobTime, input: Input) -> (JobTime, Input) {
        self.given = self.given.max(at);
        (self.given, input)
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
        assert!(matches!(mailbox.next(at(3), Some(at(10))), Some((_, Input::Requested(_)))));
        assert_eq!(mailbox.next(at(30), Some(at(10))), Some((at(5), Input::Observed(vec![]))), "arrived before 10");
        assert_eq!(mailbox.next(at(30), Some(at(10))), Some((at(10), Input::Deadline)), "10 comes before 20");
        assert_eq!(mailbox.next(at(30), None), Some((at(20), Input::Observed(vec![]))));
        assert_eq!(mailbox.next(at(30), Some(at(31))), None, "not due yet");
    }

    #[test]
    fn what_an_urgent_input_has_made_late_comes_after_all_facts_until_then() {
        let mut mailbox = Mailbox::default();
        mailbox.push_facts(at(20), vec![]);
        mailbox.push_facts(at(40), vec![]);
        mailbox.push(Input::Requested(Request::Stop { reason: "test".into(), grace: None }));
        assert_eq!(mailbox.next(at(30), Some(at(10))).map(|(at, _)| at), Some(at(30)));
        assert_eq!(mailbox.next(at(50), Some(at(10))), Some((at(30), Input::Observed(vec![]))), "time never goes back");
        assert_eq!(mailbox.next(at(50), Some(at(10))), Some((at(30), Input::Deadline)));
    }
}

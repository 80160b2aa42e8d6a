//! Decides the order in which inputs reach the kernel, and their time.
//!
//! Deaths, exits and answers come first, then observations and deadlines by time. The mailbox is pure, so that shell
//! and simulation share it. It never drops anything; the queues before it are bounded.

use super::{Check, Checks, Input};
use crate::job::JobTime;
use crate::trace::Observation;
use std::collections::VecDeque;

/// Queue of the inputs that wait for the decision kernel. It determines the order in which the kernel receives
/// them.
#[derive(Debug, Default)]
pub struct Mailbox {
    urgent: VecDeque<Input>,
    facts: VecDeque<(JobTime, Vec<Observation>)>,
    checks: Checks,
    /// Time of the last input that was returned by `next`.
    given: JobTime,
}

impl Mailbox {
    /// Creates an empty mailbox that applies these safety checks.
    #[must_use]
    pub fn new(checks: Checks) -> Mailbox {
        Mailbox { checks, ..Mailbox::default() }
    }

    /// Adds an urgent input: a change, an answer, a listing or a request. The kernel receives it before waiting
    /// observations and deadlines.
    pub fn push(&mut self, input: Input) {
        self.urgent.push_back(input);
    }

    /// Adds an urgent input, if there is one. The kernel receives it before waiting observations and deadlines.
    pub fn extend(&mut self, input: Option<Input>) {
        self.urgent.extend(input);
    }

    /// Adds observations that arrived at the job time `arrived`, which must not decrease from call to call.
    pub fn push_facts(&mut self, arrived: JobTime, facts: Vec<Observation>) {
        self.facts.push_back((arrived, facts));
    }

    /// Adds an input that comes before all others: the message that the supervisor was suspended.
    pub fn push_first(&mut self, input: Input) {
        self.urgent.push_front(input);
    }

    /// Returns true if observations are waiting.
    #[must_use]
    pub fn has_facts(&self) -> bool {
        !self.facts.is_empty()
    }

    /// Returns the number of waiting inputs; observations that were added together count as one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.urgent.len() + self.facts.len()
    }

    /// Returns true if no input is waiting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next input for the kernel and its time, if there is one. `deadline` is the value of
    /// `Kernel::deadline`.
    ///
    /// A deadline comes only after the observations that arrived before it: a heartbeat that has already arrived must
    /// not be overtaken by the verdict that it is missing. For the same reason, observations get the time at which they
    /// arrived and deadlines the time for which they were set, however busy the supervisor is: a deadline that is
    /// handled late must not expire other deadlines whose observations are still waiting here.
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
    fn a_deadline_delayed_by_an_urgent_input_follows_earlier_facts() {
        let mut mailbox = Mailbox::default();
        mailbox.push_facts(at(20), vec![]);
        mailbox.push_facts(at(40), vec![]);
        mailbox.push(Input::Requested(Request::Stop { reason: "test".into(), grace: None }));
        assert_eq!(mailbox.next(at(30), Some(at(10))).map(|(at, _)| at), Some(at(30)));
        assert_eq!(mailbox.next(at(50), Some(at(10))), Some((at(30), Input::Observed(vec![]))), "time never goes back");
        assert_eq!(mailbox.next(at(50), Some(at(10))), Some((at(30), Input::Deadline)));
    }
}

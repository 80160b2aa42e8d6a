//! Removes secrets from reports of processes: a program that prints its token and fails includes it in its exit.
//!
//! Only text is changed, before it reaches the kernel and the log, so that both contain the same text.

use super::Secrets;
use crate::job::ErrorReport;
use crate::kernel::Input;
use crate::recover::Failure;
use crate::state::{Change, Phase, WorkerMessage};
use crate::trace::{Observation, Signal};

/// Minimum length of values that are masked, in bytes: shorter ones occur in texts by chance.
const MASKED_BYTES_MIN: usize = 8;

impl Secrets {
    /// Replaces secrets by marks in all text that comes from processes.
    pub(crate) fn mask(&self, input: &mut Input) {
        match input {
            _ if self.taken.is_empty() => {}
            Input::Changed(Change::Proc(status)) => self.in_phase(&mut status.phase),
            Input::Listed(listing) => listing.procs.iter_mut().for_each(|status| self.in_phase(&mut status.phase)),
            Input::Changed(Change::Worker(event)) => match &mut event.message {
                WorkerMessage::Failed(failure) => self.in_text(&mut failure.message),
                WorkerMessage::ErrorRecorded(error) => self.in_error(error),
                WorkerMessage::Reply { result: Err(why), .. } => self.in_text(why),
                _ => {}
            },
            Input::Answered { results, .. } => {
                for (_, result) in results {
                    if let Err(Failure::Refused(why) | Failure::Unreachable(why)) = result {
                        self.in_text(why);
                    }
                }
            }
            Input::Observed(facts) => facts.iter_mut().for_each(|fact| self.in_fact(fact)),
            _ => {}
        }
    }

    fn in_fact(&self, fact: &mut Observation) {
        match &mut fact.signal {
            Signal::Phase(phase) => self.in_phase(phase),
            Signal::Error(error) | Signal::FailureRecorded(error) => self.in_error(error),
            Signal::StepFailed(failure) => self.in_text(&mut failure.message),
            _ => {}
        }
    }

    fn in_phase(&self, phase: &mut Phase) {
        match phase {
            Phase::Pending(why) => self.in_text(why),
            Phase::Exited(exit) => {
                self.in_text(&mut exit.stderr_tail);
                exit.error.iter_mut().for_each(|error| self.in_error(error));
            }
            Phase::Running | Phase::Dead(_) => {}
        }
    }

    fn in_error(&self, error: &mut ErrorReport) {
        self.in_text(&mut error.text);
    }

    fn in_text(&self, text: &mut String) {
        for (value, mark) in self.taken.iter().take_while(|(value, _)| value.len() >= MASKED_BYTES_MIN) {
            if text.contains(value) {
                *text = text.replace(value, mark);
            }
        }
    }
}

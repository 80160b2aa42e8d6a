//! The figures that ranks have reported with their answers, from the log of a job that is over.

use crate::program::Failure;
use std::path::Path;
use taskd_core::job::{JobTime, Seq};
use taskd_core::journal::{Entry, History};
use taskd_core::kernel::Input;
use taskd_core::launch::{Change, DirectiveReply, WorkerMessage};

/// The figures of one answer.
#[derive(Debug)]
pub(super) struct Figures {
    /// When the answer was received.
    pub(super) at: JobTime,
    answered: Box<DirectiveReply>,
}

impl Figures {
    /// Returns the figures of all answers, in order.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(super) fn all(journal: &Path) -> Result<Vec<Figures>, Failure> {
        let mut all = Vec::new();
        for life in History::open(journal)?.lives() {
            for entry in life.steps(Seq(0)) {
                let Entry::Step(step) = entry else { continue };
                let Some(Input::Changed(Change::Worker(event))) = step.input else { continue };
                let WorkerMessage::Reply { result: Ok(answered), .. } = event.message else { continue };
                all.push(Figures { at: step.now, answered });
            }
        }
        Ok(all)
    }

    /// Returns a figure by its name.
    pub(super) fn of(&self, wanted: &str) -> Option<f64> {
        self.answered.figures.iter().find(|(name, _)| name.as_str() == wanted).map(|(_, value)| *value)
    }
}

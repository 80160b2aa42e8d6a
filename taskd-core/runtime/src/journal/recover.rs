//! State that a new supervisor start finds: the last state, the steps after it, and problems.
//!
//! The caller decides if the old state is used.

use super::files::Segment;
use super::history::{History, Life};
use super::replay::{Rebuilt, rebuild};
use super::steps::{Entry, Step, Steps};
use super::{Difference, Gap, Header, MissingInputs, Problem};
use crate::job::{JobTime, Seq};
use crate::kernel::{Plugins, RestoreError, Snapshot};
use std::fmt;

/// State of the decision kernel that earlier supervisor starts left in a journal's directory.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recovered {
    life: Option<Life>,
    /// Header of the latest supervisor start in the log; `None` if no log can be read.
    pub header: Option<Header>,
    /// Differences between `header` and the header with which the journal was opened.
    pub differences: Vec<Difference>,
    /// The newest valid snapshot of the decision kernel's state, if there is one.
    pub snapshot: Option<Snapshot>,
    /// Number of the last input up to which the decision kernel's state is known, from the snapshot and the
    /// [`steps`](Recovered::steps) after it. 0 if no state is available.
    pub upto: Seq,
    /// The latest job time in the log. Job time never goes backwards, so a new start continues from here.
    pub now: JobTime,
    /// The first break in the log; `None` if there is none. The recovered state ends before the break, so it is older
    /// than the end of the log.
    ///
    /// A break is a range of inputs after `upto` without a record although later inputs have one, or the first input in
    /// a file that cannot be used.
    pub missing: Option<MissingInputs>,
    /// Ranges of lost records, as the log itself lists them, from the snapshot on.
    pub gaps: Vec<Gap>,
    /// Problems of the log files that were read.
    pub problems: Vec<Problem>,
}

impl Recovered {
    pub(super) fn read(found: Vec<Segment>, ours: &Header) -> Recovered {
        let history = History::of(found);
        let mut recovered = Recovered { problems: history.problems().to_vec(), ..Recovered::default() };
        let Some(life) = history.latest() else { return recovered };
        for seq in life.snapshots().rev() {
            match life.snapshot(seq) {
                Ok(None) => {}
                Ok(Some(snapshot)) => {
                    (recovered.upto, recovered.now) = (snapshot.seq(), snapshot.now());
                    recovered.snapshot = Some(snapshot);
                    break;
                }
                Err(problem) => recovered.problems.push(problem),
            }
        }
        recovered.header = life.header().cloned();
        recovered.differences = life.header().map(|h| h.differences(ours)).unwrap_or_default();
        recovered.survey(life.steps(recovered.upto));
        recovered.life = Some(life.clone());
        recovered
    }

    /// Determines how far the steps continue without a break, and the first break after that.
    fn survey(&mut self, mut steps: Steps) {
        while let Some(turn) = steps.turn() {
            let missing = match turn {
                Err(missing) => Some(missing),
                Ok(turn) => {
                    steps.pass(&turn);
                    self.now = self.now.max(turn.now);
                    let (from, to) = (turn.seq, turn.seq);
                    (!turn.has_input()).then(|| MissingInputs {
                        from,
                        to,
                        why: "its observations are not in the log".into(),
                    })
                }
            };
            match (missing, &self.missing) {
                (Some(missing), None) => self.missing = Some(missing),
                (None, None) => self.upto = Seq(self.upto.0 + 1),
                (_, Some(_)) => {}
            }
        }
        let problems = steps.problems();
        if let (None, Some(spoiled)) = (&self.missing, problems.iter().find(|p| p.spoils_the_file())) {
            let next = Seq(self.upto.0 + 1); // the decision of that step may have been carried out
            self.missing = Some(MissingInputs { from: next, to: next, why: spoiled.to_string() });
        }
        self.problems.extend(problems);
        self.gaps = steps.gaps();
    }

    /// Returns true if there was no log at all, as at the first start in this directory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.header.is_none() && self.problems.is_empty()
    }

    /// Returns true if there is a state to continue from, and it belongs to this job.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.upto > Seq(0) && !self.differences.iter().any(Difference::is_another_job)
    }

    /// Rebuilds the decision kernel in the recovered state: restores the snapshot and replays the steps after it.
    /// Returns a new kernel if there is no state.
    ///
    /// Like [`steps`](Recovered::steps), this must be called before the new journal has written so much that the oldest
    /// files are removed.
    ///
    /// # Errors
    /// Returns [`RestoreError`] if the snapshot was written by an incompatible version of the program. The plugins are
    /// returned with the error.
    pub fn resume(&self, plugins: Plugins) -> Result<Rebuilt, (RestoreError, Plugins)> {
        match self.has_state() {
            true => rebuild(plugins, self.snapshot.as_ref(), self.steps()),
            false => rebuild(plugins, None, std::iter::empty()),
        }
    }

    /// Returns the decision kernel's logged steps after the snapshot, up to [`upto`](Recovered::upto), or all steps if
    /// there is no snapshot.
    ///
    /// The caller must read them before the new journal has written so much that the oldest files are removed.
    pub fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        let from = self.snapshot.as_ref().map_or(Seq(0), Snapshot::seq);
        let steps = self.life.as_ref().map(|life| life.steps(from));
        let upto = self.upto;
        let steps = steps.into_iter().flatten().map_while(|entry| match entry {
            Entry::Step(step) => Some(step),
            Entry::Missing(_) => None,
        });
        steps.take_while(move |step| step.seq <= upto)
    }
}

impl fmt::Display for Recovered {
    /// Formats a one-line summary, without problems and differences.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(header) = &self.header else { return f.write_str("no readable earlier log") };
        write!(f, "log of {}, state known up to {} at {}", header.job_name(), self.upto, self.now)?;
        match &self.missing {
            Some(missing) => write!(f, "; {missing}"),
            None => Ok(()),
        }
    }
}

//! What a new start of the supervisor finds: the last state, the steps after it, and what is wrong.
//!
//! It decides nothing. Whether an old state is taken up is the caller's choice, made from what stands here.

use super::files::Segment;
use super::history::{History, Life};
use super::replay::{Rebuilt, rebuild};
use super::steps::{Entry, Step, Steps};
use super::{Difference, Gap, Header, Missing, Problem};
use crate::job::{JobTime, Seq};
use crate::kernel::{Plugins, RestoreError, Snapshot};
use std::fmt;

/// What earlier starts have left in a journal's directory.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recovered {
    life: Option<Life>,
    /// Whose log it was, and with which plugins; `None` when there was none that can be read.
    pub header: Option<Header>,
    /// In what that differs from the header that the journal was opened with.
    pub differences: Vec<Difference>,
    /// The newest sound snapshot.
    pub snapshot: Option<Snapshot>,
    /// The last input up to which the state is known: that of the snapshot and of the [`steps`](Recovered::steps) after
    /// it. 0: no state can be had.
    pub upto: Seq,
    /// The latest time that was logged. Job time never goes back, so a new start goes on from here.
    pub now: JobTime,
    /// Inputs behind `upto` of which there is no record, although there are later ones, or the first of those in a file
    /// that cannot be used: the state is older than the log.
    pub missing: Option<Missing>,
    /// Losses that the log tells of, from the snapshot on.
    pub gaps: Vec<Gap>,
    /// What is wrong with the files that were read.
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

    /// How far the steps go without a break, and what lies behind.
    fn survey(&mut self, mut steps: Steps) {
        while let Some(turn) = steps.turn() {
            let missing = match turn {
                Err(missing) => Some(missing),
                Ok(turn) => {
                    steps.pass(&turn);
                    self.now = self.now.max(turn.now);
                    let (from, to) = (turn.seq, turn.seq);
                    (!turn.has_input()).then(|| Missing { from, to, why: "its observations are not in the log".into() })
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
            let next = Seq(self.upto.0 + 1); // what was decided from there on may have been carried out
            self.missing = Some(Missing { from: next, to: next, why: spoiled.to_string() });
        }
        self.problems.extend(problems);
        self.gaps = steps.gaps();
    }

    /// Whether there was nothing at all: the first start in this directory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.header.is_none() && self.problems.is_empty()
    }

    /// Whether there is a state to go on from, and it is that of this job.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.upto > Seq(0) && !self.differences.iter().any(Difference::is_another_job)
    }

    /// A kernel in the recovered state: the snapshot restored, and the steps after it taken again. Without a state, a
    /// kernel that starts from nothing.
    ///
    /// Like [`steps`](Recovered::steps), to be called before the new journal has taken much.
    ///
    /// # Errors
    /// [`RestoreError`] when the snapshot is of another version of the program; the plugins come back with it.
    pub fn resume(&self, plugins: Plugins) -> Result<Rebuilt, (RestoreError, Plugins)> {
        match self.has_state() {
            true => rebuild(plugins, self.snapshot.as_ref(), self.steps()),
            false => rebuild(plugins, None, std::iter::empty()),
        }
    }

    /// The steps after the snapshot up to [`upto`](Recovered::upto), or all of them without one. Read them before the
    /// new journal has taken so much that the oldest files go.
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
    /// One line on what there is; problems and differences are for lines of their own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(header) = &self.header else { return f.write_str("no earlier log that can be read") };
        write!(f, "log of {}, state known up to {} at {}", header.whose(), self.upto, self.now)?;
        match &self.missing {
            Some(missing) => write!(f, "; {missing}"),
            None => Ok(()),
        }
    }
}

//! Merges both logs: the steps of a kernel in their order.
//!
//! A step without a record is reported as missing, with the log's own reason if it gives one; nothing is guessed.

use super::cursor::{Ahead, Cursor};
use super::error::{MissingInputs, Problems};
use super::form;
use super::record::Kind;
use super::{Gap, Problem};
use crate::job::{JobTime, Seq};
use crate::kernel::{Command, Input};
use serde::{Deserialize, Serialize};

/// A step of the decision kernel, as read from the logs: the kernel processed one input and returned commands.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Sequence number, in the journal, of the input that this kernel step processed.
    pub seq: Seq,
    /// Job time at which the kernel processed the input.
    pub now: JobTime,
    /// Input that the kernel processed. `None` if it consists of observations that are no longer in the log.
    pub input: Option<Input>,
    /// Commands that the decision kernel returned for the input. `None` if it returned commands but their record is
    /// lost.
    pub commands: Option<Vec<Command>>,
}

/// Record of a step whose input is not observations.
#[derive(Deserialize)]
pub(super) struct InputRecord {
    pub(super) input: Input,
    pub(super) commands: Vec<Command>,
}

/// Borrowed form of [`InputRecord`], for writing.
#[derive(Serialize)]
pub(super) struct InputRecordRef<'a> {
    pub(super) input: &'a Input,
    pub(super) commands: &'a [Command],
}

/// Entry of a journal's decision log and observation log, merged in the order of the decision kernel's steps.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A step of the decision kernel whose record is in the logs.
    Step(Step),
    /// A range of steps of the decision kernel whose records are missing in the logs.
    Missing(MissingInputs),
}

/// Iterator over the decision kernel's steps in a journal's logs, from the step after a given input to the end of
/// the logs. Holds one file of each log in memory.
#[derive(Debug)]
pub struct Steps {
    decisions: Cursor,
    observations: Cursor,
    next: Seq,
}

/// Records that form the next step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) seq: Seq,
    pub(super) now: JobTime,
    decision: Option<Kind>,
    observation: Option<Kind>,
}

impl Turn {
    /// Returns true if the log contains the step's input.
    pub(super) const fn has_input(&self) -> bool {
        matches!(self.decision, Some(Kind::Step)) || self.observation.is_some()
    }
}

impl Steps {
    pub(super) const fn new(after: Seq, decisions: Cursor, observations: Cursor) -> Steps {
        Steps { decisions, observations, next: Seq(after.0.saturating_add(1)) }
    }

    /// Returns the problems of the log files that were read so far.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        self.all_problems().as_slice().to_vec()
    }

    /// Returns the losses of records that are noted in the log files that were read so far.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        self.decisions.gaps().iter().chain(self.observations.gaps()).cloned().collect()
    }

    pub(super) fn all_problems(&self) -> Problems {
        let mut problems = self.decisions.problems().clone();
        problems.extend(self.observations.problems());
        problems
    }

    /// Returns the next entry without decoding it: missing steps, or a step that [`pass`](Steps::pass) then skips.
    pub(super) fn turn(&mut self) -> Option<Result<Turn, MissingInputs>> {
        let (decision, observation) = (self.decisions.peek(), self.observations.peek());
        let first = [decision, observation].into_iter().flatten().min_by_key(|ahead| ahead.seq)?;
        let Ahead { seq, now, .. } = first;
        if seq > self.next {
            let (from, to) = (self.next, Seq(seq.0 - 1));
            self.next = seq;
            return Some(Err(MissingInputs { from, to, why: self.explain(from, to) }));
        }
        let kind = |ahead: Option<Ahead>| ahead.filter(|a| a.seq == seq).map(|a| a.kind);
        Some(Ok(Turn { seq, now, decision: kind(decision), observation: kind(observation) }))
    }

    /// Skips the step of this turn.
    pub(super) fn pass(&mut self, turn: &Turn) {
        if turn.decision.is_some() {
            self.decisions.pass();
        }
        if turn.observation.is_some() {
            self.observations.pass();
        }
        self.next = Seq(turn.seq.0.saturating_add(1));
    }

    fn read(&mut self, turn: &Turn) -> Step {
        let Turn { seq, now, .. } = *turn;
        let (mut input, mut commands) = (None, None);
        match turn.decision {
            Some(Kind::Step) => {
                if let Some(record) = understood(&mut self.decisions, seq, form::read_named::<InputRecord>) {
                    (input, commands) = (Some(record.input), Some(record.commands));
                }
            }
            Some(_) => commands = understood(&mut self.decisions, seq, form::read_named),
            None if turn.observation == Some(Kind::Quiet) => commands = Some(Vec::new()),
            None => {}
        }
        if input.is_none() && turn.observation.is_some() {
            input = understood(&mut self.observations, seq, form::read_compact).map(Input::Observed);
        }
        Step { seq, now, input, commands }
    }

    fn explain(&self, from: Seq, to: Seq) -> String {
        let mut gaps = self.decisions.gaps().iter().chain(self.observations.gaps());
        if let Some(gap) = gaps.find(|gap| gap.from <= to && gap.to >= from) {
            return gap.reason.clone();
        }
        if let Some(problem) = self.all_problems().as_slice().last() {
            return problem.to_string();
        }
        match (self.observations.last(), self.decisions.last()) {
            (Seq(0), _) => "older observations were removed to stay within the log's bound".to_owned(),
            _ => "neither log has a record of them".to_owned(),
        }
    }
}

impl Iterator for Steps {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let turn = match self.turn()? {
            Ok(turn) => turn,
            Err(missing) => return Some(Entry::Missing(missing)),
        };
        let step = self.read(&turn);
        self.pass(&turn);
        Some(Entry::Step(step))
    }
}

fn understood<T>(cursor: &mut Cursor, seq: Seq, read: impl Fn(&[u8]) -> Result<T, String>) -> Option<T> {
    match read(cursor.payload()) {
        Ok(value) => Some(value),
        Err(what) => {
            cursor.not_understood(seq, what);
            None
        }
    }
}

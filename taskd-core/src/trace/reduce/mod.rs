//! From records to what detectors work with: where the time of each step went, and where a rank stands in its groups.
//!
//! One pass in bounded memory, without a clock of its own: the same records give the same figures, live or from a file. It
//! judges nothing.

mod groups;
mod observer;
mod sweep;
#[cfg(test)]
mod tests;

pub use observer::{Observer, TimedFact};

use super::recorder::{Event, Kind};
use super::{GroupPosition, NameTable, RecordBatch, StepTimes, TimedRecord};
use std::sync::Arc;
use std::time::Duration;
use sweep::Sweep;

/// So many records wait at most until everything before them was seen; then they are taken as they stand.
pub const WAITING_RECORDS_MAX: usize = 1 << 16;

/// Reduces the records of one process.
///
/// Threads record side by side, so a batch is in order thread by thread only, and a range that one thread has begun may end
/// on another. Records therefore wait until [`settle`](Self::settle) says that everything up to a moment was given; they
/// are then taken in the order of their times.
///
/// # What counts
/// - A step is from the beginning to the end of a range of [`Kind::Step`]; several may be open, also on several threads.
/// - Communications of all threads count, as backward passes have threads of their own; of the other kinds those that the
///   step's thread has begun, wherever they end. Ranges that lie in or over each other count once; what is outside of the
///   step does not count.
/// - Waiting: while communications are under way without a pause, from the beginning of the last one until all have
///   ended. A step that ends before has not waited for them.
///
/// # Losses
/// Where records are missing, everything that was open is forgotten, steps excepted: what ended within the gap does not
/// seem to last for ever. Steps that a gap may have touched are given with their [`lost`](StepTimes::lost): their figures are
/// too small, as a rule. A step whose beginning or end was lost is not given.
///
/// A range that outlasts [`RANGE_STEPS_MAX`] steps has lost its end without that: it is forgotten, and counted.
#[derive(Debug, Default)]
pub struct Reducer {
    names: Arc<NameTable>,
    waiting: Vec<TimedRecord>,
    /// The batch before was one with losses.
    after_gap: bool,
    sweep: Sweep,
}

/// Ranges of more steps are taken for ranges whose end nobody told.
pub const RANGE_STEPS_MAX: u64 = 8;
/// So many ranges can be open at one time, steps excepted; with one more all are forgotten.
pub const OPEN_RANGES_MAX: usize = 4096;
/// So many steps can be open at one time; with one more the oldest is forgotten.
pub const OPEN_STEPS_MAX: usize = 16;
/// So many groups are known of a process; one more takes the place of the one that was silent for longest.
pub const GROUPS_MAX: usize = 256;

/// A step that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedStep {
    /// When, in nanoseconds since 1970 on the process's time line.
    pub unix_nanos: u64,
    /// Where its time went.
    pub times: StepTimes,
}

/// A call in a group that has been under way for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCall {
    /// The group's name.
    pub group: String,
    /// Its number in the group.
    pub sequence: u64,
    /// When it began, in nanoseconds since 1970 on the process's time line.
    pub begun: u64,
}

/// What a [`Reducer`] had to do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReducerCounts {
    /// Records that were lost before they came here.
    pub lost: u64,
    /// Ends of ranges whose beginning never came.
    pub orphan_ends: u64,
    /// Ranges that were forgotten before their end came: at a bound, or at a gap.
    pub forgotten: u64,
    /// Steps that were forgotten, at their bound.
    pub forgotten_steps: u64,
    /// Groups that were forgotten, at their bound.
    pub forgotten_groups: u64,
    /// Records that came when the order was settled beyond their time.
    pub late: u64,
}

impl Reducer {
    /// Takes what comes next of the process.
    pub fn take(&mut self, batch: &RecordBatch) {
        let is_silent = batch.records.is_empty() && batch.lost == 0;
        if !is_silent && (batch.lost > 0 || self.after_gap) {
            self.sweep_until(u64::MAX);
            self.sweep.gap(batch.lost);
            self.after_gap = batch.lost > 0;
        }
        self.names = Arc::clone(&batch.names);
        self.waiting.extend(batch.records.iter().filter(|record| counts(record)));
        if self.waiting.len() > WAITING_RECORDS_MAX {
            self.sweep_until(u64::MAX);
        }
    }

    /// Says that everything that the process recorded up to a moment was given, and returns the steps that are complete, in
    /// the order in which they ended. `u64::MAX`: nothing more will come.
    pub fn settle(&mut self, until_unix_nanos: u64) -> Vec<EndedStep> {
        self.sweep_until(until_unix_nanos);
        std::mem::take(&mut self.sweep.ended)
    }

    /// Where the process stands in its groups, as far as the order is settled, sorted by the groups' names.
    #[must_use]
    pub fn positions(&self, now_unix_nanos: u64) -> Vec<GroupPosition> {
        self.sweep.groups.positions(now_unix_nanos, &self.names)
    }

    /// Calls that began at least so long ago and are still under way, each once.
    pub fn pending(&mut self, now_unix_nanos: u64, longer_than: Duration) -> Vec<PendingCall> {
        self.sweep.groups.pending(now_unix_nanos, longer_than, &self.names)
    }

    /// What it had to do without.
    #[must_use]
    pub fn counts(&self) -> ReducerCounts {
        self.sweep.counts
    }

    fn sweep_until(&mut self, until: u64) {
        self.waiting.sort_by_key(|record| record.unix_nanos); // stable, and quick with what is sorted piece by piece
        let settled = self.waiting.partition_point(|record| record.unix_nanos <= until);
        for record in self.waiting.drain(..settled) {
            self.sweep.record(&record);
        }
    }
}

/// Whether figures are made of a record. Of what comes afterwards, as spans do, none are: they would be too late.
fn counts(record: &TimedRecord) -> bool {
    let is_range = matches!(record.event, Event::Begin { .. } | Event::End { .. });
    is_range && !matches!(record.kind, Kind::Kernel | Kind::Copy | Kind::Api | Kind::Marker | Kind::User(_))
}

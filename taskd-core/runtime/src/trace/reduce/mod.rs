//! Reduction of records for detectors: a breakdown of each step's time, and a rank's position in its groups.
//!
//! One pass in bounded memory, without a clock: the same records give the same figures, live or from a file. Detectors
//! judge the figures.

mod device;
mod groups;
mod observer;
mod sweep;
#[cfg(test)]
mod tests;
mod transfers;

pub use device::{DEVICE_LATENESS, DEVICE_SPAN_MAX, DEVICE_SPANS_MAX, HELD_STEPS_MAX};
pub use observer::{METRICS_MAX, Observer, PENDING_AFTER, TRAINING_METRICS, TimedFact};
pub use taskd_kernel::trace::split_group_name;

use super::recorder::{Event, Kind};
use super::{DeviceTimes, GroupPosition, NameTable, RecordBatch, StepTimes, StepTransfers, TimedRecord};
use device::{Device, Times};
use std::sync::Arc;
use std::time::Duration;
use sweep::Sweep;

/// Maximum number of records of one process that wait for a call of [`Reducer::settle`]. Further records are processed
/// in the order in which they arrived, not in the order of their times.
pub const WAITING_RECORDS_MAX: usize = 1 << 16;

/// Reduces the trace records of one process to the times of its steps and its calls in process groups.
///
/// Threads record concurrently, so a batch is ordered per thread only, and a range that one thread has begun may end on
/// another. Records therefore wait until a call of [`settle`](Self::settle) states that all records up to a moment were
/// passed in; they are then processed in the order of their times.
///
/// # Definitions
/// - A step lasts from the beginning to the end of a range of [`Kind::Step`]; several may be open, also on several
///   threads.
/// - Communications of all threads count, since backward passes have threads of their own; of the other kinds, only
///   ranges begun by the step's thread count, wherever they end. Overlapping and nested ranges count once; time outside
///   the step does not count.
/// - Waiting time: during an uninterrupted period with pending communications, the time from the beginning of the last
///   one until all have ended. A step that ends earlier has not waited for them.
///
/// # Devices
/// Spans of a device ([`Kind::Kernel`], [`Kind::Copy`] and [`Kind::Communication`], each with the number of its device)
/// become the step's [`DeviceTimes`]. A kernel with the name of a communication library (`nccl`, `hccl`, `hcom_`) counts
/// as communication. Spans arrive after the end of their step, in any order: while a process has spans, its ended steps
/// wait for them for [`DEVICE_LATENESS`]. Other spans (calls, markers, and those of the host) are not used.
///
/// # Losses
/// Where records are missing, all open ranges except steps are forgotten, so that a range that ended within the gap
/// does not seem to continue indefinitely. Steps that a gap may have affected are returned with their
/// [`lost`](StepTimes::lost): their figures are usually too small. A step whose beginning or end was lost is not
/// returned.
///
/// A range that outlasts [`RANGE_STEPS_MAX`] steps is assumed to have lost its end: it is forgotten, and counted.
#[derive(Debug, Default)]
pub struct Reducer {
    names: Arc<NameTable>,
    waiting: Vec<TimedRecord>,
    /// True if the previous batch had losses.
    after_gap: bool,
    sweep: Sweep,
    device: Device,
}

/// Number of steps that may end while a range is open. If one more ends, the range is assumed to have lost its end: it
/// is forgotten, and counted in [`ReducerCounts::forgotten`].
pub const RANGE_STEPS_MAX: u64 = 8;
/// Maximum number of ranges of a process that are open at one time, not counting steps. When one more begins, all open
/// ranges are forgotten, and counted in [`ReducerCounts::forgotten`].
pub const OPEN_RANGES_MAX: usize = 4096;
/// Maximum number of steps of a process that are open at one time. When one more begins, the oldest is forgotten, and
/// counted in [`ReducerCounts::forgotten_steps`].
pub const OPEN_STEPS_MAX: usize = 16;
/// Maximum number of process groups that are tracked at one time for a process. One more replaces the group whose last
/// call is the oldest; [`ReducerCounts::forgotten_groups`] counts this.
pub const GROUPS_MAX: usize = 256;
/// Maximum number of pairs that are tracked at one time for a process: its sends to one rank in one group, or its receives
/// from one rank there. A further pair replaces the pair with the oldest last call; [`ReducerCounts::forgotten_groups`]
/// counts this.
pub const PAIRS_MAX: usize = 128;

/// A step that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedStep {
    /// Time of the step's end, in nanoseconds since 1970 by the calendar of the process's records.
    pub unix_nanos: u64,
    /// Breakdown of the step's time.
    pub times: StepTimes,
    /// Breakdown of the time of the process's devices; `None` if no span of a device lies in the step.
    pub device: Option<DeviceTimes>,
    /// Sends and receives that the process waited for until their data had arrived; `None` if there were none.
    pub transfers: Option<StepTransfers>,
}

/// A collective that has been pending for a long time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCall {
    /// Name of the process group.
    pub group: String,
    /// Sequence number of the collective in its process group.
    pub sequence: u64,
    /// Time at which the call began, in nanoseconds since 1970 by the calendar of the process's records.
    pub begun: u64,
}

/// Counts of the data that a [`Reducer`] lacked or has forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReducerCounts {
    /// Number of records that were lost before they reached the reducer.
    pub lost: u64,
    /// Number of ends of ranges whose beginning is missing.
    pub orphan_ends: u64,
    /// Number of ranges forgotten before their end: at a limit, or because records are missing.
    pub forgotten: u64,
    /// Number of steps forgotten before their end, because a limit was reached.
    pub forgotten_steps: u64,
    /// Number of process groups forgotten because there were more than `GROUPS_MAX`, and of pairs of ranks forgotten
    /// because there were more than `PAIRS_MAX`.
    pub forgotten_groups: u64,
    /// Number of records that arrived after later records had been processed.
    pub late: u64,
    /// Number of spans of devices that arrived after a step in which they lie had been returned.
    pub late_spans: u64,
    /// Number of spans of devices that were dropped because [`DEVICE_SPANS_MAX`] others waited.
    pub dropped_spans: u64,
    /// Number of spans of devices with an impossible time: none, one in the future, or a duration of more than
    /// [`DEVICE_SPAN_MAX`].
    pub false_spans: u64,
    /// Number of steps that did not wait for their spans, because [`HELD_STEPS_MAX`] others waited.
    pub hurried_steps: u64,
}

impl Reducer {
    /// Adds the next batch of records of the process.
    pub fn take(&mut self, batch: &RecordBatch) {
        let is_silent = batch.records.is_empty() && batch.lost == 0;
        if !is_silent && (batch.lost > 0 || self.after_gap) {
            self.sweep_until(u64::MAX);
            self.sweep.gap(batch.lost);
            self.device.gap(batch.lost);
            self.after_gap = batch.lost > 0;
        }
        self.names = Arc::clone(&batch.names);
        self.sweep.groups.rank = batch.origin.rank.0;
        for record in &batch.records {
            match record.event {
                Event::Begin { .. } | Event::End { .. } if is_of_host(record.kind) => self.waiting.push(*record),
                Event::Span { nanos } => self.device.take(record, nanos, &batch.names, &mut self.sweep.counts),
                _ => {}
            }
        }
        if self.waiting.len() > WAITING_RECORDS_MAX {
            self.sweep_until(u64::MAX);
        }
    }

    /// Processes the records up to a time in nanoseconds since 1970, and returns the completed steps in the order of
    /// their ends. The caller states by this that all records up to that time were passed in. `u64::MAX`: no further
    /// records will come, and no step waits for spans of devices any longer.
    pub fn settle(&mut self, until_unix_nanos: u64) -> Vec<EndedStep> {
        self.sweep_until(until_unix_nanos);
        let (ended, begins) = (std::mem::take(&mut self.sweep.ended), std::mem::take(&mut self.sweep.begins));
        let times = Times { until: until_unix_nanos, now: self.sweep.now, open: self.sweep.oldest_open() };
        self.device.settle(ended, begins, times, &mut self.sweep.counts)
    }

    /// Returns the process's last calls in each of its process groups, from the settled records, sorted by the groups'
    /// names. The sends to another rank in a group, and the receives from it, are a group of these two: see
    /// [`point_to_point_name`](crate::trace::point_to_point_name).
    #[must_use]
    pub fn positions(&self, now_unix_nanos: u64) -> Vec<GroupPosition> {
        self.sweep.groups.positions(now_unix_nanos, &self.names)
    }

    /// Returns the collectives that have been pending for at least `longer_than`, each once.
    pub fn pending(&mut self, now_unix_nanos: u64, longer_than: Duration) -> Vec<PendingCall> {
        self.sweep.groups.pending(now_unix_nanos, longer_than, &self.names)
    }

    /// Returns the counts of missing data.
    #[must_use]
    pub fn counts(&self) -> ReducerCounts {
        self.sweep.counts
    }

    fn sweep_until(&mut self, until: u64) {
        self.waiting.sort_by_key(|record| record.unix_nanos); // stable, and fast for data that is sorted in pieces
        let settled = self.waiting.partition_point(|record| record.unix_nanos <= until);
        for record in self.waiting.drain(..settled) {
            self.sweep.record(&record, &self.names);
        }
    }
}

/// Returns true if ranges of this kind are used. Devices report complete spans.
const fn is_of_host(kind: Kind) -> bool {
    !matches!(kind, Kind::Kernel | Kind::Copy | Kind::Api | Kind::Marker | Kind::User(_))
}

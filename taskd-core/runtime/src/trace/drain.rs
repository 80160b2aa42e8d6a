//! Reading of records from a process's memory, with their origin, thread and calendar time.
//!
//! The drain does not wait and keeps no records. Its caller processes them, and commits them once they are safe.

use super::recorder::{Anchor, Clock, DrainedRecord, NameId, RecordedBy, RecorderReader, Timeline};
use super::{NameTable, Origin, RecordBatch, TimedRecord};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Maximum number of records that one call of [`Drain::take`] takes from each thread of the recording process. Further
/// records stay in the process's memory until the next call.
pub const THREAD_RECORDS_MAX: u64 = 4096;
/// Maximum number of threads remembered per ring, if several threads used the ring in turn.
const OWNERS_MAX: usize = 8;

/// A reader of the trace records of one process. It takes them out of the memory into which the process records,
/// while the process runs and after it has ended for any reason.
///
/// ```
/// use taskd_core::job::{Incarnation, Rank};
/// use taskd_core::trace::recorder::{Detail, Event, Kind, Recorder, RecorderConfig, RecorderReader};
/// use taskd_core::trace::{Drain, Origin};
/// # fn main() -> std::io::Result<()> {
/// let config = RecorderConfig::default();
/// let memory = config.memory()?;
/// let recorder = Recorder::create(memory.try_clone()?, config)?; // in the rank
/// recorder.thread().record(Kind::Step, Event::Instant, recorder.name("here"), Detail::None);
///
/// let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: std::process::id() };
/// let mut drain = Drain::new(RecorderReader::open(memory)?, origin)?;
/// let drained = drain.take()?;
/// assert_eq!(drained.batch.names.get(drained.batch.records[0].name), "here");
/// drain.commit()?; // the records are safe, and are not returned again
/// # Ok(())
/// # }
/// ```
///
/// # Times
/// Times are the process's monotonic clock plus a constant offset to the calendar, taken at the start of its recorder:
/// setting the calendar does not move them. Ticks of the processor's counter are converted by interpolation between two
/// moments at which both clocks were read, so that errors do not add up; the records of a thread stay in their order.
/// Imported records keep the times and the order with which they were imported.
#[derive(Debug)]
pub struct Drain {
    recording: RecorderReader,
    origin: Origin,
    calendar: Calendar,
    /// The last moment at which both clocks were read.
    anchor: Anchor,
    line: Timeline,
    names: Arc<NameTable>,
    rings: Vec<Ring>,
    lost_reported: u64,
    taken: Vec<DrainedRecord>,
}

/// Result of one call of [`Drain::take`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Drained {
    /// The trace records that the call has taken; may be empty.
    pub batch: RecordBatch,
    /// Time, in nanoseconds since 1970, up to which all records of the process have been taken. `None`: the process has
    /// further records that wait to be taken; call again.
    pub settled: Option<u64>,
}

/// A process's time line: the start of its recorder in the monotonic clock and in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calendar {
    nanos: u64,
    unix_nanos: u64,
}

impl Calendar {
    /// Converts a time of the monotonic clock to nanoseconds since 1970.
    const fn unix(self, nanos: u64) -> u64 {
        self.unix_nanos.saturating_add(nanos.saturating_sub(self.nanos))
    }

    /// Converts nanoseconds since 1970 to the monotonic clock.
    pub(crate) const fn nanos(self, unix_nanos: u64) -> u64 {
        self.nanos.saturating_add(unix_nanos.saturating_sub(self.unix_nanos))
    }

    /// Returns the current time in nanoseconds since 1970.
    pub(crate) fn now(self) -> u64 {
        self.unix(Clock::Monotonic.ticks())
    }
}

/// State of one ring.
#[derive(Debug, Default)]
struct Ring {
    /// Threads that used the ring, latest last.
    owners: VecDeque<Owner>,
    /// Time of the last record.
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    claim: u64,
    /// Number of its first record, and the number behind its last one once it has ended.
    since: u64,
    until: u64,
    thread: u32,
}

impl Ring {
    /// Returns the thread that made a record; 0 if unknown.
    fn thread_of(&self, number: u64) -> u32 {
        let had = |owner: &&Owner| (owner.since..owner.until).contains(&number);
        self.owners.iter().rev().find(had).map_or(0, |owner| owner.thread)
    }
}

impl Drain {
    /// Creates a drain that continues after the last committed record.
    ///
    /// # Errors
    /// Returns an error if the memory comes from another machine or an earlier boot, because the times of its records
    /// are then unknown.
    pub fn new(recording: RecorderReader, origin: Origin) -> io::Result<Drain> {
        let (anchor, unix_nanos) = recording.begun();
        let line = recording.time_line().ok_or_else(|| {
            io::Error::other(
                "its clock is not the clock of this boot of this machine: the times of its records are unknown",
            )
        })?;
        let calendar = Calendar { nanos: anchor.nanos, unix_nanos };
        let (names, rings, taken) = (Arc::default(), Vec::new(), Vec::new());
        Ok(Drain { recording, origin, calendar, anchor, line, names, rings, lost_reported: 0, taken })
    }

    /// Returns the process that made the records.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the current time in nanoseconds since 1970, by the same clock as the times of the process's records.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.calendar.now()
    }

    pub(crate) const fn calendar(&self) -> Calendar {
        self.calendar
    }

    /// Takes the available records of the process, at most [`THREAD_RECORDS_MAX`] per thread. The first batch also
    /// reports the losses from before this reader.
    ///
    /// # Errors
    /// Returns an error if the memory of a thread's records cannot be mapped and no other thread has records. No record
    /// is lost: the next call, or the next reader, takes these records.
    pub fn take(&mut self) -> io::Result<Drained> {
        let before = self.recording.clock().anchor();
        let taken = &mut self.taken;
        let outcome = self.recording.take_some(THREAD_RECORDS_MAX, |record| taken.push(record));
        if let Err(error) = &outcome
            && self.taken.is_empty()
        {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        self.follow_clock();
        self.follow_names();
        self.follow_threads();
        let records = self.timed();
        let lost = self.recording.losses().records();
        let newly_lost = lost.saturating_sub(self.lost_reported);
        self.lost_reported = lost;
        let batch = RecordBatch { origin: self.origin, names: Arc::clone(&self.names), lost: newly_lost, records };
        let is_all = matches!(outcome, Ok(false));
        Ok(Drained { batch, settled: is_all.then(|| self.calendar.unix(before.nanos)) })
    }

    /// Commits the records taken so far: the caller states that it has stored them safely, and the process may use
    /// their space again.
    ///
    /// # Errors
    /// Returns an error if another reader takes records of this process as well. One of the two readers should then
    /// end.
    pub fn commit(&mut self) -> io::Result<()> {
        self.recording.commit()
    }

    /// Updates the conversion of ticks with the time since the last call.
    fn follow_clock(&mut self) {
        let now = self.recording.clock().anchor();
        if let Some(line) = Timeline::through(self.anchor, now) {
            (self.line, self.anchor) = (line, now);
        }
    }

    fn follow_names(&mut self) {
        let next = |names: &NameTable| NameId(u32::try_from(names.len()).unwrap_or(u32::MAX).saturating_add(1));
        while let Some(name) = self.recording.name(next(&self.names)) {
            Arc::make_mut(&mut self.names).push(name);
        }
    }

    /// Updates the threads. Called after records were taken: a thread is registered before it makes its first record.
    fn follow_threads(&mut self) {
        for thread in self.recording.threads() {
            if self.rings.len() <= thread.ring {
                self.rings.resize_with(thread.ring + 1, Ring::default);
            }
            let owners = &mut self.rings[thread.ring].owners;
            let until = if thread.has_ended { thread.written } else { u64::MAX };
            match owners.back_mut().filter(|last| last.claim == thread.claim) {
                Some(last) => last.until = until,
                None => owners.push_back(Owner { claim: thread.claim, since: thread.since, until, thread: thread.id }),
            }
            if owners.len() > OWNERS_MAX {
                owners.pop_front();
            }
        }
    }

    /// Converts the records that were taken, adding times and threads.
    fn timed(&mut self) -> Vec<TimedRecord> {
        let (line, calendar, rings) = (self.line, self.calendar, &mut self.rings);
        let timed = self.taken.drain(..).map(|DrainedRecord { ring, number, record }| {
            let (unix_nanos, thread) = match (record.by, rings.get_mut(ring)) {
                (RecordedBy::Import { thread }, _) => (record.ticks, thread),
                (RecordedBy::Itself, Some(ring)) => {
                    ring.last = ring.last.max(calendar.unix(line.nanos(record.ticks)));
                    (ring.last, ring.thread_of(number))
                }
                (RecordedBy::Itself, None) => (calendar.unix(line.nanos(record.ticks)), 0),
            };
            let (kind, event, name, detail) = (record.kind, record.event, record.name, record.detail);
            TimedRecord { unix_nanos, thread, kind, event, name, detail }
        });
        timed.collect()
    }
}

#[cfg(test)]
mod tests;

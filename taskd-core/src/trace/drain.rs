//! Taking records out of a process's memory: whose they are, which thread's, and when they were by the calendar.
//!
//! It waits for nothing and keeps nothing. What becomes of the records is for its caller, who says when they are safe.

use super::recorder::{Anchor, By, Clock, NameId, Recording, Taken, TimeLine};
use super::{NameTable, Origin, RecordBatch, TimedRecord};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// So many records of each thread are taken by one call at most.
pub const THREAD_RECORDS_MAX: u64 = 4096;
/// So many threads that had one ring after another are remembered.
const OWNERS_MAX: usize = 8;

/// Takes the records of one process out of its memory, while it runs and after it has ended, by whatever.
///
/// ```
/// use taskd_core::job::{Incarnation, Rank};
/// use taskd_core::trace::recorder::{Detail, Event, Kind, Recorder, RecorderConfig, Recording};
/// use taskd_core::trace::{Drain, Origin};
/// # fn main() -> std::io::Result<()> {
/// let config = RecorderConfig::default();
/// let memory = config.memory()?;
/// let recorder = Recorder::create(memory.try_clone()?, config)?; // in the rank
/// recorder.thread().record(Kind::Step, Event::Instant, recorder.name("here"), Detail::None);
///
/// let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: std::process::id() };
/// let mut drain = Drain::new(Recording::open(memory)?, origin)?;
/// let drained = drain.take()?;
/// assert_eq!(drained.batch.names.get(drained.batch.records[0].name), "here");
/// drain.commit()?; // the records are safe: nobody gets them again
/// # Ok(())
/// # }
/// ```
///
/// # Times
/// They are the process's monotonic clock, and one offset to the calendar, taken when its recorder was begun: no setting of
/// the calendar moves them. Ticks of the processor's counter are turned into time between two moments at which both were
/// read, so that errors do not add up; the records of a thread stay in their order. Imported records have the times that they
/// came with, and the order in which they came.
#[derive(Debug)]
pub struct Drain {
    recording: Recording,
    origin: Origin,
    calendar: Calendar,
    /// The last moment at which both clocks were read.
    anchor: Anchor,
    line: TimeLine,
    names: Arc<NameTable>,
    rings: Vec<Ring>,
    lost_told: u64,
    taken: Vec<Taken>,
}

/// What was taken by one call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Drained {
    /// The records; there may be none.
    pub batch: RecordBatch,
    /// Everything that the process had recorded by this moment, in nanoseconds since 1970, was taken by now. `None`: there
    /// is more; call again.
    pub settled: Option<u64>,
}

/// A process's time line: when its recorder was begun, by the monotonic clock and in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calendar {
    nanos: u64,
    unix_nanos: u64,
}

impl Calendar {
    /// A moment of the monotonic clock.
    const fn unix(self, nanos: u64) -> u64 {
        self.unix_nanos.saturating_add(nanos.saturating_sub(self.nanos))
    }

    /// A moment by the monotonic clock.
    pub(crate) const fn nanos(self, unix_nanos: u64) -> u64 {
        self.nanos.saturating_add(unix_nanos.saturating_sub(self.unix_nanos))
    }

    /// This moment.
    pub(crate) fn now(self) -> u64 {
        self.unix(Clock::Monotonic.ticks())
    }
}

/// What is known of one ring.
#[derive(Debug, Default)]
struct Ring {
    /// Threads that had it, the last one last.
    owners: VecDeque<Owner>,
    /// The time of the last record.
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    claim: u64,
    /// Its first record, and the one after its last once it has ended.
    since: u64,
    until: u64,
    thread: u32,
}

impl Ring {
    /// The thread that made a record; 0 when nobody knows.
    fn thread_of(&self, number: u64) -> u32 {
        let had = |owner: &&Owner| (owner.since..owner.until).contains(&number);
        self.owners.iter().rev().find(had).map_or(0, |owner| owner.thread)
    }
}

impl Drain {
    /// Goes on where the last reader came to.
    ///
    /// # Errors
    /// When the memory is of another machine, or of before this one was started: nobody can say when its records were.
    pub fn new(recording: Recording, origin: Origin) -> io::Result<Drain> {
        let (anchor, unix_nanos) = recording.begun();
        let line = recording.time_line().ok_or_else(|| {
            io::Error::other(
                "its clock is not this machine's since its last start: nobody can say when its records were",
            )
        })?;
        let calendar = Calendar { nanos: anchor.nanos, unix_nanos };
        let (names, rings, taken) = (Arc::default(), Vec::new(), Vec::new());
        Ok(Drain { recording, origin, calendar, anchor, line, names, rings, lost_told: 0, taken })
    }

    /// Whose records these are.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// This moment on the process's time line, in nanoseconds since 1970.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.calendar.now()
    }

    pub(crate) const fn calendar(&self) -> Calendar {
        self.calendar
    }

    /// Takes what is there, [`THREAD_RECORDS_MAX`] of each thread at most. The first batch tells losses of a time before this
    /// reader, too.
    ///
    /// # Errors
    /// When memory of a thread's records cannot be mapped and the others have none. Nothing is lost by that: the next call, or
    /// the next reader, takes them.
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
        let newly_lost = lost.saturating_sub(self.lost_told);
        self.lost_told = lost;
        let batch = RecordBatch { origin: self.origin, names: Arc::clone(&self.names), lost: newly_lost, records };
        let is_all = matches!(outcome, Ok(false));
        Ok(Drained { batch, settled: is_all.then(|| self.calendar.unix(before.nanos)) })
    }

    /// Says that everything that was taken is safe: its room in the memory is free.
    ///
    /// # Errors
    /// When somebody else takes records as well: one of both should end.
    pub fn commit(&mut self) -> io::Result<()> {
        self.recording.commit()
    }

    /// Draws the line from where the last one ended to now.
    fn follow_clock(&mut self) {
        let now = self.recording.clock().anchor();
        if let Some(line) = TimeLine::through(self.anchor, now) {
            (self.line, self.anchor) = (line, now);
        }
    }

    fn follow_names(&mut self) {
        let next = |names: &NameTable| NameId(u32::try_from(names.len()).unwrap_or(u32::MAX).saturating_add(1));
        while let Some(name) = self.recording.name(next(&self.names)) {
            Arc::make_mut(&mut self.names).push(name);
        }
    }

    /// After records were taken: whoever has made one has said before who it is.
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

    /// What was taken, with times and threads.
    fn timed(&mut self) -> Vec<TimedRecord> {
        let (line, calendar, rings) = (self.line, self.calendar, &mut self.rings);
        let timed = self.taken.drain(..).map(|Taken { ring, number, record }| {
            let (unix_nanos, thread) = match (record.by, rings.get_mut(ring)) {
                (By::Import { thread }, _) => (record.ticks, thread),
                (By::Itself, Some(ring)) => {
                    ring.last = ring.last.max(calendar.unix(line.nanos(record.ticks)));
                    (ring.last, ring.thread_of(number))
                }
                (By::Itself, None) => (calendar.unix(line.nanos(record.ticks)), 0),
            };
            let (kind, event, name, detail) = (record.kind, record.event, record.name, record.detail);
            TimedRecord { unix_nanos, thread, kind, event, name, detail }
        });
        timed.collect()
    }
}

#[cfg(test)]
mod tests;

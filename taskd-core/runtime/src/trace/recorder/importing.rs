//! Import of records that another component made, such as a vendor's trace interface: with own times, in any order,
//! later.
//!
//! Import does not look at the switches: the importing component has recorded the kinds that were on at the time. It
//! never waits and never overwrites records that were not read yet; records without room remain with the caller.
//!
//! # Times
//! The recorder's calendar is its monotonic clock plus a constant offset, so that setting the system's calendar does
//! not move its records; a vendor's times are in the system's calendar. Both are read once per batch, and their
//! difference is added to each time. If the calendar is set between a record and its import, that record moves by the
//! same amount.

use super::record::{Detail, Event, Kind, NameId, Record, RecordedBy};
use super::sys;
use super::writing::{Recorder, ThreadRecorder};

/// Record that another component made, such as a vendor's trace interface, for import into a recorder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Imported {
    /// Time of the record (of a span: of its beginning), as `CLOCK_REALTIME` in nanoseconds. 0 means unknown and stays
    /// 0.
    pub unix_nanos: u64,
    /// System id of the thread that did the activity; 0 if no thread did it, as for work of a device. The id is stored
    /// for spans and instants only.
    pub thread: u32,
    /// Kind of the activity.
    pub kind: Kind,
    /// Form of the record: a span, an instant, or the value of a counter. A record that begins or ends a range must
    /// have a range number that no other range of the process has.
    pub event: Event,
    /// Name of the activity.
    pub name: NameId,
    /// Further data of the record, which depends on its kind.
    pub detail: Detail,
}

impl ThreadRecorder<'_> {
    /// Imports records in the given order until the thread's ring buffer is full, and returns the number of imported
    /// records. The caller offers the remaining records again once a reader has made room, or drops them and then has
    /// to report the loss.
    pub fn import(&mut self, records: impl ExactSizeIterator<Item = Imported>) -> usize {
        if !self.recorder.is_of_this_process() {
            return 0;
        }
        if self.writer.is_none() {
            self.look_again();
        }
        let shift = self.recorder.calendar_shift();
        let Some(writer) = &mut self.writer else { return 0 };
        let most = writer.room().min(records.len());
        for one in records.take(most) {
            writer.push(&one.record(shift).to_words());
        }
        most
    }
}

impl Imported {
    #[inline]
    const fn record(self, shift: i64) -> Record {
        let Imported { unix_nanos, thread, kind, event, name, detail } = self;
        let ticks = if unix_nanos == 0 { 0 } else { unix_nanos.saturating_add_signed(shift) };
        Record { ticks, by: RecordedBy::Import { thread }, kind, event, name, detail }
    }
}

impl Recorder {
    /// Returns the difference in nanoseconds from the system's calendar to the recorder's, which does not move when the
    /// system's is set.
    fn calendar_shift(&self) -> i64 {
        let (begun, unix_nanos) = (self.layout.anchor(), self.begun_unix_nanos());
        let before = sys::monotonic_nanos();
        let system = sys::unix_nanos();
        let now = before.midpoint(sys::monotonic_nanos());
        let own = unix_nanos.saturating_add(now.saturating_sub(begun.nanos));
        i64::try_from(i128::from(own) - i128::from(system)).unwrap_or(0)
    }

    fn begun_unix_nanos(&self) -> u64 {
        self.layout.header().unix_nanos.load(std::sync::atomic::Ordering::Relaxed)
    }
}

//! What somebody else has recorded, such as a vendor's trace interface: with times of its own, in any order, afterwards.
//!
//! It asks for nothing and looks at no switch: whoever imports has recorded what was on when it happened. It never waits, and
//! never writes over what was not taken yet: what finds no room is still the caller's.
//!
//! # Times
//! A recorder's calendar is its monotonic clock and one offset, so that no setting of the calendar moves its records; a vendor's
//! times are the system's calendar. Both are read once a batch, and what lies between them is added. A calendar that was set
//! between a record and its import moves that record by as much.

use super::record::{By, Detail, Event, Kind, NameId, Record};
use super::sys;
use super::writing::{Recorder, ThreadRecorder};

/// A record of somebody else's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Imported {
    /// When, or when it began: `CLOCK_REALTIME` in nanoseconds. 0 stays 0: a time that is unknown.
    pub unix_nanos: u64,
    /// The thread that did it; 0 for none, as for work of a device. Kept for spans and instants.
    pub thread: u32,
    /// What.
    pub kind: Kind,
    /// A span, an instant or a figure; of a range begin and end must have a number that no other range of the process has.
    pub event: Event,
    /// How it is called.
    pub name: NameId,
    /// What its kind says besides.
    pub detail: Detail,
}

impl ThreadRecorder<'_> {
    /// Records what others have recorded, in its order, as far as there is room: how many were taken. The rest is to be brought
    /// again once a reader has made room, or to be given up by whoever brings it, who then has to say so.
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
        Record { ticks, by: By::Import { thread }, kind, event, name, detail }
    }
}

impl Recorder {
    /// What has to be added to the system's calendar for the recorder's, in nanoseconds.
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

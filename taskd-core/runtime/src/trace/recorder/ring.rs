//! One thread's ring buffer: wait-free for the writing thread, readable while it writes and after it died.
//!
//! The ring transports words without interpreting them. Nothing in it allocates, locks, fails or waits.
//!
//! A slot is one cache line: its first word contains the number of its record and whether the record is complete, as in
//! a sequence lock. The writer marks the slot as being written, writes the words, marks it as complete, and then
//! publishes it by a counter. A writer that dies in between leaves a slot that no reader takes for a record.
//!
//! A reader that takes records reads first, and commits its position afterwards: if it dies in between, the next reader
//! reads the same records again. One reader at a time takes records; others may look.

use super::cells::{AtomicU32, AtomicU64, Ordering, RECORD_WORDS, fence};

/// A record as encoded in a slot.
pub(super) type Words = [u64; RECORD_WORDS];

/// One cache line of a ring.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// 0: never written; `2n + 1`: record `n` is being written; `2n + 2`: record `n` is complete.
    mark: AtomicU64,
    words: [AtomicU64; RECORD_WORDS],
}

/// State of a ring, stored before the slots. Each cache line has one writer.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Head {
    /// [`FREE`], [`CLAIMED`] or [`ENDED`].
    pub(super) state: AtomicU32,
    /// Thread id of the writer.
    pub(super) thread: AtomicU32,
    /// The thread's name in the system: 15 bytes and a NUL.
    pub(super) thread_name: [AtomicU64; 2],
    /// Number of the claim among those of this file, from 1; and the number of its first record.
    pub(super) claim: AtomicU64,
    pub(super) since: AtomicU64,
    claimed_line: [AtomicU64; 3],
    /// Number of records written, which is the number of the next record.
    published: AtomicU64,
    /// Number of records not written because the ring was full.
    dropped: AtomicU64,
    writers_line: [AtomicU64; 6],
    /// Number of records taken.
    taken: AtomicU64,
    /// Number of records overwritten before they were taken.
    overwritten: AtomicU64,
    readers_line: [AtomicU64; 6],
}

impl Head {
    /// Returns the number of records written since the beginning.
    pub(super) fn written(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Returns the number of records not written because the ring was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Acquire)
    }

    /// Returns the position of the last commit: all records before it were taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Returns the number of records that readers found overwritten.
    pub(super) fn overwritten(&self) -> u64 {
        self.overwritten.load(Ordering::Acquire)
    }
}

/// Value of [`Head::state`]: the ring has no thread.
pub(super) const FREE: u32 = 0;
/// A thread writes into the ring.
pub(super) const CLAIMED: u32 = 1;
/// The thread has ended; its records are still there.
pub(super) const ENDED: u32 = 2;

/// What happens to a new record when its thread's ring buffer is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The new record overwrites the oldest one: the ring keeps the thread's latest records, with or without a reader.
    #[default]
    DropOldest,
    /// The new record is not written: the ring keeps the first records since the last reading.
    DropNewest,
}

/// A ring in memory that other processes may share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring<'a> {
    head: &'a Head,
    slots: &'a [Slot],
}

impl<'a> Ring<'a> {
    /// Creates a ring over these slots; `None` unless their number is a power of two.
    #[must_use]
    pub(super) fn new(head: &'a Head, slots: &'a [Slot]) -> Option<Ring<'a>> {
        slots.len().is_power_of_two().then_some(Ring { head, slots })
    }

    /// Returns the state that is stored before the slots.
    #[must_use]
    pub(super) const fn head(&self) -> &'a Head {
        self.head
    }

    /// Returns the number of records written and not taken yet, including overwritten ones.
    #[must_use]
    pub(super) fn untaken(&self) -> u64 {
        self.head.written().saturating_sub(self.head.taken.load(Ordering::Acquire))
    }

    #[inline]
    fn slot(&self, number: u64) -> &'a Slot {
        #[allow(clippy::cast_possible_truncation)] // only the lower bits are used
        &self.slots[(number as usize) & (self.slots.len() - 1)]
    }

    /// Reads the record with this number; `None` if it is not there yet, already overwritten, or being overwritten.
    #[must_use]
    pub(super) fn read(&self, number: u64) -> Option<Words> {
        let slot = self.slot(number);
        let whole = whole(number);
        if slot.mark.load(Ordering::Acquire) != whole {
            return None;
        }
        let mut words = [0; RECORD_WORDS];
        for (to, from) in words.iter_mut().zip(&slot.words) {
            *to = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire); // the words are read before the mark is checked again
        (slot.mark.load(Ordering::Relaxed) == whole).then_some(words)
    }

    /// Returns the numbers of the published records in the ring. The first of them may be overwritten at any moment.
    #[must_use]
    pub(super) fn present(&self) -> std::ops::Range<u64> {
        let published = self.head.written();
        published.saturating_sub(self.slots.len() as u64)..published
    }

    /// Passes the records from number `from` on to `each`, with their numbers, at most `most` of them. Returns the
    /// position of the next reading, and the number of records that were overwritten before they could be read.
    pub(super) fn read_from(&self, from: u64, most: u64, mut each: impl FnMut(u64, Words)) -> Reading {
        let present = self.present();
        // The writer's count is not trusted: at most the size of the ring is read.
        let mut lost = present.start.saturating_sub(from);
        let first = present.start.max(from);
        let next = first.saturating_add(most).min(present.end);
        for number in first..next {
            match self.read(number) {
                Some(words) => each(number, words),
                None => lost = lost.saturating_add(1), // overwritten meanwhile
            }
        }
        Reading { next, lost }
    }

    /// Commits a reading: frees the space of the records before its position. False: another reader has committed
    /// meanwhile.
    pub(super) fn commit(&self, from: u64, reading: Reading) -> bool {
        let taken = &self.head.taken;
        if taken.compare_exchange(from, reading.next, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        let overwritten = self.head.overwritten().saturating_add(reading.lost);
        self.head.overwritten.store(overwritten, Ordering::Release);
        true
    }
}

/// Result of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Number of the next record.
    pub(super) next: u64,
    /// Number of records that were already overwritten.
    pub(super) lost: u64,
}

/// The writing end of a ring. A ring has one writer, in one thread.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    ring: Ring<'a>,
    when_full: WhenFull,
    next: u64,
    /// Cached position of the reader: its cache line is read only when the ring seems full.
    taken: u64,
}

impl<'a> Writer<'a> {
    /// Continues at the ring's current position.
    #[must_use]
    pub(super) fn new(ring: Ring<'a>, when_full: WhenFull) -> Writer<'a> {
        Writer { ring, when_full, next: ring.head.written(), taken: ring.head.taken.load(Ordering::Acquire) }
    }

    /// Returns the ring.
    #[must_use]
    pub(super) const fn ring(&self) -> Ring<'a> {
        self.ring
    }

    /// Returns the number of the next record.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of records that can be written without overwriting one that was not taken yet.
    pub(super) fn room(&mut self) -> usize {
        self.taken = self.ring.head.taken.load(Ordering::Acquire);
        let untaken = self.next.wrapping_sub(self.taken);
        self.ring.slots.len().saturating_sub(usize::try_from(untaken).unwrap_or(usize::MAX))
    }

    /// Writes a record. Returns false if there was no room.
    #[inline]
    pub(super) fn push(&mut self, words: &Words) -> bool {
        if self.when_full == WhenFull::DropNewest && self.is_full() {
            let dropped = self.ring.head.dropped.load(Ordering::Relaxed);
            self.ring.head.dropped.store(dropped + 1, Ordering::Release); // this is its only writer
            return false;
        }
        let number = self.next;
        let slot = self.ring.slot(number);
        slot.mark.store(being_written(number), Ordering::Relaxed);
        fence(Ordering::Release); // a reader that sees one of the words sees the mark
        for (to, from) in slot.words.iter().zip(words) {
            to.store(*from, Ordering::Relaxed);
        }
        slot.mark.store(whole(number), Ordering::Release);
        self.next = number + 1;
        self.ring.head.published.store(self.next, Ordering::Release);
        true
    }

    #[inline]
    fn is_full(&mut self) -> bool {
        let room = self.ring.slots.len() as u64;
        if self.next.wrapping_sub(self.taken) < room {
            return false;
        }
        self.taken = self.ring.head.taken.load(Ordering::Acquire);
        self.next.wrapping_sub(self.taken) >= room
    }
}

#[inline]
const fn being_written(number: u64) -> u64 {
    number.wrapping_mul(2).wrapping_add(1)
}

#[inline]
const fn whole(number: u64) -> u64 {
    number.wrapping_mul(2).wrapping_add(2)
}

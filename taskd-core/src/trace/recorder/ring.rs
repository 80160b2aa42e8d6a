//! One thread's ring: written by that thread without ever waiting, read by others while it writes and after it died.
//!
//! It moves words and gives them no meaning; nothing in it allocates, locks, fails or waits.
//!
//! A slot is one cache line: its first word says which record stands in it and whether it is whole, as in a sequence
//! lock. The writer marks the slot as being written, writes, marks it as whole, and then counts it as published. Whoever
//! dies in between leaves a slot that nobody takes for a record.
//!
//! Who takes records out reads first, and then says how far it came: when it dies in between, the next one reads the same
//! again. One reader at a time takes; others may look.

use super::cells::{AtomicU32, AtomicU64, Ordering, RECORD_WORDS, fence};

/// A record as it lies in a slot.
pub(super) type Words = [u64; RECORD_WORDS];

/// One cache line of a ring.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// 0: never written; `2n + 1`: record `n` is being written; `2n + 2`: record `n` is whole.
    mark: AtomicU64,
    words: [AtomicU64; RECORD_WORDS],
}

/// What stands before the slots. Each cache line has one writer.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(super) struct Head {
    /// [`FREE`], [`CLAIMED`] or [`ENDED`].
    pub(super) state: AtomicU32,
    /// Thread id of the writer.
    pub(super) thread: AtomicU32,
    /// The thread's name as the system has it: 15 bytes and a NUL.
    pub(super) thread_name: [AtomicU64; 2],
    /// Which claim of a ring of this file it is, from 1; and the number of its first record.
    pub(super) claim: AtomicU64,
    pub(super) since: AtomicU64,
    claimed_line: [AtomicU64; 3],
    /// Records written, and so the number of the next one.
    published: AtomicU64,
    /// Records that found the ring full and were not written.
    dropped: AtomicU64,
    writers_line: [AtomicU64; 6],
    /// Records taken out.
    taken: AtomicU64,
    /// Records that were written over before they could be taken.
    overwritten: AtomicU64,
    readers_line: [AtomicU64; 6],
}

impl Head {
    /// Records that were written since the beginning.
    pub(super) fn written(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Records that were not written because the ring was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Acquire)
    }

    /// Where the last reader stood: what is before was taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Records that readers have found written over.
    pub(super) fn overwritten(&self) -> u64 {
        self.overwritten.load(Ordering::Acquire)
    }
}

/// Value of [`Head::state`]: no thread has it.
pub(super) const FREE: u32 = 0;
/// A thread writes into it.
pub(super) const CLAIMED: u32 = 1;
/// Its thread has ended; what it wrote is still there.
pub(super) const ENDED: u32 = 2;

/// What becomes of a record for which there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is written over the oldest one: the last records of a thread are there, whoever reads or does not.
    #[default]
    DropOldest,
    /// It is not written: the first records since the last reading are there.
    DropNewest,
}

/// A ring in memory that others may share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring<'a> {
    head: &'a Head,
    slots: &'a [Slot],
}

impl<'a> Ring<'a> {
    /// A ring over these slots; `None` unless their number is a power of two.
    #[must_use]
    pub(super) fn new(head: &'a Head, slots: &'a [Slot]) -> Option<Ring<'a>> {
        slots.len().is_power_of_two().then_some(Ring { head, slots })
    }

    /// What stands before the slots.
    #[must_use]
    pub(super) const fn head(&self) -> &'a Head {
        self.head
    }

    /// Records that were written and not taken yet, written over or not.
    #[must_use]
    pub(super) fn untaken(&self) -> u64 {
        self.head.written().saturating_sub(self.head.taken.load(Ordering::Acquire))
    }

    #[inline]
    fn slot(&self, number: u64) -> &'a Slot {
        #[allow(clippy::cast_possible_truncation)] // the lower bits are what is asked for
        &self.slots[(number as usize) & (self.slots.len() - 1)]
    }

    /// The record of a number; `None` if it is not there yet, not any more, or being written over.
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
        fence(Ordering::Acquire); // the words are read before the mark is looked at again
        (slot.mark.load(Ordering::Relaxed) == whole).then_some(words)
    }

    /// Numbers of the records that are in the ring, all published. The first ones may be written over at any moment.
    #[must_use]
    pub(super) fn present(&self) -> std::ops::Range<u64> {
        let published = self.head.written();
        published.saturating_sub(self.slots.len() as u64)..published
    }

    /// Gives every record from this number on to `each`, with its number, so many at most. What comes back says where the
    /// next reading begins, and how many records were written over before they could be read.
    pub(super) fn read_from(&self, from: u64, most: u64, mut each: impl FnMut(u64, Words)) -> Reading {
        let present = self.present();
        // What a broken writer says is no number to count up to: at most what is in the ring is looked at.
        let mut lost = present.start.saturating_sub(from);
        let first = present.start.max(from);
        let next = first.saturating_add(most).min(present.end);
        for number in first..next {
            match self.read(number) {
                Some(words) => each(number, words),
                None => lost = lost.saturating_add(1), // overtaken
            }
        }
        Reading { next, lost }
    }

    /// Says that everything before a number was taken, and gives its room free. False: another reader has been here since.
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

/// How far a reading went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The number of the record that comes next.
    pub(super) next: u64,
    /// Records that were not there any more.
    pub(super) lost: u64,
}

/// The writing end of a ring. There is one for a ring, in one thread.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    ring: Ring<'a>,
    when_full: WhenFull,
    next: u64,
    /// As last read: the reader's line is looked at when the ring seems full.
    taken: u64,
}

impl<'a> Writer<'a> {
    /// Goes on where the ring stands.
    #[must_use]
    pub(super) fn new(ring: Ring<'a>, when_full: WhenFull) -> Writer<'a> {
        Writer { ring, when_full, next: ring.head.written(), taken: ring.head.taken.load(Ordering::Acquire) }
    }

    /// The ring.
    #[must_use]
    pub(super) const fn ring(&self) -> Ring<'a> {
        self.ring
    }

    /// How many records it has seen written, itself included.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// How many records can be written without writing over one that was not taken yet.
    pub(super) fn room(&mut self) -> usize {
        self.taken = self.ring.head.taken.load(Ordering::Acquire);
        let untaken = self.next.wrapping_sub(self.taken);
        self.ring.slots.len().saturating_sub(usize::try_from(untaken).unwrap_or(usize::MAX))
    }

    /// Writes a record. False: there was no room for it.
    #[inline]
    pub(super) fn push(&mut self, words: &Words) -> bool {
        if self.when_full == WhenFull::DropNewest && self.is_full() {
            let dropped = self.ring.head.dropped.load(Ordering::Relaxed);
            self.ring.head.dropped.store(dropped + 1, Ordering::Release); // it has no other writer
            return false;
        }
        let number = self.next;
        let slot = self.ring.slot(number);
        slot.mark.store(being_written(number), Ordering::Relaxed);
        fence(Ordering::Release); // who sees one of the words sees the mark
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

//! Reading of a recorder's file, while its process writes and after it died.
//!
//! The contents are not trusted: reading ends without failure, whatever the file contains.

use super::clock::{Anchor, Clock, Timeline};
use super::config::Switches;
use super::layout::{Layout, Slots};
use super::names::NameReader;
use super::record::{Kind, NameId, Record};
use super::ring::{ENDED, FREE, Reading};
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

/// Reader of the memory file into which the recorder of a process writes.
///
/// One reader at a time takes records. It takes records, processes them, and then [commits](Self::commit): if it
/// dies before the commit, the next reader gets the same records again. Further readers may [look](Self::look) at
/// the file without taking records.
#[derive(Debug)]
pub struct RecorderReader {
    layout: Layout,
    rings: Vec<Source>,
    names: NameReader,
    unknown: u64,
}

/// One ring, and the position of this reader.
#[derive(Debug)]
struct Source {
    slots: Slots,
    /// The committed position in the file: everything before it was taken.
    committed: u64,
    reading: Reading,
}

/// A record with its position in the recorder's file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrainedRecord {
    /// Index of the record's ring buffer, from 0. Each thread writes into a ring of its own.
    pub ring: usize,
    /// Sequence number of the record in its ring, from 0. A gap in the numbers means lost records.
    pub number: u64,
    /// The record itself.
    pub record: Record,
}

/// A thread that has written trace records into a recorder's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Index of the thread's ring buffer, from 0.
    pub ring: usize,
    /// Number of the claim by which the thread got its ring buffer. All claims in the recorder's file are numbered in
    /// their order, from 1.
    pub claim: u64,
    /// Sequence number of the thread's first record in the ring; earlier records belong to the ring's previous thread.
    pub since: u64,
    /// Thread id that the operating system assigned to the thread.
    pub id: u32,
    /// Name of the thread, as the operating system shows it.
    pub name: String,
    /// True if the thread has reported its end.
    pub has_ended: bool,
    /// Number of records written to its ring, including those of previous threads.
    pub written: u64,
}

/// Counts of trace records that a recorder did not store, or that a reader did not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of records that were overwritten before they were taken, by this reader or an earlier one.
    pub overwritten: u64,
    /// Number of records that were dropped because a ring buffer was full.
    pub dropped: u64,
    /// Number of records that were lost because their thread got no ring buffer.
    pub refused: u64,
    /// Number of threads that got no ring buffer.
    pub threads: u64,
    /// Number of times that a name could not be registered because the table of names was full.
    pub names: u64,
    /// Number of records that this reader could not decode, such as those of a kind that this version does not know.
    pub unknown: u64,
}

impl Losses {
    /// Returns the total number of lost records: `overwritten`, `dropped`, `refused` and `unknown` together.
    #[must_use]
    pub const fn records(&self) -> u64 {
        let lost = self.overwritten.saturating_add(self.dropped);
        lost.saturating_add(self.refused).saturating_add(self.unknown)
    }
}

impl RecorderReader {
    /// Opens a recorder's file to take its records.
    ///
    /// # Errors
    /// Returns an error if the file is not a recorder's, or its length is not sealed. The error has kind `InvalidData`
    /// if a recorder has begun the file in a format that this program cannot read, such as another version.
    pub fn open(file: File) -> io::Result<RecorderReader> {
        RecorderReader::over(Layout::open(file, true)?)
    }

    /// Opens a recorder's file to look at it, without taking records or affecting other processes. Read access is
    /// enough.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`open`](Self::open).
    pub fn look(file: File) -> io::Result<RecorderReader> {
        RecorderReader::over(Layout::open(file, false)?)
    }

    fn over(layout: Layout) -> io::Result<RecorderReader> {
        Ok(RecorderReader { layout, rings: Vec::new(), names: NameReader::default(), unknown: 0 })
    }

    /// Returns the id of the recording process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.layout.header().pid.load(Ordering::Relaxed)
    }

    /// Returns the trace kinds that are switched on in this process.
    #[must_use]
    pub fn switches(&self) -> Switches {
        Switches::of_bits(self.layout.header().switches.load(Ordering::Acquire))
    }

    /// Sets the trace kinds that the process records from now on. Does nothing if the file was opened with
    /// [`look`](Self::look).
    pub fn switch(&self, kinds: Switches) {
        if self.layout.is_writable() {
            self.layout.header().switches.store(kinds.bits(), Ordering::Release);
        }
    }

    /// Returns the trace kinds for which the recording process has a hook (code that records the kind). The process
    /// records no other kind, even if the kind is switched on.
    #[must_use]
    pub fn hooked(&self) -> Switches {
        Switches::of_bits(self.layout.header().hooked.load(Ordering::Acquire))
    }

    /// Returns the kinds that are switched on but not recorded, with the reasons that the process reports.
    #[must_use]
    pub fn exceptions(&mut self) -> Vec<(Kind, String)> {
        let reasons = self.layout.header().exceptions.each_ref().map(|reason| reason.load(Ordering::Acquire));
        self.names.read(&self.layout); // afterwards: a reason is added to the table before it is set
        let counted = (0..).zip(reasons).filter(|(_, reason)| *reason != 0);
        counted
            .filter_map(|(kind, reason)| {
                let reason = self.name(NameId(reason)).unwrap_or("for an unknown reason");
                Some((Kind::of_number(kind)?, reason.to_owned()))
            })
            .collect()
    }

    /// Returns the conversion of the records' ticks to this machine's `CLOCK_MONOTONIC`; `None` for a file of another
    /// machine or an earlier boot. The conversion is based on the recorder's start and on the moment of this call: the
    /// longer the time between these two moments, the better the precision.
    #[must_use]
    pub fn time_line(&self) -> Option<Timeline> {
        if !self.layout.is_of_this_boot() {
            return None;
        }
        match self.layout.clock() {
            Clock::Monotonic => Timeline::through(Anchor { ticks: 0, nanos: 0 }, Anchor { ticks: 1, nanos: 1 }),
            Clock::Counter => Timeline::through(self.layout.anchor(), Clock::Counter.anchor()),
        }
    }

    /// Returns the moment at which the recorder started: in its own clock and `CLOCK_MONOTONIC`, and in nanoseconds
    /// since 1970. Setting the calendar later does not change it.
    #[must_use]
    pub fn begun(&self) -> (Anchor, u64) {
        (self.layout.anchor(), self.layout.header().unix_nanos.load(Ordering::Relaxed))
    }

    /// Returns the clock of the records' ticks.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.layout.clock()
    }

    /// Returns the name that has the number `id` in the file's table of names; `None` for 0, and for a name that was
    /// added after this reader last read records.
    #[must_use]
    pub fn name(&self, id: NameId) -> Option<&str> {
        self.names.get(id)
    }

    /// Returns the threads that have a ring, or had one that no other thread has claimed since.
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadInfo> {
        let heads = self.layout.heads().iter().enumerate();
        let claimed = heads.filter(|(_, head)| head.state.load(Ordering::Acquire) != FREE);
        claimed
            .map(|(ring, head)| {
                let words = head.thread_name.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
                let bytes: Vec<u8> = words.concat().into_iter().take_while(|byte| *byte != 0).collect();
                ThreadInfo {
                    ring,
                    claim: head.claim.load(Ordering::Acquire),
                    since: head.since.load(Ordering::Relaxed),
                    id: head.thread.load(Ordering::Relaxed),
                    name: String::from_utf8_lossy(&bytes).into_owned(),
                    has_ended: head.state.load(Ordering::Acquire) == ENDED,
                    written: head.written(),
                }
            })
            .collect()
    }

    /// Returns the counts of lost records so far, including losses that this reader has found but not committed.
    #[must_use]
    pub fn losses(&self) -> Losses {
        let header = self.layout.header();
        let sum = |of: fn(&super::ring::Head) -> u64| self.layout.heads().iter().map(of).fold(0, u64::saturating_add);
        let uncommitted = self.rings.iter().map(|source| source.reading.lost).fold(0, u64::saturating_add);
        Losses {
            overwritten: sum(super::ring::Head::overwritten).saturating_add(uncommitted),
            dropped: sum(super::ring::Head::dropped),
            refused: header.records_refused.load(Ordering::Relaxed),
            threads: header.threads_refused.load(Ordering::Relaxed),
            names: header.names_refused.load(Ordering::Relaxed),
            unknown: self.unknown,
        }
    }

    /// Calls `each` with every record since the previous call of this method: one ring buffer after the other, in order
    /// within a ring buffer.
    ///
    /// # Errors
    /// Returns an error if a ring buffer cannot be mapped. The records of the other ring buffers have then been passed
    /// to `each`.
    pub fn take(&mut self, each: impl FnMut(DrainedRecord)) -> io::Result<()> {
        self.take_some(u64::MAX, each).map(drop)
    }

    /// Does the same as [`take`](Self::take), but with at most `most_of_a_ring` records per ring buffer. Returns true
    /// if further records are waiting.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`take`](Self::take).
    pub fn take_some(&mut self, most_of_a_ring: u64, mut each: impl FnMut(DrainedRecord)) -> io::Result<bool> {
        let mapped = self.map_rings();
        let mut is_more = false;
        let RecorderReader { layout, rings, unknown, .. } = self;
        for (ring, (source, head)) in rings.iter_mut().zip(layout.heads()).enumerate() {
            let Some(words) = source.slots.ring(head) else { continue };
            let before = source.reading;
            source.reading =
                words.read_from(before.next, most_of_a_ring, |number, words| match Record::of_words(&words) {
                    Some(record) => each(DrainedRecord { ring, number, record }),
                    None => *unknown = unknown.saturating_add(1),
                });
            is_more |= source.reading.next < head.written();
            source.reading.lost = source.reading.lost.saturating_add(before.lost);
        }
        self.names.read(&self.layout); // afterwards: a name is added to the table before it is used
        mapped.map(|()| is_more)
    }

    /// Commits the records read so far: their space is freed, and no later reader gets them.
    ///
    /// # Errors
    /// Returns an error if another reader has taken records meanwhile. Only one reader at a time may take records, so
    /// this reader should then end.
    pub fn commit(&mut self) -> io::Result<()> {
        if !self.layout.is_writable() {
            return Err(io::Error::other("a read-only reader cannot take records out of a recorder's file"));
        }
        for (source, head) in self.rings.iter_mut().zip(self.layout.heads()) {
            let Some(ring) = source.slots.ring(head) else { continue };
            if !ring.commit(source.committed, source.reading) {
                return Err(io::Error::other("another reader has taken records of this file: only one reader may"));
            }
            source.committed = source.reading.next;
            source.reading.lost = 0;
        }
        Ok(())
    }

    fn map_rings(&mut self) -> io::Result<()> {
        while let Some(head) = self.layout.heads().get(self.rings.len()) {
            if head.state.load(Ordering::Acquire) == FREE {
                break; // rings are claimed in order
            }
            let slots = self.layout.slots_of(self.rings.len())?;
            let committed = head.taken();
            self.rings.push(Source { slots, committed, reading: Reading { next: committed, lost: 0 } });
        }
        Ok(())
    }
}

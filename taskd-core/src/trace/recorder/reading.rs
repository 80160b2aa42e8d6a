//! Reading a recorder's file, while its process writes and after it died.
//!
//! It trusts nothing that it reads: whatever stands in the file, reading ends and does not fail.

use super::clock::{Anchor, Clock, TimeLine};
use super::config::Switches;
use super::layout::{Layout, Slots};
use super::names::NameReader;
use super::record::{Kind, NameId, Record};
use super::ring::{ENDED, FREE, Reading};
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

/// A recorder's file, to read.
///
/// One reader at a time takes records out. It takes, does with them what it has to, and then [commits](Self::commit): if it
/// dies before, the next reader gets the same records again. Others may [look](Self::look).
#[derive(Debug)]
pub struct Recording {
    layout: Layout,
    rings: Vec<Source>,
    names: NameReader,
    unknown: u64,
}

/// One ring, and how far it was read.
#[derive(Debug)]
struct Source {
    slots: Slots,
    /// What the file says: everything before was taken.
    committed: u64,
    reading: Reading,
}

/// A record with its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// The ring, from 0, in which it was.
    pub ring: usize,
    /// Its number in that ring, from 0: where one is left out, it was lost.
    pub number: u64,
    /// What was recorded.
    pub record: Record,
}

/// A thread that has recorded something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadInfo {
    /// Its ring, from 0.
    pub ring: usize,
    /// Which thread of the file it is to have had a ring, from 1.
    pub claim: u64,
    /// The number of its first record in the ring: what is before is another's, which had the ring before.
    pub since: u64,
    /// Its thread id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Whether it has said that it ends.
    pub has_ended: bool,
    /// Records that its ring has got, those of threads before included.
    pub written: u64,
}

/// What was not recorded, or not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records that were written over before they were taken, by this reader and those before it.
    pub overwritten: u64,
    /// Records that found a ring full.
    pub dropped: u64,
    /// Records of threads for which there was no ring.
    pub refused: u64,
    /// Threads for which there was no ring.
    pub threads: u64,
    /// Times that a name found no room.
    pub names: u64,
    /// Records of a kind that this version does not know, which this reader has met.
    pub unknown: u64,
}

impl Losses {
    /// Records that are missing.
    #[must_use]
    pub const fn records(&self) -> u64 {
        let lost = self.overwritten.saturating_add(self.dropped);
        lost.saturating_add(self.refused).saturating_add(self.unknown)
    }
}

impl Recording {
    /// Opens a file to take records out of it.
    ///
    /// # Errors
    /// When it is none of a recorder, or its length is not sealed; with the kind `InvalidData`, when a recorder has begun it
    /// that this program does not read, such as one of another version.
    pub fn open(file: File) -> io::Result<Recording> {
        Recording::over(Layout::open(file, true)?)
    }

    /// Opens a file to look at it: nothing is taken, and nobody is disturbed. A file that can only be read will do.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn look(file: File) -> io::Result<Recording> {
        Recording::over(Layout::open(file, false)?)
    }

    fn over(layout: Layout) -> io::Result<Recording> {
        Ok(Recording { layout, rings: Vec::new(), names: NameReader::default(), unknown: 0 })
    }

    /// The process that records.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.layout.header().pid.load(Ordering::Relaxed)
    }

    /// What is recorded.
    #[must_use]
    pub fn switches(&self) -> Switches {
        Switches::of_bits(self.layout.header().switches.load(Ordering::Acquire))
    }

    /// Chooses what is recorded from now on. Not for who only looks.
    pub fn switch(&self, kinds: Switches) {
        if self.layout.is_writable() {
            self.layout.header().switches.store(kinds.bits(), Ordering::Release);
        }
    }

    /// The kinds for which the process has a hook; it records no other, whatever is on.
    #[must_use]
    pub fn hooked(&self) -> Switches {
        Switches::of_bits(self.layout.header().hooked.load(Ordering::Acquire))
    }

    /// The kinds that are not recorded though they are on, each with the reason.
    #[must_use]
    pub fn exceptions(&mut self) -> Vec<(Kind, String)> {
        let reasons = self.layout.header().exceptions.each_ref().map(|reason| reason.load(Ordering::Acquire));
        self.names.read(&self.layout); // afterwards: a reason stands in the table before it is told
        let told = (0..).zip(reasons).filter(|(_, reason)| *reason != 0);
        told.filter_map(|(kind, reason)| {
            let reason = self.name(NameId(reason)).unwrap_or("for a reason that could not be named");
            Some((Kind::of_number(kind)?, reason.to_owned()))
        })
        .collect()
    }

    /// Turns ticks of the records into `CLOCK_MONOTONIC`, as it is on this machine since it was started: a file of another
    /// machine, or of before, has none. To be asked some time after the recorder's start: a line through two moments is the
    /// better the further they are apart.
    #[must_use]
    pub fn time_line(&self) -> Option<TimeLine> {
        if !self.layout.is_of_this_boot() {
            return None;
        }
        match self.layout.clock() {
            Clock::Monotonic => TimeLine::through(Anchor { ticks: 0, nanos: 0 }, Anchor { ticks: 1, nanos: 1 }),
            Clock::Counter => TimeLine::through(self.layout.anchor(), Clock::Counter.anchor()),
        }
    }

    /// When the recorder was begun: by its own clock and `CLOCK_MONOTONIC`, and in nanoseconds since 1970. The calendar may be
    /// set afterwards; this stays.
    #[must_use]
    pub fn begun(&self) -> (Anchor, u64) {
        (self.layout.anchor(), self.layout.header().unix_nanos.load(Ordering::Relaxed))
    }

    /// The clock whose ticks records carry.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.layout.clock()
    }

    /// The name of a number; `None` for 0, and for one that was not there when records were last read.
    #[must_use]
    pub fn name(&self, id: NameId) -> Option<&str> {
        self.names.get(id)
    }

    /// The threads that have a ring, or had one that nobody has got since.
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

    /// What is missing so far, what was read and not committed yet included.
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

    /// Gives everything that was recorded since the last time to `each`, ring by ring, each in its order.
    ///
    /// # Errors
    /// When a ring cannot be mapped: those that are were read.
    pub fn take(&mut self, each: impl FnMut(Taken)) -> io::Result<()> {
        self.take_some(u64::MAX, each).map(drop)
    }

    /// The same with so many records of each ring at most. True: there are more.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn take_some(&mut self, most_of_a_ring: u64, mut each: impl FnMut(Taken)) -> io::Result<bool> {
        let mapped = self.map_rings();
        let mut is_more = false;
        let Recording { layout, rings, unknown, .. } = self;
        for (ring, (source, head)) in rings.iter_mut().zip(layout.heads()).enumerate() {
            let Some(words) = source.slots.ring(head) else { continue };
            let before = source.reading;
            source.reading =
                words.read_from(before.next, most_of_a_ring, |number, words| match Record::of_words(&words) {
                    Some(record) => each(Taken { ring, number, record }),
                    None => *unknown = unknown.saturating_add(1),
                });
            is_more |= source.reading.next < head.written();
            source.reading.lost = source.reading.lost.saturating_add(before.lost);
        }
        self.names.read(&self.layout); // afterwards: a name stands in the table before it is used
        mapped.map(|()| is_more)
    }

    /// Says that what was read is taken: its room is free, and no later reader gets it.
    ///
    /// # Errors
    /// When another reader has taken records meanwhile, which only one at a time may: this one should end.
    pub fn commit(&mut self) -> io::Result<()> {
        if !self.layout.is_writable() {
            return Err(io::Error::other("who only looks at a recorder's file takes nothing out of it"));
        }
        for (source, head) in self.rings.iter_mut().zip(self.layout.heads()) {
            let Some(ring) = source.slots.ring(head) else { continue };
            if !ring.commit(source.committed, source.reading) {
                return Err(io::Error::other("another reader takes these records as well: only one may"));
            }
            source.committed = source.reading.next;
            source.reading.lost = 0;
        }
        Ok(())
    }

    fn map_rings(&mut self) -> io::Result<()> {
        while let Some(head) = self.layout.heads().get(self.rings.len()) {
            if head.state.load(Ordering::Acquire) == FREE {
                break; // rings are given out in their order
            }
            let slots = self.layout.slots_of(self.rings.len())?;
            let committed = head.taken();
            self.rings.push(Source { slots, committed, reading: Reading { next: committed, lost: 0 } });
        }
        Ok(())
    }
}

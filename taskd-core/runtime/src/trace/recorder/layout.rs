//! Layout of a recorder's file, and the file mapped in memory.
//!
//! This module maps memory and returns references to atomics in it; it writes only the header of a new file. Sizes are
//! read from a file once, and checked before use: the writing process may change them afterwards.
//!
//! # Layout, version 1 (native endianness)
//! | offset | contents |
//! |---|---|
//! | 0 | the lifeline page, 4,096 bytes, if a launcher prepared one |
//! | 4,096 | [`Header`] |
//! | 8,192 | 64 [`Head`]s of rings, 192 bytes each |
//! | 20,480 | names: one byte of length, then the name in UTF-8; the first has number 1 |
//! | 262,144 | the slots, ring after ring, 64 bytes each |
//!
//! Every access is one atomic word, so a writer that dies at any point leaves no half-written word.

use super::clock::{self, Anchor, Clock};
use super::record::KINDS_MAX;
use super::ring::{Head, Ring, Slot, WhenFull};
use super::sys::{self, Mapping};
use std::fs::{File, Metadata};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Maximum number of rings in a file: threads that record at one time.
pub(super) const RINGS_MAX: usize = 64;
/// Maximum number of slots in a ring: 64 MiB.
pub(super) const SLOTS_MAX: usize = 1 << 20;
/// Minimum number of slots in a ring: its size in bytes is then a multiple of every page size.
pub(super) const SLOTS_MIN: usize = 1 << 10;

const HEADER_AT: usize = 4096;
const HEADS_AT: usize = 8192;
const NAMES_AT: usize = HEADS_AT + RINGS_MAX * size_of::<Head>();
/// Offset of the first ring: a page boundary for every page size.
const RINGS_AT: usize = 1 << 18;
const MAGIC: u64 = u64::from_ne_bytes(*b"TASKDTR1");
const VERSION: u32 = 1;
/// Value in [`Header::exceptions`]: there is a reason, but the table of names had no room for it.
pub(super) const UNNAMED: u32 = u32::MAX;

/// The header of a recorder's file.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    /// `TASKDTR1`, written last.
    magic: AtomicU64,
    version: AtomicU32,
    /// Slots per ring.
    slots: AtomicU32,
    /// Number of rings in the file.
    rings: AtomicU32,
    /// Process id of the recording process.
    pub(super) pid: AtomicU32,
    clock: AtomicU32,
    /// 0: the oldest records are dropped when a ring is full; 1: the newest.
    when_full: AtomicU32,
    /// The start in the recorder's clock, and in `CLOCK_MONOTONIC`: see [`Anchor`].
    anchor_ticks: AtomicU64,
    anchor_nanos: AtomicU64,
    /// The start in nanoseconds since 1970.
    pub(super) unix_nanos: AtomicU64,
    /// One bit per kind that is recorded.
    pub(super) switches: AtomicU64,
    /// Number of readable names.
    pub(super) names: AtomicU32,
    /// Bytes that the names occupy.
    pub(super) names_bytes: AtomicU32,
    /// Number of times that a name did not fit.
    pub(super) names_refused: AtomicU64,
    /// Number of threads that got no ring.
    pub(super) threads_refused: AtomicU64,
    /// Number of records of such threads.
    pub(super) records_refused: AtomicU64,
    /// Number of claims of a ring so far; a ring can be claimed by several threads in turn.
    pub(super) claims: AtomicU64,
    /// Boot id of the system at the start.
    boot: [AtomicU64; 2],
    /// One bit per kind for which this process has a hook.
    pub(super) hooked: AtomicU64,
    /// Per kind, the name of the reason why it is not recorded although it is on; 0 for none.
    pub(super) exceptions: [AtomicU32; KINDS_MAX],
    /// Identifies the recording program of the process, which changes with an exec. See [`sys::image`].
    image: AtomicU64,
}

const _: () = {
    assert!(size_of::<Slot>() == 64 && size_of::<Head>() == 192 && NAMES_AT == 20_480);
    assert!(offset_of!(Header, pid) == 20 && offset_of!(Header, unix_nanos) == 48);
    assert!(offset_of!(Header, switches) == 56 && offset_of!(Header, records_refused) == 88);
    assert!(offset_of!(Header, boot) == 104);
    assert!(offset_of!(Header, hooked) == 120 && offset_of!(Header, exceptions) == 128);
    assert!(HEADER_AT + size_of::<Header>() <= HEADS_AT);
    assert!(RINGS_AT.is_multiple_of(SLOTS_MIN * size_of::<Slot>()));
};

/// Parameters of a new file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) rings: usize,
    pub(super) slots: usize,
    pub(super) drops_newest: bool,
    pub(super) switches: u64,
}

/// A recorder's file mapped in memory, except for the slots, which are mapped ring by ring.
#[derive(Debug)]
pub(super) struct Layout {
    file: File,
    /// Device and inode of the file, since a program may close descriptors that it does not own.
    identity: (u64, u64),
    /// True in the writer of records: memory for the slots is reserved before it is used.
    reserves: bool,
    writable: bool,
    base: Mapping,
    rings: usize,
    slots: usize,
    clock: Clock,
    anchor: Anchor,
}

impl Layout {
    /// Returns the length in bytes of a file with this many rings and slots per ring.
    pub(super) const fn bytes(rings: usize, slots: usize) -> usize {
        RINGS_AT + rings * slots * size_of::<Slot>()
    }

    /// Writes the header of a new file, which is at least [`bytes`](Self::bytes) long and zero apart from a lifeline
    /// page. Reserves the memory of everything but the slots.
    pub(super) fn create(file: File, plan: Plan) -> io::Result<Layout> {
        let Plan { rings, slots, .. } = plan;
        if !is_possible(rings, slots) {
            return Err(io::Error::other(format!(
                "a recorder cannot have {rings} rings of {slots} slots: use 1 to {RINGS_MAX} rings, and a power of two \
                 from {SLOTS_MIN} to {SLOTS_MAX} slots"
            )));
        }
        let metadata = file.metadata()?;
        let (length, needed) = (metadata.len(), Layout::bytes(rings, slots));
        if length < needed as u64 {
            return Err(io::Error::other(format!(
                "{length} bytes are too few for {rings} rings of {slots} slots: use {needed} bytes"
            )));
        }
        must_stay_long(&file)?;
        sys::reserve(&file, 0, RINGS_AT)?;
        let (base, clock) = (Mapping::new(&file, 0, RINGS_AT, true)?, Clock::best());
        let (identity, anchor) = (identity(&metadata), clock.anchor());
        let layout = Layout { file, identity, reserves: true, writable: true, base, rings, slots, clock, anchor };
        layout.write_header(plan)?;
        Ok(layout)
    }

    fn write_header(&self, plan: Plan) -> io::Result<()> {
        let header = self.header();
        if header.magic.load(Ordering::Acquire) == MAGIC {
            return Err(in_use(header.pid.load(Ordering::Relaxed)));
        }
        let word = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let boot = clock::boot();
        header.version.store(VERSION, Ordering::Relaxed);
        header.slots.store(word(plan.slots), Ordering::Relaxed);
        header.rings.store(word(plan.rings), Ordering::Relaxed);
        header.pid.store(std::process::id(), Ordering::Relaxed);
        header.clock.store(self.clock as u32, Ordering::Relaxed);
        header.when_full.store(plan.drops_newest.into(), Ordering::Relaxed);
        header.anchor_ticks.store(self.anchor.ticks, Ordering::Relaxed);
        header.anchor_nanos.store(self.anchor.nanos, Ordering::Relaxed);
        header.unix_nanos.store(sys::unix_nanos(), Ordering::Relaxed);
        header.switches.store(plan.switches, Ordering::Relaxed);
        header.image.store(sys::image(), Ordering::Relaxed);
        header.boot.iter().zip(halves(boot)).for_each(|(to, half)| to.store(half, Ordering::Relaxed));
        header.magic.store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// Takes over a file that this process recorded into before an exec, or that a process which has ended since
    /// recorded into. `None`: no process has recorded into it. Its layout and its switches stay.
    pub(super) fn adopt(file: File) -> io::Result<Option<Layout>> {
        if file.metadata()?.len() < RINGS_AT as u64 {
            return Ok(None);
        }
        must_stay_long(&file)?;
        let base = Mapping::new(&file, 0, RINGS_AT, false)?;
        if header_of(&base).magic.load(Ordering::Acquire) != MAGIC {
            return Ok(None);
        }
        let mut layout = Layout::open(file, true)?;
        layout.reserves = true;
        let header = layout.header();
        let pid = header.pid.load(Ordering::Relaxed);
        if pid != std::process::id() && lives(pid) {
            return Err(in_use(pid)); // the lifeline page no longer names it, but it is still running
        }
        let is_same_image = header.image.swap(sys::image(), Ordering::AcqRel) == sys::image();
        if pid == std::process::id() && is_same_image {
            return Err(in_use(pid));
        }
        header.pid.store(std::process::id(), Ordering::Relaxed);
        if layout.clock != Clock::best() {
            return Err(io::Error::other("the earlier program recorded with another clock"));
        }
        header.hooked.store(0, Ordering::Relaxed);
        header.exceptions.iter().for_each(|reason| reason.store(0, Ordering::Relaxed));
        Ok(Some(layout))
    }

    /// Opens a file that another process writes. A reader that takes records needs write access: its position is in the
    /// rings.
    pub(super) fn open(file: File, writable: bool) -> io::Result<Layout> {
        let metadata = file.metadata()?;
        let length = metadata.len();
        if length < RINGS_AT as u64 {
            return Err(io::Error::other(format!(
                "not a recorder's file: it has {length} bytes, and needs at least {RINGS_AT}"
            )));
        }
        must_stay_long(&file)?;
        let base = Mapping::new(&file, 0, RINGS_AT, writable)?;
        let (identity, clock, anchor) = (identity(&metadata), Clock::Monotonic, Anchor { ticks: 0, nanos: 0 });
        let mut layout = Layout { file, identity, reserves: false, writable, base, rings: 0, slots: 0, clock, anchor };
        layout.read_header(length)?;
        Ok(layout)
    }

    fn read_header(&mut self, length: u64) -> io::Result<()> {
        let header = self.header();
        let (magic, version) = (header.magic.load(Ordering::Acquire), header.version.load(Ordering::Relaxed));
        let [rings, slots] = [&header.rings, &header.slots].map(|word| word.load(Ordering::Relaxed) as usize);
        let clock = Clock::of_number(header.clock.load(Ordering::Relaxed));
        let anchor = Anchor {
            ticks: header.anchor_ticks.load(Ordering::Relaxed),
            nanos: header.anchor_nanos.load(Ordering::Relaxed),
        };
        let is_whole = is_possible(rings, slots) && Layout::bytes(rings, slots) as u64 <= length;
        let is_begun = magic == MAGIC;
        let problem = match (magic, version, clock) {
            (MAGIC, VERSION, Some(clock)) if is_whole => {
                (self.rings, self.slots, self.clock, self.anchor) = (rings, slots, clock, anchor);
                return Ok(());
            }
            (MAGIC, VERSION, _) => "not a recorder's file: its header is invalid".to_owned(),
            (MAGIC, ..) => format!("a recorder's file of version {version}, and this program reads version {VERSION}"),
            _ => "not a recorder's file, or not initialized yet".to_owned(),
        };
        Err(io::Error::new(if is_begun { io::ErrorKind::InvalidData } else { io::ErrorKind::NotFound }, problem))
    }

    #[inline]
    pub(super) fn header(&self) -> &Header {
        header_of(&self.base)
    }

    /// Returns what happens to a record when the ring is full.
    pub(super) fn when_full(&self) -> WhenFull {
        match self.header().when_full.load(Ordering::Relaxed) {
            0 => WhenFull::DropOldest,
            _ => WhenFull::DropNewest,
        }
    }

    /// Returns the heads of the file's rings.
    pub(super) fn heads(&self) -> &[Head] {
        // SAFETY: as for `header`; HEADS_AT is a multiple of 64, there are at most RINGS_MAX rings, and that many heads
        // end where the names begin.
        unsafe { std::slice::from_raw_parts(self.base.start().add(HEADS_AT).cast(), self.rings) }
    }

    pub(super) fn names(&self) -> &[AtomicU8] {
        // SAFETY: as for `header`; the names extend to the end of the mapping.
        unsafe { std::slice::from_raw_parts(self.base.start().add(NAMES_AT).cast(), self.base.len() - NAMES_AT) }
    }

    pub(super) const fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) const fn clock(&self) -> Clock {
        self.clock
    }

    pub(super) const fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// Returns true if the file was begun on this machine since its last boot.
    pub(super) fn is_of_this_boot(&self) -> bool {
        let reported = self.header().boot.each_ref().map(|half| half.load(Ordering::Relaxed));
        reported != [0, 0] && reported == halves(clock::boot())
    }

    /// Maps the slots of a ring.
    pub(super) fn slots_of(&self, ring: usize) -> io::Result<Slots> {
        let bytes = self.slots * size_of::<Slot>();
        let from = RINGS_AT + ring * bytes;
        if identity(&self.file.metadata()?) != self.identity {
            return Err(io::Error::other("the recorder's file was replaced by another file"));
        }
        if self.reserves {
            sys::reserve(&self.file, from, bytes)?;
        }
        Ok(Slots(Mapping::new(&self.file, from, bytes, self.writable)?))
    }
}

/// The slots of one ring in memory.
#[derive(Debug)]
pub(super) struct Slots(Mapping);

impl Slots {
    pub(super) fn ring<'a>(&'a self, head: &'a Head) -> Option<Ring<'a>> {
        let count = self.0.len() / size_of::<Slot>();
        // SAFETY: the mapping is page-aligned and has the length of `count` slots; a slot consists of atomics.
        Ring::new(head, unsafe { std::slice::from_raw_parts(self.0.start().cast(), count) })
    }
}

#[inline]
fn header_of(base: &Mapping) -> &Header {
    debug_assert!(base.len() >= RINGS_AT);
    // SAFETY: such a mapping is at least RINGS_AT long and page-aligned, so a `Header` fits at HEADER_AT and is
    // aligned; all its fields are atomics, for which every bit pattern is valid.
    unsafe { &*base.start().add(HEADER_AT).cast::<Header>() }
}

/// Returns true if a process with this pid exists and has not ended.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = String::from_utf8_lossy(&stat).rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X' | 'x'))
}

fn in_use(pid: u32) -> io::Error {
    io::Error::other(format!("process {pid} records into it already: use a file of its own"))
}

fn is_possible(rings: usize, slots: usize) -> bool {
    (1..=RINGS_MAX).contains(&rings) && (SLOTS_MIN..=SLOTS_MAX).contains(&slots) && slots.is_power_of_two()
}

fn must_stay_long(file: &File) -> io::Result<()> {
    match sys::cannot_shrink(file) {
        true => Ok(()),
        false => Err(io::Error::other(
            "its length is not sealed: truncating it would end all processes that use it; use a sealed memfd",
        )),
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn halves(long: u128) -> [u64; 2] {
    #[allow(clippy::cast_possible_truncation)] // the lower half
    [(long >> 64) as u64, long as u64]
}

//! The recorder of a process: what its threads do goes into rings, one for each.
//!
//! It never fails the program and never makes it wait: what it cannot have it goes without, and counts. It is off in every
//! process that is forked from the one that has opened it.

use super::clock::Clock;
use super::config::{RecorderConfig, Switches, bit};
use super::layout::{Layout, Plan, Slots, UNNAMED};
use super::names::Names;
use super::record::{By, Detail, Event, Kind, NameId, Range, Record};
use super::ring::{CLAIMED, ENDED, FREE, Ring, WhenFull, Writer};
use super::sys::{self, Mapping};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What records the threads of this process.
///
/// Threads share it by reference, each through a [`ThreadRecorder`] of its own.
#[derive(Debug)]
pub struct Recorder {
    pub(super) layout: Layout,
    clock: Clock,
    when_full: WhenFull,
    gate: Gate,
    names: Names,
    /// Held while a thread gets a ring.
    claims: Mutex<()>,
    rings: Box<[OnceLock<Slots>]>,
}

impl Recorder {
    /// Begins to record into a file that is zero, as long as [`RecorderConfig::bytes`] says, and sealed against becoming
    /// shorter. [`RecorderConfig::memory`] makes such a one.
    ///
    /// # Errors
    /// When the file is none of these, a process records into it already, there is no memory for it, or the configuration
    /// cannot be.
    pub fn create(file: File, config: RecorderConfig) -> io::Result<Recorder> {
        let plan = Plan {
            rings: config.threads_max,
            slots: config.records_per_thread,
            drops_newest: config.when_full == WhenFull::DropNewest,
            switches: config.kinds.bits(),
        };
        Recorder::over(Layout::create(file, plan)?)
    }

    /// Begins, or goes on after an exec: threads of the program before have ended without a word.
    pub(super) fn over(layout: Layout) -> io::Result<Recorder> {
        let gate = Gate::open()?;
        let rings: Box<[OnceLock<Slots>]> = layout.heads().iter().map(|_| OnceLock::new()).collect();
        for (number, (ring, head)) in rings.iter().zip(layout.heads()).enumerate() {
            if head.state.load(Ordering::Acquire) != FREE {
                head.state.store(ENDED, Ordering::Release);
                let _ = ring.set(layout.slots_of(number)?);
            }
        }
        let (names, clock, when_full) = (Names::of(&layout), layout.clock(), layout.when_full());
        Ok(Recorder { layout, clock, when_full, gate, names, claims: Mutex::default(), rings })
    }

    /// False in a process that was forked from the one that has opened it: there it is off.
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.gate.mask() != 0
    }

    /// The word that says what is recorded: the [number](Kind::number) of each kind is a bit's. Others change it at any
    /// time.
    #[must_use]
    pub fn switches(&self) -> &AtomicU64 {
        &self.layout.header().switches
    }

    /// Counts a record that its thread could not make.
    pub fn count_refused(&self) {
        self.layout.header().records_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The clock whose ticks records carry.
    #[inline]
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Whether a kind is recorded at this moment.
    #[inline]
    #[must_use]
    pub fn is_on(&self, kind: Kind) -> bool {
        self.layout.header().switches.load(Ordering::Relaxed) & self.gate.mask() & bit(kind) != 0
    }

    /// Chooses what is recorded from now on.
    pub fn switch(&self, kinds: Switches) {
        if self.gate.mask() != 0 {
            self.layout.header().switches.store(kinds.bits(), Ordering::Release);
        }
    }

    /// Says that this process has a hook for a kind: one without is never recorded, on or off.
    pub fn hooked(&self, kind: Kind) {
        if self.gate.mask() != 0 {
            self.layout.header().hooked.fetch_or(bit(kind), Ordering::Release);
        }
    }

    /// Says what keeps a kind from being recorded though it is on, such as `another profiler is active`, or that nothing
    /// does any more. Takes a lock; to be told when it changes.
    pub fn except(&self, kind: Kind, reason: Option<&str>) {
        if self.gate.mask() == 0 {
            return;
        }
        let name = match reason.map(|reason| self.name(reason)) {
            None => 0,
            Some(NameId(0)) => UNNAMED,
            Some(NameId(name)) => name,
        };
        if let Some(exception) = self.layout.header().exceptions.get(usize::from(kind.number())) {
            exception.store(name, Ordering::Release);
        }
    }

    /// The number of a name; the same name has the same number. 0, which is no name, where there is no room for another.
    /// To be called once for each name: it takes a lock.
    #[must_use]
    pub fn name(&self, name: &str) -> NameId {
        if self.gate.mask() == 0 {
            return NameId(0); // a forked process would write over the table
        }
        self.names.intern(&self.layout, name).unwrap_or_default()
    }

    /// A ring for the thread that calls. Where there is none to be had, its records are counted and dropped, and a ring is
    /// looked for again now and then.
    #[must_use]
    pub fn thread(&self) -> ThreadRecorder<'_> {
        let (switches, gate) = (&self.layout.header().switches, self.gate.word());
        let mut thread =
            ThreadRecorder { recorder: self, switches, gate, writer: None, claim: 0, ranges: 0, refused: 0 };
        if self.gate.mask() != 0 && !thread.claim() {
            self.layout.header().threads_refused.fetch_add(1, Ordering::Relaxed);
        }
        thread
    }

    /// A ring that nobody had yet; else one whose thread has ended, and whose records were taken, or may be written over.
    fn claim(&self) -> Option<Writer<'_>> {
        let _one_at_a_time = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = |ring: &Ring<'_>| ring.head().state.load(Ordering::Acquire) == ENDED;
        let rings = || self.rings.iter().zip(self.layout.heads()).filter_map(|(slots, head)| slots.get()?.ring(head));
        let read = rings().find(|ring| ended(ring) && ring.untaken() == 0);
        let unread = || {
            let ended = rings().filter(|ring| self.when_full == WhenFull::DropOldest && ended(ring));
            ended.min_by_key(|ring| ring.head().claim.load(Ordering::Relaxed))
        };
        let ring = read.or_else(|| self.map_another()).or_else(unread)?;
        let head = ring.head();
        let state = head.state.load(Ordering::Acquire);
        // Another recorder of this process, built into another library, may have the same file.
        head.state.compare_exchange(state, CLAIMED, Ordering::AcqRel, Ordering::Acquire).ok()?;
        let writer = Writer::new(ring, self.when_full);
        let claim = self.layout.header().claims.fetch_add(1, Ordering::Relaxed) + 1;
        head.since.store(writer.next(), Ordering::Relaxed);
        head.thread.store(sys::thread_id(), Ordering::Relaxed);
        for (to, from) in head.thread_name.iter().zip(own_name()) {
            to.store(from, Ordering::Relaxed);
        }
        head.claim.store(claim, Ordering::Release);
        Some(writer)
    }

    /// The first ring that is not mapped yet.
    fn map_another(&self) -> Option<Ring<'_>> {
        let number = self.rings.iter().position(|slots| slots.get().is_none())?;
        let mapped = self.layout.slots_of(number).ok()?;
        let ring = self.rings.get(number)?.get_or_init(|| mapped).ring(self.layout.heads().get(number)?)?;
        (ring.head().state.load(Ordering::Acquire) == FREE).then_some(ring)
    }
}

/// What one thread records with. When it is dropped its ring is free for another thread, once everything was taken.
#[derive(Debug)]
pub struct ThreadRecorder<'a> {
    pub(super) recorder: &'a Recorder,
    /// The recorder's, at hand.
    switches: &'a AtomicU64,
    gate: &'a AtomicU64,
    pub(super) writer: Option<Writer<'a>>,
    /// Which claim of a ring of the file its own is, and how many ranges have begun under it.
    claim: u64,
    ranges: u64,
    /// Records, or batches of imported ones, for which there was no ring.
    refused: u64,
}

impl ThreadRecorder<'_> {
    /// Looks for a ring.
    fn claim(&mut self) -> bool {
        self.writer = self.recorder.claim();
        self.claim = self.writer.as_ref().map_or(0, |writer| writer.ring().head().claim.load(Ordering::Relaxed));
        self.writer.is_some()
    }

    /// Counts a record for which there is no ring, and looks for one now and then.
    #[cold]
    fn refuse(&mut self) -> bool {
        self.recorder.count_refused();
        self.look_again();
        false
    }

    /// Looks for a ring after the first, second, fourth and so on call in vain.
    #[cold]
    pub(super) fn look_again(&mut self) {
        self.refused += 1;
        if self.refused.is_power_of_two() {
            self.claim();
        }
    }

    /// The recorder that it is of.
    #[must_use]
    pub const fn recorder(&self) -> &Recorder {
        self.recorder
    }

    /// Whether a kind is recorded at this moment.
    #[inline]
    #[must_use]
    pub fn is_on(&self, kind: Kind) -> bool {
        self.switches.load(Ordering::Relaxed) & self.gate.load(Ordering::Relaxed) & bit(kind) != 0
    }

    /// Records one thing that happens now, if its kind is on. False: it is off, or there was no room.
    #[inline]
    pub fn record(&mut self, kind: Kind, event: Event, name: NameId, detail: Detail) -> bool {
        self.is_on(kind) && self.push(kind, event, name, detail)
    }

    // Where it is called all but name and range are known: what is left of the record's layout is a few stores.
    #[inline(always)]
    fn push(&mut self, kind: Kind, event: Event, name: NameId, detail: Detail) -> bool {
        let Some(writer) = &mut self.writer else { return self.refuse() };
        writer
            .push(&Record { ticks: self.recorder.clock.ticks(), by: By::Itself, kind, event, name, detail }.to_words())
    }

    /// Begins a range; `None` if its kind is off, or its beginning was not written. What is returned ends it, on this thread
    /// or on another, and also when its kind was switched off meanwhile.
    #[inline]
    pub fn begin(&mut self, kind: Kind, name: NameId, detail: Detail) -> Option<Range> {
        if !self.is_on(kind) {
            return None;
        }
        self.ranges = self.ranges.wrapping_add(1);
        let range = Range::new(kind, self.claim, self.ranges);
        self.push(kind, Event::Begin { range: range.number() }, name, detail).then_some(range)
    }

    /// Begins a training step; its time on the CPU is taken, which costs a system call. `None` if steps are off.
    pub fn begin_step(&mut self, number: u64) -> Option<StepRange> {
        let range = self.begin(Kind::Step, NameId(0), Detail::Step { number, cpu_nanos: 0 })?;
        Some(StepRange { range, number, cpu_nanos: sys::thread_cpu_nanos() })
    }

    /// Ends a training step, on the thread that has begun it.
    pub fn end_step(&mut self, step: StepRange) {
        let StepRange { range, number, cpu_nanos } = step;
        let cpu_nanos = sys::thread_cpu_nanos().saturating_sub(cpu_nanos);
        self.push_end(range, Detail::Step { number, cpu_nanos });
    }

    /// Ends a range, of this thread or of another. Its name and detail are those of its beginning.
    #[inline]
    pub fn end(&mut self, range: Range) {
        self.push_end(range, Detail::None);
    }

    #[inline(always)] // as `push`
    fn push_end(&mut self, range: Range, detail: Detail) {
        if self.gate.load(Ordering::Relaxed) != 0 {
            self.push(range.kind(), Event::End { range: range.number() }, NameId(0), detail);
        }
    }
}

impl Drop for ThreadRecorder<'_> {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.as_ref().filter(|_| self.recorder.gate.mask() != 0) {
            writer.ring().head().state.store(ENDED, Ordering::Release);
        }
    }
}

/// A training step that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a step that is never ended has no length"]
pub struct StepRange {
    range: Range,
    number: u64,
    /// Of its thread when it began.
    cpu_nanos: u64,
}

impl StepRange {
    /// Its range.
    pub const fn range(self) -> Range {
        self.range
    }
}

/// A word that is all ones in the process that has opened it, and zero in those that are forked from it.
#[derive(Debug)]
struct Gate(Mapping);

impl Gate {
    fn open() -> io::Result<Gate> {
        let gate = Gate(Mapping::wiped_on_fork(1 << 16)?); // a page, however large pages are
        gate.word().store(u64::MAX, Ordering::Relaxed);
        Ok(gate)
    }

    #[inline]
    fn mask(&self) -> u64 {
        self.word().load(Ordering::Relaxed)
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping is page-aligned, longer than a word, and lives as long as `self`; only atomics touch it.
        unsafe { &*self.0.start().cast::<AtomicU64>() }
    }
}

/// This thread's name as the system has it.
fn own_name() -> [u64; 2] {
    let mut bytes = [0; 16];
    let name = std::fs::read("/proc/thread-self/comm").unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let length = name.len().min(bytes.len() - 1);
    bytes[..length].copy_from_slice(&name[..length]);
    [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i])))
}

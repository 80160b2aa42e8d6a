//! The recorder of a process: each thread writes into a ring of its own.
//!
//! The recorder never fails the program and never makes it wait: if a resource is missing, it records less, and counts
//! the loss. It is off in every process forked from the one that opened it.

use super::clock::Clock;
use super::config::{RecorderConfig, Switches, bit};
use super::layout::{Layout, Plan, Slots, UNNAMED};
use super::names::Names;
use super::record::{Detail, Event, Kind, NameId, Range, Record, RecordedBy};
use super::ring::{CLAIMED, ENDED, FREE, Ring, WhenFull, Writer};
use super::sys::{self, Mapping};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Recorder of this process: it writes trace records into memory that other processes can read, also after this
/// process has died.
///
/// The threads of the process share it by reference; each thread records with its own [`ThreadRecorder`].
#[derive(Debug)]
pub struct Recorder {
    pub(super) layout: Layout,
    clock: Clock,
    when_full: WhenFull,
    gate: Gate,
    names: Names,
    /// Locked while a thread claims a ring.
    claims: Mutex<()>,
    rings: Box<[OnceLock<Slots>]>,
}

impl Recorder {
    /// Starts to record into a zeroed file, at least as long as [`RecorderConfig::bytes`] and sealed against shrinking,
    /// as made by [`RecorderConfig::memory`].
    ///
    /// # Errors
    /// Returns an error if the file does not meet these conditions, if a process already records into the file, if the
    /// system has no memory left, or if the configuration is out of range.
    pub fn create(file: File, config: RecorderConfig) -> io::Result<Recorder> {
        let plan = Plan {
            rings: config.threads_max,
            slots: config.records_per_thread,
            drops_newest: config.when_full == WhenFull::DropNewest,
            switches: config.kinds.bits(),
        };
        Recorder::over(Layout::create(file, plan)?)
    }

    /// Starts recording, or continues after an exec, where the threads of the previous program ended without notice.
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

    /// Returns true in the process that opened the recorder, and false in a process forked from it, where the recorder
    /// is off.
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.gate.mask() != 0
    }

    /// Returns the word that has one bit for each trace kind, at the position of the kind's [number](Kind::number); a
    /// set bit means that the kind is switched on. Other processes change the word at any time.
    #[must_use]
    pub fn switches(&self) -> &AtomicU64 {
        &self.layout.header().switches
    }

    /// Adds one to the count of records that were lost because their thread has no ring buffer.
    pub fn count_refused(&self) {
        self.layout.header().records_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the clock of the records' ticks.
    #[inline]
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns true if the kind is recorded now.
    #[inline]
    #[must_use]
    pub fn is_on(&self, kind: Kind) -> bool {
        self.layout.header().switches.load(Ordering::Relaxed) & self.gate.mask() & bit(kind) != 0
    }

    /// Sets the trace kinds that are recorded from now on.
    pub fn switch(&self, kinds: Switches) {
        if self.gate.mask() != 0 {
            self.layout.header().switches.store(kinds.bits(), Ordering::Release);
        }
    }

    /// Declares that this process has a hook for a trace kind, that is, code that records the kind. A kind without a
    /// hook is never recorded, even if it is switched on.
    pub fn hooked(&self, kind: Kind) {
        if self.gate.mask() != 0 {
            self.layout.header().hooked.fetch_or(bit(kind), Ordering::Release);
        }
    }

    /// Sets the reason why this process does not record a trace kind that is switched on, such as `another profiler is
    /// active`; `None` clears the reason. Takes a lock: call it only when the reason changes.
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

    /// Returns the number that stands for a name in records; equal names have the same number. 0 (no name) if the table
    /// is full. Takes a lock: call it once per name.
    #[must_use]
    pub fn name(&self, name: &str) -> NameId {
        if self.gate.mask() == 0 {
            return NameId(0); // a forked process would write into the table of its parent
        }
        self.names.intern(&self.layout, name).unwrap_or_default()
    }

    /// Returns a recorder for the calling thread, and claims a ring buffer for it. If no ring buffer is free, the
    /// thread's records are dropped and counted, and the thread tries again from time to time.
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

    /// Claims an unused ring; else one whose thread has ended and whose records were taken, or may be overwritten.
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
        // Another recorder of this process, linked into another library, may use the same file.
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

    /// Maps the next ring that is not mapped yet.
    fn map_another(&self) -> Option<Ring<'_>> {
        let number = self.rings.iter().position(|slots| slots.get().is_none())?;
        let mapped = self.layout.slots_of(number).ok()?;
        let ring = self.rings.get(number)?.get_or_init(|| mapped).ring(self.layout.heads().get(number)?)?;
        (ring.head().state.load(Ordering::Acquire) == FREE).then_some(ring)
    }
}

/// The recorder of one thread. When it is dropped, its ring buffer becomes free for another thread, as soon as a
/// reader has taken all records in it. With [`WhenFull::DropOldest`], another thread can take it over earlier, if
/// no other ring buffer is free.
#[derive(Debug)]
pub struct ThreadRecorder<'a> {
    pub(super) recorder: &'a Recorder,
    /// Cached from the recorder.
    switches: &'a AtomicU64,
    gate: &'a AtomicU64,
    pub(super) writer: Option<Writer<'a>>,
    /// Number of the claim of its ring in the file, and the number of ranges begun under it.
    claim: u64,
    ranges: u64,
    /// Records, or imported batches, for which there was no ring.
    refused: u64,
}

impl ThreadRecorder<'_> {
    /// Tries to claim a ring.
    fn claim(&mut self) -> bool {
        self.writer = self.recorder.claim();
        self.claim = self.writer.as_ref().map_or(0, |writer| writer.ring().head().claim.load(Ordering::Relaxed));
        self.writer.is_some()
    }

    /// Counts a record for which there is no ring, and occasionally tries to claim one.
    #[cold]
    fn refuse(&mut self) -> bool {
        self.recorder.count_refused();
        self.look_again();
        false
    }

    /// Tries to claim a ring after the first, second, fourth, eighth and so on failed call.
    #[cold]
    pub(super) fn look_again(&mut self) {
        self.refused += 1;
        if self.refused.is_power_of_two() {
            self.claim();
        }
    }

    /// Returns the recorder that this thread records into.
    #[must_use]
    pub const fn recorder(&self) -> &Recorder {
        self.recorder
    }

    /// Returns true if the kind is recorded now.
    #[inline]
    #[must_use]
    pub fn is_on(&self, kind: Kind) -> bool {
        self.switches.load(Ordering::Relaxed) & self.gate.load(Ordering::Relaxed) & bit(kind) != 0
    }

    /// Records an event at the current time. Returns false if its trace kind is switched off or there was no room for
    /// the record.
    #[inline]
    pub fn record(&mut self, kind: Kind, event: Event, name: NameId, detail: Detail) -> bool {
        self.is_on(kind) && self.push(kind, event, name, detail)
    }

    // Inlined: all but name and range are constant at the call site, so the encoding reduces to a few stores.
    #[inline(always)]
    fn push(&mut self, kind: Kind, event: Event, name: NameId, detail: Detail) -> bool {
        let Some(writer) = &mut self.writer else { return self.refuse() };
        writer.push(
            &Record { ticks: self.recorder.clock.ticks(), by: RecordedBy::Itself, kind, event, name, detail }
                .to_words(),
        )
    }

    /// Begins a range (an activity with a duration). Returns `None` if its trace kind is switched off or its beginning
    /// was not written. Any thread can end the returned range, also if the kind is switched off meanwhile.
    #[inline]
    pub fn begin(&mut self, kind: Kind, name: NameId, detail: Detail) -> Option<Range> {
        if !self.is_on(kind) {
            return None;
        }
        self.ranges = self.ranges.wrapping_add(1);
        let range = Range::new(kind, self.claim, self.ranges);
        self.push(kind, Event::Begin { range: range.number() }, name, detail).then_some(range)
    }

    /// Begins a training step and reads the thread's CPU time, which costs a system call. `None` if the recording of
    /// steps is switched off, or if the beginning was not written.
    pub fn begin_step(&mut self, number: u64) -> Option<StepRange> {
        let range = self.begin(Kind::Step, NameId(0), Detail::Step { number, cpu_nanos: 0 })?;
        Some(StepRange { range, number, cpu_nanos: sys::thread_cpu_nanos() })
    }

    /// Ends a training step. Call it on the thread that began the step.
    pub fn end_step(&mut self, step: StepRange) {
        let StepRange { range, number, cpu_nanos } = step;
        let cpu_nanos = sys::thread_cpu_nanos().saturating_sub(cpu_nanos);
        self.push_end(range, Detail::Step { number, cpu_nanos });
    }

    /// Ends a range that this thread or another thread has begun. Readers take the range's name and detail from the
    /// record of its beginning.
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
#[must_use = "a step that never ends has no length"]
pub struct StepRange {
    range: Range,
    number: u64,
    /// CPU time of its thread at the beginning.
    cpu_nanos: u64,
}

impl StepRange {
    /// Returns the step's range.
    pub const fn range(self) -> Range {
        self.range
    }
}

/// A word that is all ones in the process that created it, and zero in processes forked from it.
#[derive(Debug)]
struct Gate(Mapping);

impl Gate {
    fn open() -> io::Result<Gate> {
        let gate = Gate(Mapping::wiped_on_fork(1 << 16)?); // at least one page, for every page size
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

/// Returns the name of this thread in the system.
fn own_name() -> [u64; 2] {
    let mut bytes = [0; 16];
    let name = std::fs::read("/proc/thread-self/comm").unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    let length = name.len().min(bytes.len() - 1);
    bytes[..length].copy_from_slice(&name[..length]);
    [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i])))
}

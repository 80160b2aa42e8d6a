//! The probe's thread: follows the recorder's switches, makes mspti deliver buffers, and imports their records.
//!
//! It is the only thread that calls mspti; mspti's callbacks only pass buffers to it. If the recorder is full, the
//! thread and the buffers wait. When all buffers are in use, mspti gets none and drops records.

use super::buffers::{self, Full};
use super::clock;
use super::counters;
use super::figures::Figures;
use super::forms::{API, COMMUNICATION, COPY, KERNEL, MARKER, bit};
use super::libtaskd::Libtaskd;
use super::mspti::{Mspti, Refused, Subscriber};
use super::own_thread::{HAS_ENDED, IS_ENDING};
use super::records::{self, Address};
use super::texts::{DATA_LOADER, FORWARD, SAVE_CHECKPOINT, STEP};
use super::translate::{Outside, Translator};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum interval at which the switches are read.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Interval at which mspti is flushed.
const FLUSH_EVERY: Duration = Duration::from_millis(1000);
/// Minimum interval between two reports of changed counters.
const FIGURES_EVERY: Duration = Duration::from_millis(1000);
/// Interval at which a full recorder is tried again.
const ROOM_EVERY: Duration = Duration::from_millis(2);
/// Interval at which kinds that mspti refused are requested again.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(5);
/// Number of records that are imported together.
const TOGETHER: usize = 512;
/// Maximum number of bytes that are read of a text: names are shorter, and the texts of communications end earlier.
const TEXT_BYTES_MAX: usize = 1024;

/// mspti's kinds, and the recorder's kinds that enable each: any of the first set, and all of the second.
const ASKED_FOR_BY: [(c_int, u64, u64); 7] = [
    (records::MARKER, MARKERS, 0),
    (records::KERNEL, bit(KERNEL), 0),
    (records::API, bit(API), 0),
    (records::MEMCPY, bit(COPY), 0),
    (records::MEMSET, bit(COPY), 0),
    // Work of the device for a communication. The call that requests it, and its half on the stream, are markers.
    (records::COMMUNICATION, bit(COMMUNICATION), bit(KERNEL)),
    (records::HCCL, bit(COMMUNICATION), bit(KERNEL)),
];
/// Recorder kinds that a marker can become.
const MARKERS: u64 = IN_DEFAULT_DOMAIN | bit(COMMUNICATION);
const IN_DEFAULT_DOMAIN: u64 =
    bit(STEP) | bit(DATA_LOADER) | bit(SAVE_CHECKPOINT) | bit(FORWARD) | bit(MARKER);
/// Domains that are known by name, with the kinds of their markers. Other domains are on by default in mspti, and their
/// markers are discarded while their kind is off.
const DOMAINS: [(&CStr, u64); 4] = [
    (c"default", IN_DEFAULT_DOMAIN),
    (c"communication", bit(COMMUNICATION)),
    (c"ptaCaching", bit(MARKER)),
    (c"ptaWorkspace", bit(MARKER)),
];
/// Kinds of the recorder that only probes record.
pub(super) const OWN_KINDS: [u32; 4] = [KERNEL, COPY, API, MARKER];

/// State of the probe's thread.
pub(super) struct Probe {
    mspti: Mspti,
    recorder: Libtaskd,
    translator: Translator,
    subscriber: Option<Subscriber>,
    /// Bits of the mspti kinds that are on; `refused` has the bits of the recorder kinds that mspti refused.
    enabled: u64,
    refused: u64,
    /// The recorder's switches, a bit for each kind, that were applied to mspti last.
    followed: Option<u64>,
    asked: Instant,
    delivers_by_itself: bool,
    flushed: Instant,
    figures: Figures,
    /// The probe's counters as reported last; `figures_at` is the time of the last check.
    told: Option<Figures>,
    figures_at: Option<Instant>,
    has_registered: bool,
}

impl Probe {
    pub(super) fn new(mspti: Mspti, recorder: Libtaskd) -> Probe {
        let (now, figures) = (Instant::now(), Figures { stand_in: mspti.is_stand_in.into(), ..Figures::default() });
        Probe {
            mspti,
            recorder,
            translator: Translator::default(),
            subscriber: None,
            enabled: 0,
            refused: 0,
            followed: None,
            asked: now,
            delivers_by_itself: false,
            flushed: now,
            figures,
            told: None,
            figures_at: None,
            has_registered: false,
        }
    }

    /// Runs until the process ends.
    pub(super) fn run(mut self) {
        buffers::begin(thread::current(), super::BUFFERS_MAX);
        loop {
            let is_ending = IS_ENDING.load(Ordering::Acquire);
            self.follow();
            self.flush(is_ending);
            self.bring_all();
            self.tell_figures(is_ending);
            if is_ending {
                HAS_ENDED.store(true, Ordering::Release);
                return;
            }
            thread::park_timeout(LOOK_EVERY);
        }
    }

    /// Enables in mspti exactly the kinds that the recorder's switches have on.
    fn follow(&mut self) {
        let switches = self.recorder.switches();
        let asks_again = self.refused != 0 && self.asked.elapsed() >= ASK_AGAIN_EVERY;
        if self.followed == Some(switches) && !asks_again {
            return;
        }
        if self.subscriber.is_some() && self.followed != Some(switches) {
            self.mspti.flush(); // records until now belong to the old switches
            self.bring_all();
        }
        (self.followed, self.asked) = (Some(switches), Instant::now());
        self.translator.switches = switches;
        let wants = |any: u64, all: u64| switches & any != 0 && switches & all == all;
        let wanted = ASKED_FOR_BY.iter().any(|(_, any, all)| wants(*any, *all));
        if wanted && let Err(refused) = self.subscribe() {
            self.refused = MARKERS | OWN_KINDS.iter().fold(0, |all, kind| all | bit(*kind));
            OWN_KINDS.iter().for_each(|kind| self.recorder.except(*kind, &refused.sentence()));
            return;
        }
        self.refused = 0;
        for (domain, kinds) in DOMAINS {
            let _ = self.mspti.set_domain(domain, switches & kinds != 0); // an unknown domain has no markers
        }
        for (kind, any, all) in ASKED_FOR_BY {
            self.set(kind, any, wants(any, all));
        }
        if !wanted && let Some(subscriber) = self.subscriber.take() {
            self.mspti.unsubscribe(subscriber);
            self.mspti.flush();
        }
    }

    fn subscribe(&mut self) -> Result<(), Refused> {
        if self.subscriber.is_none() {
            self.subscriber = Some(self.mspti.subscribe()?);
        }
        if !self.has_registered {
            self.mspti.register(buffers::request, given_back)?;
            let millis = u32::try_from(FLUSH_EVERY.as_millis()).unwrap_or(u32::MAX);
            self.delivers_by_itself = self.mspti.flush_every(millis);
            self.has_registered = true;
        }
        Ok(())
    }

    /// Switches one mspti kind on or off. A refusal is reported for the recorder kinds that only probes record.
    fn set(&mut self, kind: c_int, for_kinds: u64, on: bool) {
        let is_on = self.enabled >> kind & 1 == 1;
        // `COMMUNICATION`, the newer of the two, contains all that `HCCL` does, and more.
        let on = on && !(kind == records::HCCL && self.enabled >> records::COMMUNICATION & 1 == 1);
        let outcome = if is_on == on { Ok(()) } else { self.mspti.set(kind, on) };
        match outcome {
            Ok(()) if on => self.enabled |= 1 << kind,
            Ok(()) => self.enabled &= !(1 << kind),
            Err(_) if on => self.refused |= for_kinds,
            Err(_) => (),
        }
        let reason = outcome.err().filter(|_| on).map(Refused::sentence).unwrap_or_default();
        for own in OWN_KINDS.into_iter().filter(|own| for_kinds & bit(*own) != 0) {
            if !reason.is_empty() || self.refused & bit(own) == 0 {
                self.recorder.except(own, &reason);
            }
        }
    }

    fn flush(&mut self, is_ending: bool) {
        let is_due = !self.delivers_by_itself && self.flushed.elapsed() >= FLUSH_EVERY;
        if self.subscriber.is_some() && (is_due || is_ending) {
            self.mspti.flush();
            self.flushed = Instant::now();
        }
    }

    fn bring_all(&mut self) {
        while let Some(buffer) = Full::next() {
            self.walk(buffer.bytes());
            drop(buffer);
            self.tell_figures(false);
        }
        self.bring();
    }

    /// Translates the records of a buffer of mspti up to the first record of an unknown kind.
    fn walk(&mut self, bytes: &[u8]) {
        let mut upto = 0;
        let outside = Vendor { recorder: self.recorder };
        while let Some(at) = self.mspti.next(bytes) {
            let Some((record, size)) = bytes.get(at..).and_then(records::first) else { break };
            upto = at + size;
            self.translator.take(record, &outside);
            if self.translator.out.len() >= TOGETHER {
                self.bring();
            }
        }
        if bytes.len() - upto.min(bytes.len()) >= size_of::<u64>() {
            self.figures.cut_buffers += 1;
            self.figures.cut_bytes += (bytes.len() - upto) as u64;
            self.mspti.rewind(bytes);
        }
    }

    /// Imports the translated records into the trace recorder; waits while the recorder is full.
    fn bring(&mut self) {
        let mut from = 0;
        while from < self.translator.out.len() {
            let taken = self.recorder.import(&self.translator.out[from..]);
            from += taken;
            self.figures.brought += taken as u64;
            if taken == 0 {
                if IS_ENDING.load(Ordering::Acquire) {
                    break; // the program waits for this thread
                }
                thread::park_timeout(ROOM_EVERY);
            }
        }
        self.translator.out.drain(..from);
    }

    /// Reports changed counters of the probe once a kind is on. Counters for which the recorder has no room are
    /// reported the next time.
    fn tell_figures(&mut self, at_once: bool) {
        if self.figures_at.is_some_and(|at| at.elapsed() < FIGURES_EVERY) && !at_once {
            return;
        }
        self.figures_at = Some(Instant::now());
        let counts = self.translator.counts;
        self.figures.records = counts.records;
        self.figures.off = counts.off;
        self.figures.unjoined = counts.orphans + self.translator.joins.forgotten;
        self.figures.refused_requests = buffers::refused();
        self.figures.buffers_out = buffers::out();
        let is_on = self.followed.is_some_and(|switches| switches != 0);
        if self.told == Some(self.figures) || !is_on && self.told.is_none() {
            return;
        }
        self.figures.busy_ms = clock::nanos(clock::THREAD_CPU) as f64 / 1e6;
        let before = self.told.as_ref().map(Figures::named);
        let figures = counters::changed(self.figures.named(), before, &self.recorder);
        if self.recorder.import(&figures) == figures.len() {
            self.told = Some(self.figures);
        }
    }
}

/// mspti's callback that returns a buffer.
unsafe extern "C" fn given_back(bytes: *mut u8, _size: usize, valid: usize) {
    buffers::given_back(bytes, valid);
}

/// Access to texts in mspti's memory.
struct Vendor {
    recorder: Libtaskd,
}

impl Outside for Vendor {
    #[inline]
    fn text(&self, address: Address) -> &[u8] {
        let text = std::ptr::with_exposed_provenance::<c_char>(address.0);
        if text.is_null() {
            return b"";
        }
        // SAFETY: mspti's texts end with a NUL and live as long as the process; at most this many bytes are read.
        unsafe { std::slice::from_raw_parts(text.cast(), strnlen(text, TEXT_BYTES_MAX)) }
    }

    fn number(&self, text: &[u8]) -> u32 {
        self.recorder.name(text)
    }
}

unsafe extern "C" {
    fn strnlen(text: *const c_char, most: usize) -> usize;
}

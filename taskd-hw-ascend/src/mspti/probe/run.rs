//! What the probe's thread does: it follows the recorder's switches, has mspti deliver, and brings what it delivers.
//!
//! It is the only one that calls mspti, and what mspti calls only hands it buffers. Where the recorder has no room it waits, and
//! buffers wait with it, up to their number; from then on mspti gets none and drops.

use super::buffers::{self, Full};
use super::figures::Figures;
use super::libtaskd::Libtaskd;
use super::mspti::{Mspti, Refused, Subscriber};
use super::own_thread::{HAS_ENDED, IS_ENDING};
use super::records::{self, Address};
use super::texts::{API, COMMUNICATION, COPY, DATA_LOADER, FORWARD, KERNEL, MARKER, SAVE_CHECKPOINT, STEP};
use super::translate::{Outside, Translator};
use std::ffi::{CStr, c_char, c_int, c_long};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How often the switches are looked at, where nothing wakes it before.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often mspti delivers what it has.
const FLUSH_EVERY: Duration = Duration::from_millis(1000);
/// How often figures are told, where they have changed.
const FIGURES_EVERY: Duration = Duration::from_millis(1000);
/// How long it waits for room in the recorder.
const ROOM_EVERY: Duration = Duration::from_millis(2);
/// How often it asks again for what mspti has refused.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(5);
/// Records that are brought together.
const TOGETHER: usize = 512;
/// Bytes of a text that are read: names are shorter, and the texts of communications end before.
const TEXT_BYTES_MAX: usize = 1024;

/// mspti's kinds, and by which of the recorder's each is asked for: any of the first, and all of the second.
const ASKED_FOR_BY: [(c_int, u64, u64); 7] = [
    (records::MARKER, MARKERS, 0),
    (records::KERNEL, bit(KERNEL), 0),
    (records::API, bit(API), 0),
    (records::MEMCPY, bit(COPY), 0),
    (records::MEMSET, bit(COPY), 0),
    // What the device does for a communication; what asks for it, and its half on the stream, are markers.
    (records::COMMUNICATION, bit(COMMUNICATION), bit(KERNEL)),
    (records::HCCL, bit(COMMUNICATION), bit(KERNEL)),
];
/// The kinds that markers can be of.
const MARKERS: u64 = IN_DEFAULT_DOMAIN | bit(COMMUNICATION);
const IN_DEFAULT_DOMAIN: u64 =
    bit(STEP) | bit(DATA_LOADER) | bit(SAVE_CHECKPOINT) | bit(FORWARD) | bit(MARKER);
/// Domains that are known by name; every other is on by itself, and its markers are left out where their kind is off.
const DOMAINS: [(&CStr, u64); 4] = [
    (c"default", IN_DEFAULT_DOMAIN),
    (c"communication", bit(COMMUNICATION)),
    (c"ptaCaching", bit(MARKER)),
    (c"ptaWorkspace", bit(MARKER)),
];
/// The recorder's kinds that nobody but a probe records.
pub(super) const OWN_KINDS: [u32; 4] = [KERNEL, COPY, API, MARKER];

const fn bit(kind: u32) -> u64 {
    1 << kind
}

/// The thread's own.
pub(super) struct Probe {
    mspti: Mspti,
    recorder: Libtaskd,
    translator: Translator,
    subscriber: Option<Subscriber>,
    /// What mspti was asked for, and refuses.
    enabled: u64,
    refused: u64,
    /// The switches by which that was.
    followed: Option<u64>,
    asked: Instant,
    delivers_by_itself: bool,
    flushed: Instant,
    figures: Figures,
    /// As they were told last, and when they were looked at.
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

    /// Until the process ends.
    pub(super) fn run(mut self) {
        buffers::begin(thread::current());
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

    /// Asks mspti for what is switched on, and for nothing else.
    fn follow(&mut self) {
        let switches = self.recorder.switches();
        let asks_again = self.refused != 0 && self.asked.elapsed() >= ASK_AGAIN_EVERY;
        if self.followed == Some(switches) && !asks_again {
            return;
        }
        if self.subscriber.is_some() && self.followed != Some(switches) {
            self.mspti.flush(); // what was recorded until now counts by what was on until now
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
            let _ = self.mspti.set_domain(domain, switches & kinds != 0); // one that is not known there has no markers
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

    /// One kind of mspti's on or off; what refuses it is told of the recorder's kinds that nobody else records.
    fn set(&mut self, kind: c_int, for_kinds: u64, on: bool) {
        let is_on = self.enabled >> kind & 1 == 1;
        // The newer kind of the two says the same as the older one, and more.
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

    /// Every record of a buffer, up to one that is not known.
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

    /// Brings what was translated; where the recorder has no room it waits.
    fn bring(&mut self) {
        let mut from = 0;
        while from < self.translator.out.len() {
            let taken = self.recorder.import(&self.translator.out[from..]);
            from += taken;
            self.figures.brought += taken as u64;
            if taken == 0 {
                if IS_ENDING.load(Ordering::Acquire) {
                    break; // the program waits for this
                }
                thread::park_timeout(ROOM_EVERY);
            }
        }
        self.translator.out.drain(..from);
    }

    /// Figures that have changed, while anything is on: what finds no room is told the next time.
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
        self.figures.busy_ms = clock(THREAD_CPU) as f64 / 1e6;
        let number = |name: &str| self.recorder.name(name.as_bytes());
        let figures = self.figures.told_since(self.told.as_ref(), clock(REALTIME), number);
        if self.recorder.import(&figures) == figures.len() {
            self.told = Some(self.figures);
        }
    }
}

/// mspti gives a buffer back.
unsafe extern "C" fn given_back(bytes: *mut u8, _size: usize, valid: usize) {
    buffers::given_back(bytes, valid);
}

/// Texts in the vendor's memory.
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
        // SAFETY: mspti's texts end with a NUL and live as long as the process; so many bytes at most are looked at.
        unsafe { std::slice::from_raw_parts(text.cast(), strnlen(text, TEXT_BYTES_MAX)) }
    }

    fn number(&self, text: &[u8]) -> u32 {
        self.recorder.name(text)
    }
}

#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanos: c_long,
}

unsafe extern "C" {
    fn strnlen(text: *const c_char, most: usize) -> usize;
    fn clock_gettime(clock: c_int, now: *mut Timespec) -> c_int;
}

pub(super) const REALTIME: c_int = 0;
const THREAD_CPU: c_int = 3;

/// A clock of the system's in nanoseconds.
pub(super) fn clock(which: c_int) -> u64 {
    let mut now = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: `now` is valid for writing.
    unsafe { clock_gettime(which, &raw mut now) };
    now.seconds.unsigned_abs() * 1_000_000_000 + now.nanos.unsigned_abs()
}

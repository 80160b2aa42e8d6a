//! The probe's thread: it follows the switches, flushes, and brings records.
//!
//! It is the only one that calls CUPTI, and never from within CUPTI.

use super::buffers::{self, Full};
use super::cupti::Cupti;
use super::figures::Figures;
use super::libtaskd::Libtaskd;
use super::own_thread::IS_ENDING;
use super::record::{API, COPY, KERNEL, MARKER, bit};
use super::records::{self, Address};
use super::translate::{Outside, Translator};
use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How often the switches are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often what CUPTI has is asked for.
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// How often what CUPTI refused is asked for again.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(5);
/// How often the figures are told, where they have changed.
const FIGURES_EVERY: Duration = Duration::from_secs(1);
/// How long to wait for room in the recorder; it is made about ten times a second.
const ROOM_EVERY: Duration = Duration::from_millis(5);
/// When the program ends, how long to wait for room for its records, and then for the figures that say what found none.
const END_WITHIN: Duration = Duration::from_millis(300);
const LAST_FIGURES_WITHIN: Duration = Duration::from_millis(200);
/// Records that are brought together.
const TOGETHER: usize = 512;
/// A longer text of CUPTI's is cut: a name has 255 bytes at most.
const TEXT_BYTES_MAX: usize = 255;

/// CUPTI's kinds, and the recorder's kind for which each is asked for.
const ASKED_FOR_BY: [(u32, u32); 6] = [
    (records::CONCURRENT_KERNEL, KERNEL),
    (records::MEMCPY, COPY),
    (records::MEMCPY2, COPY),
    (records::MEMSET, COPY),
    (records::RUNTIME, API),
    (records::MARKER, MARKER),
];
/// The recorder's kinds that nobody but a probe records.
pub(super) const OWN_KINDS: [u32; 4] = [KERNEL, COPY, API, MARKER];

/// The thread's own.
pub(super) struct Probe {
    cupti: Cupti,
    libtaskd: Libtaskd,
    translator: Translator,
    /// A bit for each kind of CUPTI's that is on, and for each of the recorder's that is refused.
    enabled: u64,
    refused: u64,
    /// The switches that were followed, and when.
    followed: Option<(u64, Instant)>,
    has_registered: bool,
    delivers_by_itself: bool,
    flushed: Instant,
    figures: Figures,
    told: Option<(Figures, Instant)>,
    /// Since when the program ends.
    ending: Option<Instant>,
}

impl Probe {
    pub(super) fn new(cupti: Cupti, libtaskd: Libtaskd) -> Probe {
        Probe {
            figures: Figures { stand_in: cupti.is_stand_in.into(), ..Figures::default() },
            cupti,
            libtaskd,
            translator: Translator::default(),
            enabled: 0,
            refused: 0,
            followed: None,
            has_registered: false,
            delivers_by_itself: false,
            flushed: Instant::now(),
            told: None,
            ending: None,
        }
    }

    /// Until the process ends.
    pub(super) fn run(mut self) {
        buffers::begin(thread::current());
        loop {
            let is_ending = self.is_ending();
            self.follow();
            self.flush(is_ending);
            self.bring_all();
            if is_ending {
                return self.tell_last_figures();
            }
            self.tell_figures(false);
            thread::park_timeout(LOOK_EVERY);
        }
    }

    fn is_ending(&mut self) -> bool {
        if self.ending.is_none() && IS_ENDING.load(Ordering::Acquire) {
            self.ending = Some(Instant::now());
        }
        self.ending.is_some()
    }

    /// Asks CUPTI for what is switched on, and for nothing else.
    fn follow(&mut self) {
        let switches = self.libtaskd.switches();
        let is_followed = |(followed, at): (u64, Instant)| {
            followed == switches && (self.refused == 0 || at.elapsed() < ASK_AGAIN_EVERY)
        };
        if self.followed.is_some_and(is_followed) {
            return;
        }
        self.followed = Some((switches, Instant::now()));
        let was_on = self.enabled != 0;
        if ASKED_FOR_BY.iter().any(|(_, by)| switches & bit(*by) != 0)
            && let Err(why) = self.register()
        {
            self.refused = OWN_KINDS.iter().fold(0, |all, kind| all | bit(*kind));
            return OWN_KINDS.iter().for_each(|kind| self.libtaskd.except(*kind, &why));
        }
        self.refused = 0;
        for own in OWN_KINDS {
            let mut reason = String::new();
            for (kind, _) in ASKED_FOR_BY.iter().filter(|(_, by)| *by == own) {
                let (on, is_on) = (switches & bit(own) != 0, self.enabled >> kind & 1 == 1);
                match if on == is_on { Ok(()) } else { self.cupti.set(*kind, on) } {
                    Ok(()) if on => self.enabled |= 1 << kind,
                    Ok(()) => self.enabled &= !(1 << kind),
                    Err(refused) if on => reason = refused.sentence(),
                    Err(_) => {}
                }
            }
            self.refused |= if reason.is_empty() { 0 } else { bit(own) };
            self.libtaskd.except(own, &reason);
        }
        if was_on {
            self.cupti.flush(false); // what was recorded until now was on
            self.bring_all();
        }
        self.translator.switches = switches;
    }

    fn register(&mut self) -> Result<(), String> {
        if !self.has_registered {
            self.cupti.use_system_threads();
            self.cupti.register(buffers::request, given_back).map_err(|refused| refused.sentence())?;
            let millis = u32::try_from(FLUSH_EVERY.as_millis()).unwrap_or(u32::MAX);
            self.delivers_by_itself = self.cupti.flush_every(millis);
            self.has_registered = true;
        }
        Ok(())
    }

    fn flush(&mut self, is_ending: bool) {
        let is_due = !self.delivers_by_itself && self.flushed.elapsed() >= FLUSH_EVERY;
        if self.has_registered && (is_due || is_ending) {
            self.cupti.flush(is_ending);
            self.flushed = Instant::now();
        }
    }

    fn bring_all(&mut self) {
        let mut has_read = false;
        while let Some(buffer) = Full::next() {
            if !has_read {
                // CUPTI's clock may be another than the calendar, and the calendar may have been set.
                self.translator.shift =
                    self.cupti.timestamp().map_or(0, |clock| now().wrapping_sub(clock).cast_signed());
                has_read = true;
            }
            self.walk(buffer.bytes());
        }
        self.bring(0);
    }

    /// Every record of a buffer.
    fn walk(&mut self, bytes: &[u8]) {
        let outside = Vendor { libtaskd: self.libtaskd, cupti: self.cupti };
        let mut at = None;
        while let Some(next) = self.cupti.next(bytes, at) {
            match bytes.get(next..).and_then(records::read) {
                Some(activity) => self.translator.take(activity, &outside),
                None => self.translator.cut(),
            }
            at = Some(next);
            if self.translator.out.len() >= TOGETHER {
                self.bring(TOGETHER / 2);
            }
        }
    }

    /// Brings records until so many are left at most. What finds no room waits, and CUPTI with it, which counts what it drops;
    /// at the end of the program it is given up, and counted.
    fn bring(&mut self, left: usize) {
        let mut from = 0;
        while self.translator.out.len() - from > left {
            self.tell_figures(false); // before the records: they say what is missing
            let taken = self.libtaskd.import(&self.translator.out[from..]);
            from += taken;
            self.figures.brought += taken as u64;
            if taken == 0 {
                if self.is_ending() && self.ending.is_some_and(|since| since.elapsed() >= END_WITHIN) {
                    self.figures.given_up += (self.translator.out.len() - from) as u64;
                    return self.translator.out.clear();
                }
                thread::park_timeout(ROOM_EVERY);
            }
        }
        self.translator.out.drain(..from);
    }

    /// Whether all figures are told that are to be told now.
    fn tell_figures(&mut self, at_once: bool) -> bool {
        let is_due = self.told.as_ref().is_none_or(|(_, at)| at.elapsed() >= FIGURES_EVERY);
        if !is_due && !at_once || !self.has_registered {
            return true;
        }
        let counts = self.translator.counts;
        self.figures.records = counts.records;
        self.figures.off = counts.off;
        self.figures.unknown = counts.unknown;
        self.figures.untimed = counts.untimed;
        self.figures.unjoined = counts.unjoined;
        self.figures.dropped += self.cupti.dropped();
        self.figures.refused_requests = buffers::refused();
        let before = self.told.as_ref().map(|(figures, _)| figures);
        let figures = self.figures.told_since(before, now(), |name| self.libtaskd.name(name.as_bytes()));
        let is_told = self.libtaskd.import(&figures) == figures.len();
        if is_told {
            self.told = Some((self.figures, Instant::now())); // what found no room is told the next time
        }
        is_told
    }

    fn tell_last_figures(&mut self) {
        let begun = Instant::now();
        while !self.tell_figures(true) && begun.elapsed() < LAST_FIGURES_WITHIN {
            thread::park_timeout(ROOM_EVERY);
        }
    }
}

/// CUPTI gives a buffer back.
unsafe extern "C" fn given_back(_: *mut c_void, _: u32, bytes: *mut u8, _size: usize, valid: usize) {
    buffers::given_back(bytes, valid);
}

/// Texts in the vendor's memory.
struct Vendor {
    libtaskd: Libtaskd,
    cupti: Cupti,
}

impl Vendor {
    fn at(text: *const c_char) -> &'static [u8] {
        if text.is_null() {
            return b"";
        }
        // SAFETY: CUPTI's texts end with a NUL and live as long as the process; so many bytes at most are looked at.
        unsafe { std::slice::from_raw_parts(text.cast(), strnlen(text, TEXT_BYTES_MAX)) }
    }
}

impl Outside for Vendor {
    #[inline]
    fn text(&self, address: Address) -> &[u8] {
        Vendor::at(std::ptr::with_exposed_provenance(address.0))
    }

    fn function(&self, function: u32) -> &[u8] {
        Vendor::at(self.cupti.function_name(function))
    }

    fn number(&self, text: &[u8]) -> u32 {
        self.libtaskd.name(text)
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

const REALTIME: c_int = 0;

/// The calendar in nanoseconds.
pub(super) fn now() -> u64 {
    let mut now = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: `now` is valid for writing.
    unsafe { clock_gettime(REALTIME, &raw mut now) };
    now.seconds.unsigned_abs() * 1_000_000_000 + now.nanos.unsigned_abs()
}

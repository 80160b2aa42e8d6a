//! The probe's thread: follows the switches, flushes CUPTI, and imports records into the recorder.
//!
//! It is the only thread that calls CUPTI, and it never does so from inside a CUPTI callback.

use super::buffers::{self, Full};
use super::clock;
use super::counters;
use super::cupti::Cupti;
use super::figures::Figures;
use super::libtaskd::Libtaskd;
use super::own_thread::IS_ENDING;
use super::record::{API, COPY, KERNEL, MARKER, bit};
use super::records::{self, Address};
use super::translate::{Outside, Translator};
use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which the switches are read.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Interval at which CUPTI is flushed.
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// Interval at which kinds that CUPTI refused are requested again.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(5);
/// Minimum interval between two reports of changed counters.
const FIGURES_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a full recorder is tried again; readers free space about ten times a second.
const ROOM_EVERY: Duration = Duration::from_millis(5);
/// Time to wait at the end of the program for room for its records, and then for the counters that show what did not
/// fit.
const END_WITHIN: Duration = Duration::from_millis(300);
const LAST_FIGURES_WITHIN: Duration = Duration::from_millis(200);
/// Number of records that are imported together.
const TOGETHER: usize = 512;
/// Maximum number of bytes that are read of a CUPTI text: a name has 255 bytes at most.
const TEXT_BYTES_MAX: usize = 255;

/// CUPTI's activity kinds, and the recorder's kind that each is enabled for.
const ASKED_FOR_BY: [(u32, u32); 6] = [
    (records::CONCURRENT_KERNEL, KERNEL),
    (records::MEMCPY, COPY),
    (records::MEMCPY2, COPY),
    (records::MEMSET, COPY),
    (records::RUNTIME, API),
    (records::MARKER, MARKER),
];
/// Kinds of the recorder that only probes record.
pub(super) const OWN_KINDS: [u32; 4] = [KERNEL, COPY, API, MARKER];

/// State of the probe's thread.
pub(super) struct Probe {
    cupti: Cupti,
    libtaskd: Libtaskd,
    translator: Translator,
    /// Bits of the CUPTI kinds that are on; `refused` has the bits of the recorder kinds that CUPTI refused.
    enabled: u64,
    refused: u64,
    /// The recorder's switches, a bit for each kind, that were applied to CUPTI last, and the time of that.
    followed: Option<(u64, Instant)>,
    has_registered: bool,
    delivers_by_itself: bool,
    flushed: Instant,
    figures: Figures,
    told: Option<(Figures, Instant)>,
    /// Time at which the probe noticed that the program ends; `None` while the program runs.
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

    /// Runs until the process ends.
    pub(super) fn run(mut self) {
        buffers::begin(thread::current(), super::BUFFERS_MAX);
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

    /// Enables in CUPTI exactly the kinds that the recorder's switches have on.
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
            self.cupti.flush(false); // records until now belong to the old switches
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
                // CUPTI's clock may differ from the real-time clock, which may also have been set.
                self.translator.shift =
                    self.cupti.timestamp().map_or(0, |clock| now().wrapping_sub(clock).cast_signed());
                has_read = true;
            }
            self.walk(buffer.bytes());
        }
        self.bring(0);
    }

    /// Translates every record of a buffer of CUPTI.
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

    /// Imports translated records into the trace recorder until at most `left` remain. If the recorder is full, the
    /// probe waits, and so does CUPTI, which counts the records that it drops. At the end of the program, records that
    /// found no room are discarded and counted.
    fn bring(&mut self, left: usize) {
        let mut from = 0;
        while self.translator.out.len() - from > left {
            self.tell_figures(false); // before the records, since the counters show what is missing
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

    /// Reports changed counters of the probe if they are due or `at_once` is set. Returns false only if the trace
    /// recorder had no room for them.
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
        let before = self.told.as_ref().map(|(figures, _)| figures.named());
        let figures = counters::changed(self.figures.named(), before, &self.libtaskd);
        let is_told = self.libtaskd.import(&figures) == figures.len();
        if is_told {
            self.told = Some((self.figures, Instant::now())); // counters without room are reported the next time
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

/// CUPTI's callback that returns a buffer.
unsafe extern "C" fn given_back(_: *mut c_void, _: u32, bytes: *mut u8, _size: usize, valid: usize) {
    buffers::given_back(bytes, valid);
}

/// Access to texts in CUPTI's memory.
struct Vendor {
    libtaskd: Libtaskd,
    cupti: Cupti,
}

impl Vendor {
    fn at(text: *const c_char) -> &'static [u8] {
        if text.is_null() {
            return b"";
        }
        // SAFETY: CUPTI's texts end with a NUL and live as long as the process; at most this many bytes are read.
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

unsafe extern "C" {
    fn strnlen(text: *const c_char, most: usize) -> usize;
}

/// Returns the real-time clock in nanoseconds since 1970.
fn now() -> u64 {
    clock::nanos(clock::REALTIME)
}

//! The functions of `include/taskd.h`, which documents them.
//!
//! They convert numbers into the recorder's types, and do nothing else.

use super::beat;
use super::process::{self, guarded, recorder};
use super::recorder::{Communication, DataType, Detail, Event, Kind, NameId, Op, Range};
use super::thread::{with_own, with_own_if_on};
use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::sync::atomic::AtomicU64;

/// Maximum number of bytes read of a text: names are shorter.
const TEXT_BYTES_MAX: usize = 1024;

/// Description of a collective or point-to-point operation, with the layout of the C struct `taskd_communication`
/// in `taskd.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawCommunication {
    pub(super) op: u32,
    pub(super) data_type: u32,
    pub(super) group: u32,
    pub(super) peer: u32,
    pub(super) elements: u64,
    pub(super) bytes: u64,
    pub(super) sequence: u64,
}

impl RawCommunication {
    #[inline]
    fn detail(self) -> Detail {
        let code = |number: u32| u8::try_from(number).unwrap_or(0);
        Detail::Communication(Communication {
            op: Op::of_code(code(self.op)),
            data_type: DataType::of_code(code(self.data_type)),
            group: NameId(self.group),
            elements: self.elements,
            bytes: self.bytes,
            peer: Some(self.peer).filter(|peer| *peer != u32::MAX),
            sequence: Some(self.sequence).filter(|sequence| *sequence != u64::MAX),
        })
    }
}

/// Starts the trace recorder in this process, if the process is a rank. Returns 1 if the recorder runs, 0 if this
/// process is not to be recorded, and a negative number if it is to be recorded but cannot be.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_open() -> c_int {
    guarded(process::open)
}

/// Returns the reason why this process does not record trace events, as a sentence; an empty string if it records
/// them. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_why() -> *const c_char {
    process::why().as_ptr()
}

/// Returns the address of a 64-bit word of switches: bit `1 << kind` is set while trace records of that kind are
/// recorded. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_switches() -> *const u64 {
    static NONE: AtomicU64 = AtomicU64::new(0);
    let word =
        recorder().filter(|recorder| recorder.is_of_this_process()).map_or(&NONE, |recorder| recorder.switches());
    word.as_ptr()
}

/// Registers a name with the trace recorder, and returns the number that stands for the name in trace records.
/// Equal names have the same number; 0 means that the recorder has no room for another name.
///
/// # Safety
/// `text` must point to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taskd_name(text: *const c_char, length: usize) -> u32 {
    // SAFETY: as the caller has promised.
    guarded(|| unsafe { text_of(text, length) }.map_or(0, |text| recorder().map_or(0, |known| known.name(&text).0)))
}

/// Begins a trace range: an activity with a start and an end. Returns the number to pass to `taskd_end`; 0 if the
/// range's kind is switched off or the recorder has no room.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_begin(kind_and_name: u64) -> u64 {
    guarded(|| {
        let Some((kind, name)) = parts(kind_and_name) else { return 0 };
        with_own_if_on(kind, |own| number(own.recorder().begin(kind, name, Detail::None)))
    })
}

/// Ends the range, training step or communication with the number that `taskd_begin`, `taskd_begin_step` or
/// `taskd_begin_communication` returned. The number 0 is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_end(range: u64) {
    guarded(|| {
        if let Some(range) = Range::of_number(range) {
            with_own(|own| own.end(range));
        }
    });
}

/// Records the start of training step number `step`. Returns the number to pass to `taskd_end`; 0 if the recording
/// of steps is switched off or the recorder has no room.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_begin_step(step: u64) -> u64 {
    guarded(|| with_own_if_on(Kind::Step, |own| number(own.begin_step(step))))
}

/// Records the start of a collective or point-to-point operation. Returns the number to pass to `taskd_end`; 0 if
/// the recording of communications is switched off or the recorder has no room.
///
/// # Safety
/// `what` must be null or point to a `taskd_communication`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taskd_begin_communication(name: u32, what: *const RawCommunication) -> u64 {
    guarded(|| {
        with_own_if_on(Kind::Communication, |own| {
            // SAFETY: as the caller has promised.
            let detail = unsafe { what.as_ref() }.map_or(Detail::None, |what| what.detail());
            number(own.recorder().begin(Kind::Communication, NameId(name), detail))
        })
    })
}

/// Records a trace event without duration, with the given kind and name.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_mark(kind_and_name: u64) {
    guarded(|| record(kind_and_name, Event::Instant));
}

/// Records a value of the counter that has the given kind and name.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_counter(kind_and_name: u64, value: f64) {
    guarded(|| record(kind_and_name, Event::Counter { value }));
}

/// Declares that this process contains a hook for a kind of trace records, that is, code that records this kind.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_hooked(kind: u32) {
    guarded(|| {
        if let (Some((kind, _)), Some(recorder)) = (parts(kind.into()), recorder()) {
            recorder.hooked(kind);
        }
    });
}

/// Declares why this process does not record a kind of trace records although the kind is switched on.
///
/// # Safety
/// `reason` must point to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taskd_except(kind: u32, reason: *const c_char, length: usize) {
    guarded(|| {
        if let (Some((kind, _)), Some(recorder)) = (parts(kind.into()), recorder()) {
            // SAFETY: as the caller has promised.
            recorder.except(kind, unsafe { text_of(reason, length) }.as_deref());
        }
    });
}

/// Starts a thread that writes the time of `CLOCK_MONOTONIC`, in nanoseconds, to `*word` every `every_ms`
/// milliseconds. Returns 1 if the thread was started, otherwise 0.
///
/// # Safety
/// `word` must be null, or point to eight bytes at an address that is a multiple of eight; these bytes must stay
/// valid until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taskd_beat(word: *mut u64, every_ms: u32) -> c_int {
    guarded(|| {
        if word.is_null() || !word.is_aligned() {
            return 0;
        }
        // SAFETY: as the caller has promised; all writers use this type.
        let word: &'static AtomicU64 = unsafe { AtomicU64::from_ptr(word) };
        c_int::from(beat::start(word, every_ms).is_ok())
    })
}

/// Returns true if a kind is recorded now.
#[inline]
pub(super) fn is_on(kind: u32) -> bool {
    guarded(|| match (parts(kind.into()), recorder()) {
        (Some((kind, _)), Some(recorder)) => recorder.is_on(kind),
        _ => false,
    })
}

#[inline]
fn record(kind_and_name: u64, event: Event) {
    if let Some((kind, name)) = parts(kind_and_name) {
        with_own_if_on(kind, |own| own.recorder().record(kind, event, name, Detail::None));
    }
}

/// Splits a number into the kind and, above it, the number of a name; `None` if no kind has that number.
#[inline]
pub(super) fn parts(kind_and_name: u64) -> Option<(Kind, NameId)> {
    let kind = Kind::of_number(u8::try_from(kind_and_name & 0xffff_ffff).ok()?)?;
    Some((kind, NameId(u32::try_from(kind_and_name >> 32).ok()?)))
}

/// Returns the number of a range; 0 for none.
#[inline]
fn number(range: Option<Range>) -> u64 {
    range.map_or(0, |range| range.number())
}

/// Returns the caller's text, cut to the maximum length; `None` for null.
///
/// # Safety
/// `text` must point to `length` bytes, which do not change as long as what is returned is used.
unsafe fn text_of<'a>(text: *const c_char, length: usize) -> Option<Cow<'a, str>> {
    if text.is_null() || length == 0 {
        return None;
    }
    // SAFETY: as the caller has promised.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length.min(TEXT_BYTES_MAX)) };
    Some(String::from_utf8_lossy(bytes))
}

//! The functions of `include/taskd.h`, which says what each of them is for.
//!
//! They turn numbers into the recorder's terms, and do nothing else.

use super::beat;
use super::process::{self, guarded, recorder};
use super::recorder::{Communication, DataType, Detail, Event, Kind, NameId, Op, Range};
use super::thread::{with_own, with_own_if_on};
use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::sync::atomic::AtomicU64;

/// No text is read beyond so many bytes: a name is shorter.
const TEXT_BYTES_MAX: usize = 1024;

/// `taskd_communication`.
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

/// Begins to record in this process.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_open() -> c_int {
    guarded(process::open)
}

/// Why this process does not record.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_why() -> *const c_char {
    process::why().as_ptr()
}

/// The word that says which kinds are recorded.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_switches() -> *const u64 {
    static NONE: AtomicU64 = AtomicU64::new(0);
    let word =
        recorder().filter(|recorder| recorder.is_of_this_process()).map_or(&NONE, |recorder| recorder.switches());
    word.as_ptr()
}

/// The number of a name.
///
/// # Safety
/// `text` must point to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taskd_name(text: *const c_char, length: usize) -> u32 {
    // SAFETY: as the caller has promised.
    guarded(|| unsafe { text_of(text, length) }.map_or(0, |text| recorder().map_or(0, |known| known.name(&text).0)))
}

/// Begins a range.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_begin(kind_and_name: u64) -> u64 {
    guarded(|| {
        let Some((kind, name)) = parts(kind_and_name) else { return 0 };
        with_own_if_on(kind, |own| number(own.recorder().begin(kind, name, Detail::None)))
    })
}

/// Ends a range.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_end(range: u64) {
    guarded(|| {
        if let Some(range) = Range::of_number(range) {
            with_own(|own| own.end(range));
        }
    });
}

/// Begins a training step.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_begin_step(step: u64) -> u64 {
    guarded(|| with_own_if_on(Kind::Step, |own| number(own.begin_step(step))))
}

/// Begins a communication.
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

/// Records that something happened.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_mark(kind_and_name: u64) {
    guarded(|| record(kind_and_name, Event::Instant));
}

/// Records a figure.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_counter(kind_and_name: u64, value: f64) {
    guarded(|| record(kind_and_name, Event::Counter { value }));
}

/// Says that this process has a hook for a kind.
#[unsafe(no_mangle)]
pub extern "C" fn taskd_hooked(kind: u32) {
    guarded(|| {
        if let (Some((kind, _)), Some(recorder)) = (parts(kind.into()), recorder()) {
            recorder.hooked(kind);
        }
    });
}

/// Says why a kind is not recorded though it is on.
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

/// Begins to write the time into a word, from a thread of its own.
///
/// # Safety
/// `word` must be null or point to eight bytes, on an address that is a multiple of eight, that stay as long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taskd_beat(word: *mut u64, every_ms: u32) -> c_int {
    guarded(|| {
        if word.is_null() || !word.is_aligned() {
            return 0;
        }
        // SAFETY: as the caller has promised; everybody writes it by this type.
        let word: &'static AtomicU64 = unsafe { AtomicU64::from_ptr(word) };
        c_int::from(beat::start(word, every_ms).is_ok())
    })
}

/// Whether a kind is recorded now.
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

/// A kind, and the number of a name above it; `None` for a number that no kind has.
#[inline]
pub(super) fn parts(kind_and_name: u64) -> Option<(Kind, NameId)> {
    let kind = Kind::of_number(u8::try_from(kind_and_name & 0xffff_ffff).ok()?)?;
    Some((kind, NameId(u32::try_from(kind_and_name >> 32).ok()?)))
}

/// The number of a range; 0 for none.
#[inline]
fn number(range: Option<Range>) -> u64 {
    range.map_or(0, |range| range.number())
}

/// A text of the caller's, as far as it can be a name; `None` for none.
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

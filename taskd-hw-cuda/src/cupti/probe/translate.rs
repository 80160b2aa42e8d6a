//! Conversion of CUPTI's records into the recorder's.
//!
//! Texts and numbers of names come through [`Outside`]. Converted records wait in [`Translator::out`].

use super::names::{Meaning, Names};
use super::record::{
    self, API, COMMUNICATION, COPY, INSTANT, KERNEL, MARKER, NONE, OF_A_DEVICE, OF_A_DEVICES_COMMUNICATION, PLAIN,
    Record, SPAN, bit,
};
use super::records::{Activity, Address, Place, Span};

/// Maximum number of open ranges, a power of two. A range replaces an older one with the same slot.
const OPEN_MAX: usize = 1 << 14;

/// Access to data that CUPTI's records only refer to: texts, names of functions, and the trace recorder's numbers.
pub trait Outside {
    /// Returns CUPTI's text at this address, without its terminating NUL, cut at the maximum length of a name.
    fn text(&self, address: Address) -> &[u8];
    /// Returns the name of the CUDA runtime function with this callback id of CUPTI.
    fn function(&self, function: u32) -> &[u8];
    /// Returns the number under which the trace recorder stores this name.
    fn number(&self, text: &[u8]) -> u32;
}

/// Counters of the CUPTI records that a translator has processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of CUPTI's records, including truncated ones.
    pub records: u64,
    /// Number of CUPTI's records whose kind was switched off when they were read.
    pub off: u64,
    /// Number of CUPTI's records that were truncated, or of a kind that the probe had not requested.
    pub unknown: u64,
    /// Number of CUPTI's records that have no valid time, or that end before they start.
    pub untimed: u64,
    /// Number of NVTX ranges whose start record or end record is missing: ends without a start, and starts that another
    /// range replaced before their end.
    pub unjoined: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Open {
    id: u32,
    begun: u64,
    thread: u32,
    name: u32,
    is_open: bool,
}

/// Converts CUPTI's records into records of the trace recorder, and keeps the state between them, such as open
/// ranges.
#[derive(Debug)]
pub struct Translator {
    names: Names,
    open: Box<[Open]>,
    pub counts: Counts,
    /// Bit mask of the kinds of records that are switched on in the trace recorder.
    pub switches: u64,
    /// Number of nanoseconds added to CUPTI's times, since CUPTI's clock may differ from the real-time clock.
    pub shift: i64,
    pub out: Vec<Record>,
}

impl Default for Translator {
    fn default() -> Translator {
        Translator {
            names: Names::default(),
            open: vec![Open::default(); OPEN_MAX].into_boxed_slice(),
            counts: Counts::default(),
            switches: 0,
            shift: 0,
            out: Vec::new(),
        }
    }
}

impl Translator {
    /// Converts one record of CUPTI, and appends the resulting records of the trace recorder to `out`.
    #[inline]
    pub fn take(&mut self, activity: Activity, outside: &impl Outside) {
        self.counts.records += 1;
        match activity {
            Activity::Kernel { span, place, name } => self.kernel(span, place, outside.text(name), outside),
            Activity::Copy { span, place, bytes, copy_kind } => {
                self.copy(span, place, bytes, copy_name(copy_kind), outside);
            }
            Activity::PeerCopy { span, place, bytes } => self.copy(span, place, bytes, b"memcpy peer", outside),
            Activity::Fill { span, place, bytes } => self.copy(span, place, bytes, b"memset", outside),
            Activity::Api { span, function, thread, correlation } => {
                let Some(mut told) = self.span(API, span) else { return };
                told.name = self.number(outside.function(function), outside);
                (told.thread, told.form) = (thread, OF_A_DEVICE); // no device: belongs to the call
                told.number = u64::from(correlation);
                self.out.push(told);
            }
            Activity::Begin { at, id, thread, name, domain } => {
                let name = self.marker(name, domain, outside);
                let open = &mut self.open[id as usize & (OPEN_MAX - 1)];
                self.counts.unjoined += u64::from(open.is_open);
                *open = Open { id, begun: at, thread, name, is_open: true };
            }
            Activity::End { at, id } => self.end(at, id),
            Activity::Instant { at, thread, name, domain } => {
                let Some(told) = self.span(MARKER, Span { start: at, end: at }) else { return };
                let name = self.marker(name, domain, outside);
                self.out.push(Record { event: INSTANT, thread, name, ..told });
            }
            Activity::Other { .. } => self.counts.unknown += 1,
        }
    }

    /// Counts a truncated record of CUPTI.
    pub fn cut(&mut self) {
        self.counts.records += 1;
        self.counts.unknown += 1;
    }

    #[inline]
    fn kernel(&mut self, span: Span, place: Place, name: &[u8], outside: &impl Outside) {
        let Meaning { number, communication } = self.names.get(name, |text| outside.number(text));
        let communication = communication.filter(|_| self.is_on(COMMUNICATION));
        let kind = if communication.is_some() { COMMUNICATION } else { KERNEL };
        let Some(mut told) = self.span(kind, span) else { return };
        of_device(&mut told, place, 0);
        told.name = number;
        if let Some((op, data_type)) = communication {
            (told.form, told.op, told.data_type) = (OF_A_DEVICES_COMMUNICATION, op, data_type);
        }
        self.out.push(told);
    }

    #[inline]
    fn copy(&mut self, span: Span, place: Place, bytes: u64, name: &[u8], outside: &impl Outside) {
        let Some(mut told) = self.span(COPY, span) else { return };
        of_device(&mut told, place, bytes);
        told.name = self.number(name, outside);
        self.out.push(told);
    }

    fn end(&mut self, at: u64, id: u32) {
        let open = &mut self.open[id as usize & (OPEN_MAX - 1)];
        if !open.is_open || open.id != id {
            self.counts.unjoined += 1;
            return;
        }
        open.is_open = false;
        let Open { begun, thread, name, .. } = *open;
        if let Some(told) = self.span(MARKER, Span { start: begun, end: at }) {
            self.out.push(Record { thread, name, ..told });
        }
    }

    fn is_on(&self, kind: u32) -> bool {
        self.switches & bit(kind) != 0
    }

    /// Builds the trace record of a span. Returns `None` and counts the span if its kind is off or its time is unknown.
    #[inline]
    fn span(&mut self, kind: u32, Span { start, end }: Span) -> Option<Record> {
        if !self.is_on(kind) {
            self.counts.off += 1;
            return None;
        }
        let nanos = end.checked_sub(start).filter(|_| start != 0);
        let unix_nanos = start.checked_add_signed(self.shift).filter(|at| *at != 0);
        let (Some(nanos), Some(unix_nanos)) = (nanos, unix_nanos) else {
            self.counts.untimed += 1;
            return None;
        };
        Some(Record {
            unix_nanos,
            nanos,
            kind,
            event: SPAN,
            form: PLAIN,
            device: NONE,
            stream: NONE,
            peer: NONE,
            ..Record::default()
        })
    }

    fn number(&mut self, text: &[u8], outside: &impl Outside) -> u32 {
        self.names.get(text, |text| outside.number(text)).number
    }

    /// Returns the recorder's number of a marker's name, which is prefixed with the name of its domain if it has one.
    fn marker(&mut self, name: Address, domain: Address, outside: &impl Outside) -> u32 {
        let (name, domain) = (outside.text(name), outside.text(domain));
        if domain.is_empty() {
            return self.number(name, outside);
        }
        let whole = [domain, b": ", name].concat();
        self.number(&whole, outside)
    }
}

#[inline]
fn of_device(told: &mut record::Record, place: Place, bytes: u64) {
    let Place { device, stream, correlation } = place;
    (told.form, told.device, told.stream) = (OF_A_DEVICE, device, stream);
    (told.bytes, told.number) = (bytes, u64::from(correlation));
}

/// Returns the name of a copy, given its `CUpti_ActivityMemcpyKind`.
fn copy_name(copy_kind: u8) -> &'static [u8] {
    match copy_kind {
        1 => b"memcpy host to device",
        2 => b"memcpy device to host",
        3 => b"memcpy host to array",
        4 => b"memcpy array to host",
        5 => b"memcpy array to array",
        6 => b"memcpy array to device",
        7 => b"memcpy device to array",
        8 => b"memcpy device to device",
        9 => b"memcpy host to host",
        10 => b"memcpy peer",
        _ => b"memcpy",
    }
}

//! From CUPTI's records to the recorder's.
//!
//! It asks others for texts and for the numbers of names, and brings nothing anywhere: what it makes waits in
//! [`Translator::out`].

use super::names::{Meaning, Names};
use super::record::{
    self, API, COMMUNICATION, COPY, INSTANT, KERNEL, MARKER, NONE, OF_A_DEVICE, OF_A_DEVICES_COMMUNICATION, PLAIN,
    Record, SPAN, bit,
};
use super::records::{Activity, Address, Place, Span};

/// Ranges whose end has not come, a power of two; a range that comes where another one is takes its place.
const OPEN_MAX: usize = 1 << 14;

/// What is outside of a record.
pub trait Outside {
    /// A text of CUPTI's, without the NUL behind it; cut where it is longer than a name can be.
    fn text(&self, address: Address) -> &[u8];
    /// How a function of the runtime is called.
    fn function(&self, function: u32) -> &[u8];
    /// The recorder's number of a name.
    fn number(&self, text: &[u8]) -> u32;
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records of CUPTI's.
    pub records: u64,
    /// Of these, those of a kind that was off by then.
    pub off: u64,
    /// Those of a kind that nobody asked for.
    pub unknown: u64,
    /// Those whose time CUPTI could not tell, or that end before they begin.
    pub untimed: u64,
    /// Ends of ranges without a beginning, and beginnings that were forgotten.
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

/// The state that is kept from record to record.
#[derive(Debug)]
pub struct Translator {
    names: Names,
    open: Box<[Open]>,
    pub counts: Counts,
    /// A bit for each kind that is on.
    pub switches: u64,
    /// What is added to CUPTI's times: its clock may be another than the calendar.
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
    /// Takes one record.
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
                (told.thread, told.form) = (thread, OF_A_DEVICE); // of no device: of the call that asked for its work
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

    /// There was not enough of a record.
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

    /// A record of something that is over; `None`: nobody wants it, or nobody knows when it was. Both are counted.
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

    /// The name of a marker, with that of its domain before it where it has one.
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

/// `CUpti_ActivityMemcpyKind`, in words.
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

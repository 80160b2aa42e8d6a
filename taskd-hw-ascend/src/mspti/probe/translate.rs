//! Conversion of mspti's records into the recorder's.
//!
//! Texts and numbers of names come through [`Outside`]. Converted records wait in [`Translator::out`].

use super::cache::{Cache, Meaning};
use super::forms::{
    self, API, COMMUNICATION, COPY, INSTANT, KERNEL, NONE, OF_A_COMMUNICATION, OF_A_DEVICE, OF_A_DEVICES_COMMUNICATION,
    OF_A_STEP, PLAIN, SPAN,
};
use super::joins::{Joins, Open};
use super::records::{Address, Marker, Part, Record, Span, Stream};
use super::texts::{self, STEP};

/// Access to data to which one of mspti's records only refers: texts, and the trace recorder's numbers of names.
pub trait Outside {
    /// Returns mspti's text at this address, without its final NUL, cut at the maximum length of a name.
    fn text(&self, address: Address) -> &[u8];
    /// Returns the trace recorder's number of the name `text`.
    fn number(&self, text: &[u8]) -> u32;
}

/// Counters of the records that the translator has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of mspti's records that the translator has received.
    pub records: u64,
    /// Number of translated records that were discarded because their kind is switched off, or was switched off when
    /// they started.
    pub off: u64,
    /// Number of records of the end of a range whose start is unknown. [`Joins`] counts the starts that were dropped.
    pub orphans: u64,
}

/// Translator that converts mspti's records into records of the trace recorder. It keeps state between the records.
#[derive(Debug, Default)]
pub struct Translator {
    cache: Cache,
    pub joins: Joins,
    pub counts: Counts,
    /// The trace recorder's switches: the bit of each kind of records that is switched on is 1.
    pub switches: u64,
    pub out: Vec<forms::Record>,
}

impl Translator {
    /// Converts one record of mspti, and appends the resulting trace records to `out`.
    #[inline]
    pub fn take(&mut self, record: Record, outside: &impl Outside) {
        self.counts.records += 1;
        match record {
            Record::Marker(marker) => self.marker(&marker, outside),
            other => self.other(other, outside),
        }
    }

    #[inline]
    fn marker(&mut self, marker: &Marker, outside: &impl Outside) {
        match (marker.part, marker.place) {
            (Part::Start, None) => {
                let meaning = self.meaning(marker, outside);
                let is_on = self.is_on(meaning.kind);
                let open = self.joins.of(marker.id);
                (open.begun, open.thread, open.meaning) = (marker.at, marker.thread, Some(meaning));
                open.is_on = is_on;
                open.has_device |= marker.has_device;
                if open.device_ended > 0 {
                    self.tell_device(marker.id);
                }
            }
            (Part::End, None) => self.end(marker),
            (Part::Instant, None) => self.instant(marker, outside),
            (part, Some(place)) => self.of_device(marker, part, place),
        }
    }

    /// Returns the meaning of a marker's name and domain, from the cache if possible.
    #[inline]
    fn meaning(&mut self, marker: &Marker, outside: &impl Outside) -> Meaning {
        let (text, domain) = (outside.text(marker.name), outside.text(marker.domain));
        self.cache.marker(text, domain, |name| outside.number(name))
    }

    #[inline]
    fn end(&mut self, marker: &Marker) {
        let Some(open) = self.joins.find(marker.id).filter(|open| open.meaning.is_some()) else {
            self.counts.orphans += 1;
            return;
        };
        let Open { begun, thread, meaning, is_on, has_device, device_ended, .. } = *open;
        open.is_host_over = true;
        if !has_device || device_ended > 0 {
            self.joins.remove(marker.id);
        }
        let span = Span { start: begun, end: marker.at };
        if let Some(meaning) = meaning {
            self.push_if(is_on, || host(&meaning, thread, span));
        }
    }

    fn instant(&mut self, marker: &Marker, outside: &impl Outside) {
        let meaning = self.meaning(marker, outside);
        let moment = Span { start: marker.at, end: marker.at };
        self.push(meaning.kind, || forms::Record { event: INSTANT, ..host(&meaning, marker.thread, moment) });
        if marker.has_device {
            let is_on = self.is_on(meaning.kind);
            let open = self.joins.of(marker.id);
            (open.meaning, open.is_on, open.is_host_over) = (Some(meaning), is_on, true);
            if open.device_ended > 0 {
                self.tell_device(marker.id);
            }
        }
    }

    /// Handles the device half of a marker, which has no name and may arrive before the host half.
    fn of_device(&mut self, marker: &Marker, part: Part, place: Stream) {
        let open = self.joins.of(marker.id);
        (open.has_device, open.place) = (true, place);
        match part {
            Part::Start => open.device_begun = marker.at.max(1),
            Part::End => open.device_ended = marker.at.max(1),
            Part::Instant => (open.device_begun, open.device_ended) = (marker.at.max(1), marker.at.max(1)),
        }
        if open.device_ended > 0 && open.meaning.is_some() {
            self.tell_device(marker.id);
        }
    }

    fn tell_device(&mut self, id: u64) {
        let Some(open) = self.joins.find(id) else { return };
        let Open { meaning, is_on, is_host_over, device_begun, device_ended, place, .. } = *open;
        if is_host_over {
            self.joins.remove(id);
        }
        match meaning {
            Some(meaning) if device_begun > 0 => {
                let span = Span { start: device_begun, end: device_ended };
                self.push_if(is_on, || device(&meaning, place, span));
            }
            _ => self.counts.orphans += 1,
        }
    }

    #[inline]
    const fn is_on(&self, kind: u32) -> bool {
        self.switches >> (kind & 63) & 1 == 1
    }

    #[inline]
    fn push(&mut self, kind: u32, record: impl FnOnce() -> forms::Record) {
        self.push_if(self.is_on(kind), record);
    }

    #[inline]
    fn push_if(&mut self, is_on: bool, record: impl FnOnce() -> forms::Record) {
        if is_on {
            self.out.push(record());
        } else {
            self.counts.off += 1;
        }
    }

    fn other(&mut self, record: Record, outside: &impl Outside) {
        match record {
            Record::Api { span, thread, correlation, name } => {
                let name = self.name(name, outside);
                let host = Stream { device: NONE, stream: NONE };
                self.push(API, || forms::Record { thread, ..work(API, name, span, host, correlation, 0) });
            }
            Record::Kernel { span, place, correlation, name } => {
                let name = self.name(name, outside);
                self.push(KERNEL, || work(KERNEL, name, span, place, correlation, 0));
            }
            Record::Copy { is_fill, copy_kind, span, place, correlation, bytes } => {
                let name = copy_name(is_fill, copy_kind);
                let name = self.cache.name(name.as_bytes(), |name| outside.number(name));
                self.push(COPY, || work(COPY, name, span, place, correlation, bytes));
            }
            Record::Hccl { span, place, bandwidth, name, group } => {
                let nanos = span.end.saturating_sub(span.start);
                let bytes = bytes_of(bandwidth, nanos);
                self.communication(span, place, (name, group), (0, bytes, 0), outside);
            }
            Record::Communication { span, place, data_type, count, correlation, name, group } => {
                let data_type = texts::data_type_of_number(data_type);
                let bytes = count.saturating_mul(texts::size_of(data_type));
                self.communication(span, place, (name, group), (data_type, bytes, correlation), outside);
            }
            Record::Marker(_) | Record::Other => self.counts.off += 1,
        }
    }

    fn communication(
        &mut self,
        span: Span,
        place: Stream,
        (name, group): (Address, Address),
        (data_type, bytes, number): (u32, u64, u64),
        outside: &impl Outside,
    ) {
        let op = texts::op_of(&String::from_utf8_lossy(outside.text(name)));
        let (name, group) = (self.name(name, outside), self.name(group, outside));
        self.push(COMMUNICATION, || forms::Record {
            form: OF_A_DEVICES_COMMUNICATION,
            op,
            data_type,
            group,
            ..work(COMMUNICATION, name, span, place, number, bytes)
        });
    }

    fn name(&mut self, address: Address, outside: &impl Outside) -> u32 {
        self.cache.name(outside.text(address), |name| outside.number(name))
    }
}

/// Returns the number of bytes transferred in `nanos` nanoseconds at this bandwidth, in bytes per nanosecond; 0 if the
/// bandwidth is not a positive finite number.
#[allow(clippy::cast_possible_truncation)] // the cast saturates
fn bytes_of(bandwidth: f64, nanos: u64) -> u64 {
    let bytes = bandwidth * nanos as f64;
    if bytes.is_finite() && bytes > 0.0 { bytes.round() as u64 } else { 0 }
}

fn copy_name(is_fill: bool, kind: u32) -> &'static str {
    match (is_fill, kind) {
        (true, _) => "memset",
        (_, 1) => "memcpy host to host",
        (_, 2) => "memcpy host to device",
        (_, 3) => "memcpy device to host",
        (_, 4) => "memcpy device to device",
        _ => "memcpy",
    }
}

/// Builds the trace record of a span on the host.
#[inline]
fn host(meaning: &Meaning, thread: u32, span: Span) -> forms::Record {
    forms::Record {
        unix_nanos: span.start,
        nanos: span.end.saturating_sub(span.start),
        kind: meaning.kind,
        name: meaning.name,
        event: SPAN,
        form: meaning.form,
        thread,
        device: NONE,
        stream: NONE,
        op: meaning.op,
        data_type: meaning.data_type,
        group: meaning.group,
        peer: meaning.peer,
        elements: meaning.elements,
        bytes: meaning.bytes,
        number: meaning.number,
        ..forms::Record::default()
    }
}

/// Builds the trace record of a range's device half, which is a span on the device. For a step, the correlation is the
/// number of the step.
fn device(meaning: &Meaning, place: Stream, span: Span) -> forms::Record {
    let (form, number) = match meaning.form {
        OF_A_COMMUNICATION => (OF_A_DEVICES_COMMUNICATION, 0),
        OF_A_STEP => (OF_A_DEVICE, if meaning.kind == STEP { meaning.number } else { 0 }),
        _ => (OF_A_DEVICE, 0),
    };
    debug_assert!(form != PLAIN);
    forms::Record { device: place.device, stream: place.stream, form, number, ..host(meaning, 0, span) }
}

fn work(kind: u32, name: u32, span: Span, place: Stream, correlation: u64, bytes: u64) -> forms::Record {
    forms::Record {
        unix_nanos: span.start,
        nanos: span.end.saturating_sub(span.start),
        kind,
        name,
        event: SPAN,
        form: OF_A_DEVICE,
        device: place.device,
        stream: place.stream,
        peer: NONE,
        bytes,
        number: correlation,
        ..forms::Record::default()
    }
}

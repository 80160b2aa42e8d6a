//! The file around the events: either an object with the member `traceEvents`, or only the array of events.

use super::decimal;
use super::event::RawEvent;
use super::scan::{Cursor, Stop};
use super::window::{Ended, Halt, Window};
use serde::Deserialize;
use std::io::Read;

/// Receives the events of a file in the order of the file.
pub(super) trait Sink {
    /// Receives one event.
    fn event(&mut self, event: &RawEvent<'_>);
}

/// Members of the file other than its events.
#[derive(Clone, Debug, Default)]
pub(super) struct Header {
    /// Time zero of the file in nanoseconds since 1970.
    pub(super) base_ns: Option<i64>,
    /// Name of the rank's host.
    pub(super) host: Option<String>,
    /// Rank and process groups.
    pub(super) distributed: Distributed,
}

/// The member `distributedInfo`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Distributed {
    pub(super) rank: Option<u32>,
    pub(super) world_size: Option<u32>,
    pub(super) pg_config: Vec<GroupConfig>,
}

/// A process group in `distributedInfo`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct GroupConfig {
    pub(super) pg_name: String,
    pub(super) pg_desc: String,
    pub(super) ranks: Vec<u32>,
}

/// Part of `distributedInfo` that every version has. Used if the groups have a layout that is not known.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DistributedRank {
    rank: Option<u32>,
    world_size: Option<u32>,
}

/// Result of reading a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    pub(super) header: Header,
    /// Number of events, of any phase.
    pub(super) events: u64,
    /// Number of events that are longer than the window, and were skipped.
    pub(super) oversized: u64,
    /// Missing parts of the file, each as the rest of a sentence that begins with the file's name.
    pub(super) missing: Vec<String>,
}

/// Reads a file to its end, or to the first byte that cannot be read.
pub(super) fn read<R: Read, S: Sink>(source: R, sink: &mut S) -> Document {
    let mut document = Document::default();
    let mut window = Window::new(source);
    if let Err(halt) = document.read(&mut window, sink) {
        let problem = document.explain(&halt);
        document.missing.push(problem);
    }
    if document.oversized > 0 {
        let count = document.oversized;
        document.missing.push(format!("has {count} events longer than 8 MiB, which were skipped"));
    }
    document
}

/// Form in which the file continues.
enum Form {
    Object,
    Array,
    Utf16,
    Empty,
}

impl Document {
    fn read<R: Read, S: Sink>(&mut self, window: &mut Window<R>, sink: &mut S) -> Result<(), Halt> {
        match form(window)? {
            Form::Object => self.members(window, sink),
            Form::Array => match self.events(window, sink) {
                // The format permits an array without its closing bracket.
                Err(Halt::Ended(Ended::AtEnd)) if window.bytes().trim_ascii().is_empty() => Ok(()),
                result => result,
            },
            Form::Utf16 => {
                self.missing.push("is encoded as UTF-16: convert it to UTF-8".into());
                Ok(())
            }
            Form::Empty => {
                self.missing.push("is empty".into());
                Ok(())
            }
        }
    }

    fn members<R: Read, S: Sink>(&mut self, window: &mut Window<R>, sink: &mut S) -> Result<(), Halt> {
        if window.scan(|cursor| cursor.take(b'}'))? {
            return Ok(());
        }
        loop {
            let (key, is_array) = window.scan(|cursor| {
                let key = Member::of(cursor.key()?.raw);
                Ok((key, cursor.peek()? == b'['))
            })?;
            match key {
                Member::Events if is_array => {
                    window.consume(1);
                    self.events(window, sink)?;
                }
                Member::Other | Member::Events => window.skip_value()?,
                Member::Base | Member::Host | Member::Distributed => self.member(key, window)?,
            }
            if !window.scan(|cursor| cursor.has_more(b'}'))? {
                return Ok(());
            }
        }
    }

    fn member<R: Read>(&mut self, key: Member, window: &mut Window<R>) -> Result<(), Halt> {
        let length = match window.scan(|cursor| {
            let mut ahead = cursor.clone();
            ahead.value().map(|value| value.len())
        }) {
            Ok(length) => length,
            Err(Halt::Ended(Ended::TooLong)) => {
                self.missing.push("has a header longer than 8 MiB, which was skipped".into());
                return window.skip_value();
            }
            Err(halt) => return Err(halt),
        };
        window.scan(|cursor| cursor.peek())?;
        let value = window.bytes().get(..length).unwrap_or_default();
        match key {
            Member::Base => self.header.base_ns = decimal::integer(value.trim_ascii().trim_quotes()),
            Member::Host => self.header.host = serde_json::from_slice(value).ok(),
            Member::Distributed => self.header.distributed = distributed(value),
            Member::Events | Member::Other => {}
        }
        window.consume(length);
        Ok(())
    }

    /// Consumes the events and the bracket that closes their array.
    fn events<R: Read, S: Sink>(&mut self, window: &mut Window<R>, sink: &mut S) -> Result<(), Halt> {
        if window.scan(|cursor| cursor.take(b']'))? {
            return Ok(());
        }
        loop {
            // All events that the window holds are read before it moves on.
            let mut cursor = Cursor::new(window.bytes());
            let mut consumed = 0;
            let stop = loop {
                let event = match RawEvent::read(&mut cursor) {
                    Ok(event) => event,
                    Err(stop) => break Some(stop),
                };
                let has_more = match cursor.has_more(b']') {
                    Ok(has_more) => has_more,
                    Err(stop) => break Some(stop),
                };
                consumed = cursor.at;
                if let Some(event) = event {
                    self.events += 1;
                    sink.event(&event);
                }
                if !has_more {
                    break None;
                }
            };
            window.consume(consumed);
            match stop {
                None => return Ok(()),
                Some(Stop::NotJson(at)) => return Err(self.last_event(window, at - consumed, sink)),
                Some(Stop::End) => match window.fill() {
                    Ok(()) => {}
                    Err(Ended::TooLong) => {
                        self.oversized += 1;
                        window.skip_value()?;
                        if !window.scan(|cursor| cursor.has_more(b']'))? {
                            return Ok(());
                        }
                    }
                    Err(ended) => {
                        self.last_event(window, 0, sink);
                        return Err(Halt::Ended(ended));
                    }
                },
            }
        }
    }

    /// Uses an event that is complete although what follows it is not.
    fn last_event<R: Read, S: Sink>(&mut self, window: &mut Window<R>, at: usize, sink: &mut S) -> Halt {
        let position = window.offset() + at as u64;
        let mut cursor = Cursor::new(window.bytes());
        let mut consumed = 0;
        if let Ok(Some(event)) = RawEvent::read(&mut cursor) {
            self.events += 1;
            sink.event(&event);
            consumed = cursor.at;
        }
        window.consume(consumed);
        Halt::NotJson(position)
    }

    fn explain(&self, halt: &Halt) -> String {
        let events = self.events;
        match halt {
            Halt::Ended(Ended::AtEnd) => format!(
                "is truncated: it ends after {events} complete events, which are used; collect the trace again for the rest"
            ),
            Halt::Ended(Ended::Failed(error)) => {
                format!("cannot be read beyond {events} events, which are used: {error}")
            }
            Halt::Ended(Ended::TooLong) => format!("has a value longer than 8 MiB after {events} events"),
            Halt::NotJson(at) if events == 0 && *at < 4 => "is not JSON, nor a gzip file of JSON".into(),
            Halt::NotJson(at) => {
                format!("is not JSON at byte {at}: the {events} events before it are used, the rest is not")
            }
        }
    }
}

/// Returns the form of the file, and consumes its first bracket.
fn form<R: Read>(window: &mut Window<R>) -> Result<Form, Halt> {
    while window.bytes().len() < 3 {
        match window.fill() {
            Ok(()) => {}
            Err(Ended::AtEnd) => break,
            Err(ended) => return Err(Halt::Ended(ended)),
        }
    }
    match window.bytes() {
        [] => return Ok(Form::Empty),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{' | b'[', 0, ..] | [0, b'{' | b'[', ..] => return Ok(Form::Utf16),
        [0xef, 0xbb, 0xbf, ..] => window.consume(3),
        _ => {}
    }
    match window.scan(|cursor| cursor.peek()) {
        Ok(b'{') => {
            window.consume(1);
            Ok(Form::Object)
        }
        Ok(b'[') => {
            window.consume(1);
            Ok(Form::Array)
        }
        Ok(_) => Err(Halt::NotJson(window.offset())),
        Err(Halt::Ended(Ended::AtEnd)) => Ok(Form::Empty),
        Err(halt) => Err(halt),
    }
}

/// Members of the file.
#[derive(Clone, Copy)]
enum Member {
    Events,
    Base,
    Host,
    Distributed,
    Other,
}

impl Member {
    fn of(key: &[u8]) -> Self {
        match key {
            b"traceEvents" => Self::Events,
            b"baseTimeNanoseconds" => Self::Base,
            b"host_name" => Self::Host,
            b"distributedInfo" => Self::Distributed,
            _ => Self::Other,
        }
    }
}

fn distributed(value: &[u8]) -> Distributed {
    serde_json::from_slice(value).unwrap_or_else(|_| {
        let DistributedRank { rank, world_size } = serde_json::from_slice(value).unwrap_or_default();
        Distributed { rank, world_size, pg_config: Vec::new() }
    })
}

trait TrimQuotes {
    fn trim_quotes(&self) -> &Self;
}

impl TrimQuotes for [u8] {
    fn trim_quotes(&self) -> &[u8] {
        self.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(self)
    }
}

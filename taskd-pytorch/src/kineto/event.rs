//! One event of a trace, as slices of the file.

use super::decimal;
use super::scan::{Cursor, Stop, Text};
use taskd_core::analysis::decimal::ns_from_us;

/// Starts outside of this range are not readable: further ones than the year 2079 would make differences of times overflow.
const STARTS_NS: std::ops::RangeInclusive<i64> = -(1 << 60)..=3 << 60;

/// Longest readable duration: 36 years.
pub(super) const DURATION_MAX_NS: u64 = 1 << 60;

/// The members of an event that analyses need, unparsed. Members may be in any order; of a repeated member the last one
/// counts, as in other JSON readers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawEvent<'a> {
    /// Phase: `X` is a span, `B` and `E` its ends, `M` metadata. 0: absent.
    pub(super) phase: u8,
    pub(super) category: Option<Text<'a>>,
    pub(super) name: Text<'a>,
    /// Microseconds.
    pub(super) start: Option<&'a [u8]>,
    /// Microseconds.
    pub(super) duration: Option<&'a [u8]>,
    pub(super) process: Option<&'a [u8]>,
    pub(super) thread: Option<&'a [u8]>,
    pub(super) stream: Option<&'a [u8]>,
    pub(super) correlation: Option<&'a [u8]>,
    /// The whole object `args`.
    pub(super) arguments: &'a [u8],
}

impl<'a> RawEvent<'a> {
    /// Consumes an event. Other values than objects are no events, and yield `None`.
    #[inline]
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Option<Self>, Stop> {
        if cursor.peek()? != b'{' {
            cursor.value()?;
            return Ok(None);
        }
        cursor.at += 1;
        let mut event = Self::default();
        if cursor.take(b'}')? {
            return Ok(Some(event));
        }
        loop {
            let key = cursor.key()?;
            match key.raw {
                b"ph" => event.phase = cursor.scalar()?.and_then(|phase| phase.first().copied()).unwrap_or_default(),
                b"cat" => event.category = text(cursor)?,
                b"name" => event.name = text(cursor)?.unwrap_or_default(),
                b"ts" => event.start = cursor.scalar()?,
                b"dur" => event.duration = cursor.scalar()?,
                b"pid" => event.process = cursor.scalar()?,
                b"tid" => event.thread = cursor.scalar()?,
                b"args" => event.read_arguments(cursor)?,
                _ => drop(cursor.value()?),
            }
            if !cursor.has_more(b'}')? {
                return Ok(Some(event));
            }
        }
    }

    #[inline]
    fn read_arguments(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Stop> {
        if cursor.peek()? != b'{' {
            cursor.value()?;
            return Ok(());
        }
        let start = cursor.at;
        cursor.at += 1;
        if !cursor.take(b'}')? {
            loop {
                let key = cursor.key()?;
                match key.raw {
                    b"stream" => self.stream = cursor.scalar()?,
                    b"correlation" => self.correlation = cursor.scalar()?,
                    _ => drop(cursor.value()?),
                }
                if !cursor.has_more(b'}')? {
                    break;
                }
            }
        }
        self.arguments = &cursor.bytes[start..cursor.at];
        Ok(())
    }

    /// Returns the bytes of an argument; `None` if the event has none of this name, or one of another type than a
    /// number or text. Only for rare events: it scans all arguments.
    pub(super) fn argument(&self, name: &[u8]) -> Option<&'a [u8]> {
        let mut cursor = Cursor::new(self.arguments);
        cursor.expect(b'{').ok()?;
        let mut found = None;
        while cursor.peek().ok()? != b'}' {
            let is_wanted = cursor.key().ok()?.raw == name;
            let value = cursor.scalar().ok()?;
            found = if is_wanted { value } else { found };
            if !cursor.has_more(b'}').ok()? {
                break;
            }
        }
        found
    }

    /// Returns the category; empty if the event has none.
    #[inline]
    pub(super) fn category(&self) -> &'a [u8] {
        self.category.map_or(&[], |category| category.raw)
    }

    /// Returns the start in nanoseconds; `None` if it is absent or not readable.
    #[inline]
    pub(super) fn start_ns(&self) -> Option<i64> {
        self.start.and_then(ns_from_us).filter(|start| STARTS_NS.contains(start))
    }

    /// Returns the duration in nanoseconds; `None` if the event has none or if it is negative.
    #[inline]
    pub(super) fn duration_ns(&self) -> Option<u64> {
        let duration = self.duration.and_then(ns_from_us).and_then(|duration| u64::try_from(duration).ok());
        duration.filter(|duration| *duration <= DURATION_MAX_NS)
    }
}

/// Consumes a string. Another value yields `None`.
#[inline]
fn text<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Text<'a>>, Stop> {
    if cursor.peek()? == b'"' { cursor.string().map(Some) } else { cursor.value().map(|_| None) }
}

/// Returns the number after `ProfilerStep#` in the name of a training step.
pub(super) fn step_number(name: &[u8]) -> Option<u64> {
    let digits = name.strip_prefix(b"ProfilerStep#")?;
    decimal::integer(digits).and_then(|number| u64::try_from(number).ok())
}

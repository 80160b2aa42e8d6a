//! Headers of the pages in a Parquet file, checked before a page is decoded.
//!
//! The decoder reserves and clears as much memory as a header claims: for the values of a dictionary, and for the content
//! of a compressed page. A damaged header of a few bytes claims gigabytes. Format of a header: `PageHeader` in
//! `parquet.thrift`, in Thrift's compact protocol.

use super::parquet::ParquetTraceError;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use std::io::Read;
use std::sync::Arc;

/// Maximum size of the content of a page, in bytes. Writers begin a new page after about one megabyte.
pub const PAGE_BYTES_MAX: u64 = 64 << 20;
/// Maximum depth of structures in a header; the format has two.
const DEPTH_MAX: u32 = 8;
const DICTIONARY: i16 = 7;

/// A file that two readers share.
#[derive(Debug)]
pub(super) struct Shared<R>(pub(super) Arc<R>);

impl<R: ChunkReader> Length for Shared<R> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<R: ChunkReader> ChunkReader for Shared<R> {
    type T = R::T;

    fn get_read(&self, start: u64) -> ParquetResult<R::T> {
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<bytes::Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// Refuses a column with a page that claims more than it can contain, or has a header that cannot be read.
pub(super) fn check<R: ChunkReader>(file: &R, column: &ColumnChunkMetaData) -> Result<(), ParquetTraceError> {
    let (mut at, length) = column.byte_range();
    let end = at.saturating_add(length).min(file.len());
    while at < end {
        let Ok(read) = file.get_read(at) else { return Ok(()) };
        let mut input = Input { read: read.take(end - at), count: 0 };
        // The decoder would go through a list of claimed length although its bytes are missing.
        let header = Header::read(&mut input).ok_or(ParquetTraceError::Damaged)?;
        let claims = [
            ("bytes", header.content_bytes, PAGE_BYTES_MAX),
            ("values in a dictionary", header.dictionary_values, header.content_bytes), // each has a byte or more
        ];
        if let Some((what, claimed, most)) = claims.into_iter().find(|(_, claimed, most)| claimed > most) {
            let column = column.column_path().string();
            return Err(ParquetTraceError::Page { column, what, claimed, most });
        }
        at = at.saturating_add(input.count).saturating_add(header.stored_bytes);
    }
    Ok(())
}

/// What a header states about its page. A negative number counts as zero: the decoder refuses it.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    content_bytes: u64,
    stored_bytes: u64,
    dictionary_values: u64,
}

impl Header {
    fn read(input: &mut Input<impl Read>) -> Option<Header> {
        let mut header = Header::default();
        let mut field = 0;
        while let Some(kind) = input.field(&mut field)? {
            match (field, kind) {
                (2, Kind::Integer) => header.content_bytes = input.count_of()?,
                (3, Kind::Integer) => header.stored_bytes = input.count_of()?,
                (DICTIONARY, Kind::Structure) => header.dictionary_values = values(input)?,
                _ => input.skip(kind, 0)?,
            }
        }
        Some(header)
    }
}

/// Reads a header of a dictionary, and returns its number of values.
fn values(input: &mut Input<impl Read>) -> Option<u64> {
    let (mut values, mut field) = (0, 0);
    while let Some(kind) = input.field(&mut field)? {
        match (field, kind) {
            (1, Kind::Integer) => values = input.count_of()?,
            _ => input.skip(kind, 1)?,
        }
    }
    Some(values)
}

/// Types of the compact protocol, as far as their encodings differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A truth value, which the type itself contains.
    Nothing,
    Byte,
    Integer,
    Double,
    Text,
    List,
    Structure,
}

impl Kind {
    const fn of(number: u8) -> Option<Kind> {
        Some(match number {
            1 | 2 => Kind::Nothing,
            3 => Kind::Byte,
            4..=6 => Kind::Integer,
            7 => Kind::Double,
            8 => Kind::Text,
            9 | 10 => Kind::List,
            12 => Kind::Structure,
            _ => return None,
        })
    }
}

/// The bytes of a header.
struct Input<R> {
    read: std::io::Take<R>,
    count: u64,
}

impl<R: Read> Input<R> {
    fn byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        self.read.read_exact(&mut byte).ok()?;
        self.count += 1;
        Some(byte[0])
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn count_of(&mut self) -> Option<u64> {
        Some(u64::try_from(self.integer()?).unwrap_or(0))
    }

    /// Reads the type and number of the next field; `None` inside: the structure has ended.
    fn field(&mut self, number: &mut i16) -> Option<Option<Kind>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        *number = match byte >> 4 {
            0 => i16::try_from(self.integer()?).ok()?,
            step => number.checked_add(i16::from(step))?,
        };
        Kind::of(byte & 0xf).map(Some)
    }

    fn skip(&mut self, kind: Kind, depth: u32) -> Option<()> {
        let deeper = (depth < DEPTH_MAX).then_some(depth + 1)?;
        match kind {
            Kind::Nothing => {}
            Kind::Byte => self.skip_bytes(1)?,
            Kind::Integer => drop(self.varint()?),
            Kind::Double => self.skip_bytes(8)?,
            Kind::Text => {
                let length = self.varint()?;
                self.skip_bytes(length)?;
            }
            Kind::List => {
                let head = self.byte()?;
                let length = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // In a list a truth value has a byte: each element has one at least, and the input is finite.
                let kind = Kind::of(head & 0xf).map(|kind| if kind == Kind::Nothing { Kind::Byte } else { kind })?;
                for _ in 0..length {
                    self.skip(kind, deeper)?;
                }
            }
            Kind::Structure => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip(kind, deeper)?;
                }
            }
        }
        Some(())
    }

    fn skip_bytes(&mut self, length: u64) -> Option<()> {
        let mut part = self.read.by_ref().take(length);
        let skipped = std::io::copy(&mut part, &mut std::io::sink()).ok()?;
        self.count += skipped;
        (skipped == length).then_some(())
    }
}

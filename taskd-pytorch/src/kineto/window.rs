//! A bounded piece of a file in memory, which moves forward. A compressed file is decompressed on the way.

use super::scan::{Cursor, Stop};
use flate2::bufread::MultiGzDecoder;
use std::fmt;
use std::io::{self, BufReader, Read};

/// Bytes read at once, and the size of the window unless one event is longer.
const CHUNK: usize = 256 * 1024;

/// Size of the window at first: short files need no more.
const CHUNK_FIRST: usize = 4096;

/// Compressed bytes read at once.
const COMPRESSED_CHUNK: usize = 64 * 1024;

/// Largest size of the window: a longer event is skipped and counted, a longer header is skipped and reported.
pub(super) const WINDOW_MAX: usize = 8 * 1024 * 1024;

/// First bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reason for which no further bytes are read.
#[derive(Debug)]
pub(super) enum Ended {
    /// The file is at its end.
    AtEnd,
    /// Reading failed: the file system, or the compressed data.
    Failed(io::Error),
    /// The value is longer than [`WINDOW_MAX`].
    TooLong,
}

/// The window. `bytes()` is the part of the file that was read and not yet consumed.
pub(super) struct Window<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset of `buffer[0]` in the decompressed file.
    base: u64,
}

impl<R> fmt::Debug for Window<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Window").field("base", &self.base).field("start", &self.start).finish_non_exhaustive()
    }
}

/// Returns the decompressed bytes of a source that may be a gzip file.
///
/// # Errors
/// Fails if the first bytes cannot be read.
pub(super) fn decompressed<'a>(mut source: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
    let mut first = [0; GZIP.len()];
    let mut length = 0;
    while length < first.len() {
        match source.read(&mut first[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let whole = io::Cursor::new(first).take(length as u64).chain(source);
    Ok(if first == GZIP {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(COMPRESSED_CHUNK, whole)))
    } else {
        Box::new(whole)
    })
}

impl<R: Read> Window<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; CHUNK_FIRST], start: 0, end: 0, base: 0 }
    }

    /// Returns the bytes that were read and not yet consumed.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns the offset of the first byte that is not yet consumed, in the decompressed file.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Consumes bytes at the front.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Reads further bytes behind those that are not yet consumed.
    pub(super) fn fill(&mut self) -> Result<(), Ended> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.base += self.start as u64;
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() && self.buffer.len() >= WINDOW_MAX {
            return Err(Ended::TooLong);
        }
        if self.end == self.buffer.len() || self.buffer.len() < CHUNK {
            self.buffer.resize((self.buffer.len() * 2).min(WINDOW_MAX), 0);
        }
        // The whole window is filled: fewer events lie across its end.
        let before = self.end;
        while self.end < self.buffer.len() {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) if self.end == before => return Err(Ended::AtEnd),
                Ok(0) => break,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What was read before the failure is used; the next call meets the failure again.
                Err(error) if self.end == before => return Err(Ended::Failed(error)),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Runs a scan from the start of the window, reads on as long as the scan needs more bytes, and consumes what the scan
    /// consumed.
    ///
    /// # Errors
    /// Returns the reason for which reading ended, or the offset at which the bytes are not JSON.
    pub(super) fn scan<T>(&mut self, scan: impl Fn(&mut Cursor<'_>) -> Result<T, Stop>) -> Result<T, Halt> {
        loop {
            let mut cursor = Cursor::new(self.bytes());
            match scan(&mut cursor) {
                Ok(value) => {
                    let at = cursor.at;
                    self.consume(at);
                    return Ok(value);
                }
                Err(Stop::NotJson(at)) => return Err(Halt::NotJson(self.offset() + at as u64)),
                Err(Stop::End) => self.fill().map_err(Halt::Ended)?,
            }
        }
    }

    /// Consumes a value of any length, which begins at the start of the window. Memory does not depend on its length.
    pub(super) fn skip_value(&mut self) -> Result<(), Halt> {
        let first = self.scan(|cursor| cursor.peek())?;
        let mut skip = Skip { depth: 0, in_string: false, after_backslash: false, is_bare: !b"{[\"".contains(&first) };
        loop {
            if let Some(length) = skip.end(self.bytes()) {
                self.consume(length);
                return Ok(());
            }
            self.start = self.end;
            self.fill().map_err(Halt::Ended)?;
        }
    }
}

/// Reason for which a file is not read further.
#[derive(Debug)]
pub(super) enum Halt {
    Ended(Ended),
    /// Offset in the decompressed file at which the bytes are not JSON.
    NotJson(u64),
}

/// State of skipping one value.
struct Skip {
    depth: usize,
    in_string: bool,
    after_backslash: bool,
    is_bare: bool,
}

impl Skip {
    /// Returns the length up to the end of the value, if the bytes contain it.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            if self.is_bare {
                if b",}] \n\r\t".contains(byte) {
                    return Some(index);
                }
                continue;
            }
            if self.in_string {
                match byte {
                    _ if self.after_backslash => self.after_backslash = false,
                    b'\\' => self.after_backslash = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => continue,
                }
            }
            if self.depth == 0 && !self.in_string {
                return Some(index + 1);
            }
        }
        None
    }
}

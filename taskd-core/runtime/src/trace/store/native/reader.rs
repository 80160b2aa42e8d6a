//! Reader of a native file.
//!
//! Unreadable parts are skipped and reported. Memory is bounded by the size of a block, plus the batches that the
//! caller keeps.

use super::decode::Decoder;
use super::frame::{FRAME_BYTES, FileFrame, Frame, HEAD_BYTES, NativeHead};
use super::varint::Bytes;
use super::{BLOCK_BYTES_MAX, FORMAT_VERSION};
use crate::trace::RecordBatch;
use crate::trace::store::{Problem, Skipped};
use std::io::{self, Read};

/// Maximum expansion of LZ4, in bytes per byte.
const EXPANSION_MAX: usize = 255;
/// Minimum number of bytes per read.
const READ_BYTES: usize = 64 << 10;

/// Reader of batches from a file in the native format; the file is not trusted. A batch of more than
/// [`BLOCK_RECORDS_MAX`](super::BLOCK_RECORDS_MAX) records is returned as several batches; the first one states the
/// losses of the whole batch in `lost`.
#[derive(Debug)]
pub struct NativeReader<R> {
    input: Input<R>,
    decoder: Decoder,
    head: Option<NativeHead>,
    skipped: Skipped,
    /// Beginning of the part that is being skipped.
    bad_from: Option<u64>,
    unpacked: Vec<u8>,
}

impl<R: Read> NativeReader<R> {
    /// Creates a reader and reads the head of the file. A file in another format, or of another version, gives no
    /// batches, and [`skipped`](Self::skipped) reports this.
    pub fn new(input: R) -> NativeReader<R> {
        let mut reader = NativeReader {
            input: Input { input, buffer: Vec::new(), from: 0, at: 0, is_over: false, error: None },
            decoder: Decoder::new(),
            head: None,
            skipped: Skipped::default(),
            bad_from: None,
            unpacked: Vec::new(),
        };
        reader.read_head();
        reader
    }

    /// Returns the head of the file, which names the job and process that made the records; `None` if the head is
    /// damaged.
    #[must_use]
    pub const fn head(&self) -> Option<&NativeHead> {
        self.head.as_ref()
    }

    /// Returns the parts of the file that this reader has skipped so far; complete once there are no more batches.
    #[must_use]
    pub const fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    fn read_head(&mut self) {
        let Some(bytes) = self.input.peek(HEAD_BYTES).first_chunk().copied() else {
            let begins_as_ours = !self.input.rest().is_empty() && FileFrame::may_begin_with(self.input.rest());
            let bytes = self.input.skip_all();
            if begins_as_ours {
                self.skipped.push(Problem::Torn { at: 0, bytes });
            } else if bytes > 0 {
                self.skipped.push(Problem::Foreign { bytes });
            }
            return;
        };
        let Some(frame) = FileFrame::of(&bytes) else {
            let bytes = self.input.skip_all();
            return self.skipped.push(Problem::Foreign { bytes });
        };
        let text = self.input.peek(HEAD_BYTES + frame.text_bytes).get(HEAD_BYTES..).unwrap_or_default();
        if !frame.is_sound(&bytes, text) {
            self.bad_from = Some(0); // some block may still be readable
            return;
        }
        self.head = NativeHead::of_text(text);
        if frame.version != FORMAT_VERSION {
            let bytes = self.input.skip_all();
            return self.skipped.push(Problem::Version { version: frame.version, bytes });
        }
        self.input.pass(HEAD_BYTES + frame.text_bytes);
    }

    /// Reads the next block, if a valid one begins here.
    fn read_block(&mut self) -> Block {
        let Some(frame) = self.input.peek(FRAME_BYTES).first_chunk().map(Frame::of) else {
            return if self.input.rest().is_empty() { Block::End } else { Block::Cut };
        };
        let Some(frame) = frame.filter(|frame| frame.payload_bytes <= BLOCK_BYTES_MAX) else { return Block::None };
        let length = FRAME_BYTES + frame.payload_bytes;
        let Some(payload) = self.input.peek(length).get(FRAME_BYTES..length) else { return Block::Cut };
        let batch = frame.is_sound(payload).then(|| {
            let payload = if frame.is_compressed { unpack(payload, &mut self.unpacked)? } else { payload };
            self.decoder.decode(frame.is_key, payload)
        });
        self.input.pass(length);
        batch.flatten().map_or(Block::Unsound, Block::Batch)
    }

    /// Moves to the next position where a block may begin.
    fn find_block(&mut self) {
        loop {
            self.input.pass(1);
            let window = self.input.peek(READ_BYTES);
            let starts = window.windows(FRAME_BYTES);
            let found = starts.map(|start| start.first_chunk().and_then(Frame::of)).position(|frame| frame.is_some());
            let is_last = window.len() < READ_BYTES;
            let beyond = (window.len() + 1).saturating_sub(FRAME_BYTES);
            match found {
                Some(at) => return self.input.pass(at),
                None if is_last => {
                    self.input.skip_all();
                    return;
                }
                None => self.input.pass(beyond - 1),
            }
        }
    }

    /// Ends the part that is being skipped.
    fn end_bad(&mut self, upto: u64, is_at_end: bool) {
        if let Some(at) = self.bad_from.take() {
            let bytes = upto - at;
            self.skipped.push(if is_at_end { Problem::Torn { at, bytes } } else { Problem::Damaged { at, bytes } });
        }
    }
}

/// Result of reading a block at a position of the file.
enum Block {
    Batch(RecordBatch),
    /// A block that cannot be used.
    Unsound,
    /// The file ends within a block.
    Cut,
    /// No block begins here.
    None,
    End,
}

impl<R: Read> Iterator for NativeReader<R> {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        loop {
            let at = self.input.at;
            let block = self.read_block();
            if let Block::Batch(batch) = block {
                self.end_bad(at, false);
                return Some(batch);
            }
            self.decoder.lose_track();
            if !matches!(block, Block::End) {
                self.bad_from.get_or_insert(at);
            }
            match block {
                Block::Batch(_) | Block::Unsound => {}
                Block::None => self.find_block(),
                Block::Cut | Block::End => {
                    self.input.skip_all();
                    self.end_bad(self.input.at, true);
                    if let Some(error) = self.input.error.take() {
                        self.skipped.push(Problem::Unreadable { at: self.input.at, reason: error.to_string() });
                    }
                    return None;
                }
            }
        }
    }
}

/// Decompresses a payload.
fn unpack<'a>(payload: &[u8], unpacked: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let mut bytes = Bytes(payload);
    let length = usize::try_from(bytes.next()?).ok()?;
    if length > BLOCK_BYTES_MAX.min(bytes.0.len().saturating_mul(EXPANSION_MAX)) {
        return None;
    }
    unpacked.resize(length, 0);
    let written = lz4_flex::block::decompress_into(bytes.0, unpacked).ok()?;
    (written == length).then_some(unpacked)
}

/// The file, with a read-ahead buffer.
#[derive(Debug)]
struct Input<R> {
    input: R,
    buffer: Vec<u8>,
    /// Number of bytes consumed from the buffer.
    from: usize,
    /// Number of bytes consumed from the file.
    at: u64,
    is_over: bool,
    error: Option<io::Error>,
}

impl<R: Read> Input<R> {
    /// Returns the next `length` bytes, or as many as there are, without consuming them.
    fn peek(&mut self, length: usize) -> &[u8] {
        let has = self.buffer.len() - self.from;
        if has < length && !self.is_over {
            self.buffer.drain(..self.from);
            self.from = 0;
            let more = (length - has).max(READ_BYTES) as u64;
            match (&mut self.input).take(more).read_to_end(&mut self.buffer) {
                Ok(read) => self.is_over = (read as u64) < more,
                Err(error) => (self.is_over, self.error) = (true, Some(error)),
            }
        }
        let rest = self.rest();
        &rest[..length.min(rest.len())]
    }

    /// Returns the buffered bytes.
    fn rest(&self) -> &[u8] {
        &self.buffer[self.from..]
    }

    /// Consumes `length` buffered bytes.
    fn pass(&mut self, length: usize) {
        let length = length.min(self.buffer.len() - self.from);
        self.from += length;
        self.at += length as u64;
    }

    /// Consumes the rest of the file. Returns the file's length.
    fn skip_all(&mut self) -> u64 {
        while !self.peek(READ_BYTES).is_empty() {
            self.pass(READ_BYTES);
        }
        self.at
    }
}

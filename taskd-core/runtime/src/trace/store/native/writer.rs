//! Writer of a native file.
//!
//! Each batch is written immediately, with one call: batches that a process had written are in the file when it dies.

use super::encode::{Encoder, Part};
use super::frame::{FRAME_BYTES, Frame, NativeHead};
use super::varint::put;
use super::{BLOCK_RECORDS_MAX, KEY_EVERY_BYTES, NAMES_BYTES_MAX, NAMES_MAX};
use crate::trace::{NameTable, Origin, RecordBatch, TimedRecord};
use std::io::{self, Write};
use std::sync::Arc;

/// Minimum length of a payload for which compression is tried.
const COMPRESSED_BYTES_MIN: usize = 256;
/// Names, threads and shapes in key blocks may take at most one part in this many of the file.
const KEY_SHARE: u64 = 16;

/// Writes batches in the native format: binary blocks, a few bytes per record.
#[derive(Debug)]
pub struct NativeWriter<W> {
    out: W,
    encoder: Encoder,
    /// The process of the last block; `None` if a key block has to come next.
    origin: Option<Origin>,
    /// Size of names, threads and shapes in the last key block, and bytes written since that block.
    key_bytes: u64,
    since_key: u64,
    written: u64,
    payload: Vec<u8>,
    /// The blocks of one batch.
    blocks: Vec<u8>,
}

impl<W: Write> NativeWriter<W> {
    /// Creates a writer, and writes the head of the file.
    ///
    /// # Errors
    /// Returns an error if the head cannot be written.
    pub fn create(mut out: W, head: &NativeHead) -> io::Result<NativeWriter<W>> {
        let head = head.encode();
        out.write_all(&head)?;
        Ok(NativeWriter {
            out,
            encoder: Encoder::new(),
            origin: None,
            key_bytes: 0,
            since_key: 0,
            written: head.len() as u64,
            payload: Vec::new(),
            blocks: Vec::new(),
        })
    }

    /// Writes a batch: one block, or several for more than [`BLOCK_RECORDS_MAX`] records. A user-defined kind beyond
    /// [`USER_KINDS_MAX`](crate::trace::recorder::USER_KINDS_MAX) is written as the last user-defined kind, as in the
    /// recorder.
    ///
    /// # Errors
    /// Returns an error if the write fails, or if the batch's table of names has more than [`NAMES_MAX`] names or more
    /// than [`NAMES_BYTES_MAX`] bytes of names. If the write failed after a part of the batch, truncate the file to
    /// [`written`](Self::written) bytes: then the next batch can be written.
    pub fn append(&mut self, batch: &RecordBatch) -> io::Result<()> {
        if !self.encoder.continues(&batch.names) {
            check(&batch.names)?;
            self.origin = None;
        }
        self.blocks.clear();
        let (first, rest) = batch.records.split_at(batch.records.len().min(BLOCK_RECORDS_MAX));
        self.add_block(batch, batch.lost, first);
        rest.chunks(BLOCK_RECORDS_MAX).for_each(|records| self.add_block(batch, 0, records));
        self.origin = None; // restored when the write has succeeded
        self.out.write_all(&self.blocks)?;
        self.origin = Some(batch.origin);
        self.written += self.blocks.len() as u64;
        Ok(())
    }

    fn add_block(&mut self, batch: &RecordBatch, lost: u64, records: &[TimedRecord]) {
        let is_key = self.origin != Some(batch.origin)
            || self.since_key >= KEY_EVERY_BYTES.max(self.key_bytes * KEY_SHARE)
            || self.encoder.is_full();
        let key = is_key.then_some(batch.origin);
        self.payload.clear();
        let new = self.encoder.encode(&Part { key, names: &batch.names, lost, records }, &mut self.payload) as u64;
        if is_key {
            (self.origin, self.key_bytes, self.since_key) = (key, new, 0);
        }
        let length = add_framed(&mut self.blocks, is_key, &self.payload);
        self.since_key += length as u64;
    }

    /// Returns the length of the head and all complete blocks, in bytes.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Returns the error of the output if the output cannot be flushed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns the output.
    #[must_use]
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Returns a reference to the output.
    #[must_use]
    pub const fn get_ref(&self) -> &W {
        &self.out
    }
}

/// Appends a payload in its frame, compressed if that is shorter. Returns the length including the frame.
fn add_framed(out: &mut Vec<u8>, is_key: bool, payload: &[u8]) -> usize {
    let start = out.len();
    let from = start + FRAME_BYTES;
    out.resize(from, 0);
    let is_compressed = payload.len() >= COMPRESSED_BYTES_MIN && {
        put(out, payload.len() as u64);
        let at = out.len();
        out.resize(at + lz4_flex::block::get_maximum_output_size(payload.len()), 0);
        let compressed = lz4_flex::block::compress_into(payload, &mut out[at..]);
        let end = compressed.map_or(out.len(), |length| at + length);
        out.truncate(end);
        end - from < payload.len()
    };
    if !is_compressed {
        out.truncate(from);
        out.extend_from_slice(payload);
    }
    let frame = Frame::encode(is_key, is_compressed, &out[from..]);
    out[start..from].copy_from_slice(&frame);
    out.len() - start
}

fn check(names: &Arc<NameTable>) -> io::Result<()> {
    let bytes: usize = names.iter().map(|(_, name)| name.len()).sum();
    if names.len() <= NAMES_MAX && bytes <= NAMES_BYTES_MAX {
        return Ok(());
    }
    let count = names.len();
    let most = format!("at most {NAMES_MAX} of {NAMES_BYTES_MAX} bytes can be stored");
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{count} names of {bytes} bytes: {most}")))
}

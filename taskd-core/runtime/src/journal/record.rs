//! Frame around every record of a log: length, kind, input number, time and two checksums.
//!
//! This module does not depend on files or on the meaning of records. Invalid bytes are skipped and reported, never
//! trusted: the length counts only if the frame's own checksum is right, the payload only if its checksum is right.
//!
//! ```text
//! 0        4      5        8        16        24             28            32
//! | length | kind | "tkd"  | input  | job time | payload crc | frame crc  | payload … |
//! ```
//!
//! All numbers are little-endian; the job time is in nanoseconds; `length` counts the payload only.

use crate::job::{JobTime, Seq};

/// Size of a frame, in bytes.
pub(super) const FRAME_BYTES: usize = 32;

/// Largest payload, in bytes. The state of a million ranks in the middle of a restart fits (470 bytes per rank). A
/// larger record is not written but counted as lost.
pub(super) const PAYLOAD_BYTES_MAX: usize = 512 << 20;

const MARK: [u8; 3] = *b"tkd";

/// Kind of a record. The kind determines the form of the payload: *compact* for observations, otherwise *named*
/// ([`form`](super::form)). A number never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// First record of every file: a [`FileHead`](super::header::FileHead).
    Head = 0,
    /// An input other than observations, with all its commands: a [`InputRecord`](super::steps::InputRecord).
    Step = 1,
    /// Commands of observations. The observations have the same number in the other log.
    Commands = 2,
    /// Observations that led to no command.
    Quiet = 3,
    /// Observations that led to commands.
    Led = 4,
    /// Inputs missing before the next record, with the reason: a [`Gap`](super::Gap).
    Gap = 5,
    /// State of a kernel.
    Snapshot = 6,
}

impl Kind {
    const ALL: [Kind; 7] = [Kind::Head, Kind::Step, Kind::Commands, Kind::Quiet, Kind::Led, Kind::Gap, Kind::Snapshot];
}

/// A record in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) kind: Kind,
    pub(super) seq: Seq,
    pub(super) now: JobTime,
    pub(super) payload: &'a [u8],
}

/// Content of a buffer at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// A valid record.
    Record(Record<'a>),
    /// Bytes that are no valid record. The next valid record, or the end of the buffer, follows them.
    Bad {
        bytes: usize,
        /// True if no valid record follows.
        at_end: bool,
    },
    /// End of the buffer.
    End,
}

impl Found<'_> {
    /// Returns the length in bytes.
    pub(super) const fn len(&self) -> usize {
        match self {
            Found::Record(record) => FRAME_BYTES + record.payload.len(),
            Found::Bad { bytes, .. } => *bytes,
            Found::End => 0,
        }
    }
}

/// Appends one record to `out`, with the payload that `fill` appends. On an error, `out` is unchanged.
pub(super) fn encode(
    out: &mut Vec<u8>,
    kind: Kind,
    seq: Seq,
    now: JobTime,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    let framed = encode_framed(out, start, kind, seq, now, fill);
    if framed.is_err() {
        out.truncate(start);
    }
    framed
}

fn encode_framed(
    out: &mut Vec<u8>,
    start: usize,
    kind: Kind,
    seq: Seq,
    now: JobTime,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    out.resize(start + FRAME_BYTES, 0);
    fill(out)?;
    let (before, payload) = out.split_at_mut(start + FRAME_BYTES);
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= PAYLOAD_BYTES_MAX);
    let length = length.ok_or(EncodeError::TooLarge { bytes: payload.len() })?;
    let frame = &mut before[start..];
    frame[0..4].copy_from_slice(&length.to_le_bytes());
    frame[4] = kind as u8;
    frame[5..8].copy_from_slice(&MARK);
    frame[8..16].copy_from_slice(&seq.0.to_le_bytes());
    frame[16..24].copy_from_slice(&now.as_nanos().to_le_bytes());
    frame[24..28].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let check = crc32fast::hash(&frame[..28]);
    frame[28..32].copy_from_slice(&check.to_le_bytes());
    Ok(())
}

/// Returns the content at offset `at`.
pub(super) fn find(bytes: &[u8], at: usize) -> Found<'_> {
    let rest = bytes.get(at..).unwrap_or_default();
    if rest.is_empty() {
        return Found::End;
    }
    if let Some(record) = sound(rest) {
        return Found::Record(record);
    }
    // A frame with an invalid payload still locates the next record, unless the payload is cut off.
    let claimed = frame(rest).map_or(1, |frame| frame.end.min(rest.len()));
    let next = (claimed..rest.len()).find(|from| sound(&rest[*from..]).is_some());
    Found::Bad { bytes: next.unwrap_or(rest.len()), at_end: next.is_none() }
}

struct Frame {
    kind: Kind,
    seq: Seq,
    now: JobTime,
    payload_check: u32,
    end: usize,
}

fn frame(bytes: &[u8]) -> Option<Frame> {
    let frame: &[u8; FRAME_BYTES] = bytes.first_chunk()?;
    if frame[5..8] != MARK || crc32fast::hash(&frame[..28]).to_le_bytes() != frame[28..32] {
        return None;
    }
    let word = |from: usize| u32::from_le_bytes([frame[from], frame[from + 1], frame[from + 2], frame[from + 3]]);
    let long = |from: usize| u64::from(word(from)) | u64::from(word(from + 4)) << 32;
    Some(Frame {
        kind: *Kind::ALL.get(usize::from(frame[4]))?,
        seq: Seq(long(8)),
        now: JobTime::from_nanos(long(16)),
        payload_check: word(24),
        end: usize::try_from(word(0)).ok()?.checked_add(FRAME_BYTES)?,
    })
}

fn sound(bytes: &[u8]) -> Option<Record<'_>> {
    let Frame { kind, seq, now, payload_check, end } = frame(bytes)?;
    let payload = bytes.get(FRAME_BYTES..end)?;
    (crc32fast::hash(payload) == payload_check).then_some(Record { kind, seq, now, payload })
}

/// Error of encoding a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EncodeError {
    /// A value cannot be encoded, for example a path that is not UTF-8.
    #[error("it cannot be encoded: {0}")]
    Form(String),
    /// The payload of a record is larger than [`PAYLOAD_BYTES_MAX`].
    #[error("a record of {bytes} bytes is larger than {PAYLOAD_BYTES_MAX}")]
    TooLarge { bytes: usize },
}

#[cfg(test)]
mod tests;

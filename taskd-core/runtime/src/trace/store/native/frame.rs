//! The head of a file, and the frame around each block.
//!
//! A length is used only if the frame's own checksum is right, a payload only if its checksum is.

use crate::job::{Incarnation, Rank};
use crate::trace::Origin;
use serde::{Deserialize, Serialize};

/// Version of the native file format that this program writes, and the only version that it reads.
pub const FORMAT_VERSION: u32 = 2;

/// Head of a native file: the job and the process whose trace records the file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeHead {
    /// The job's name or id; cut to 1,024 bytes in the file.
    pub job: String,
    /// Process that made the records in the file's first block. Later blocks may have records of a later incarnation of
    /// the rank.
    pub origin: Origin,
}

/// Maximum length of the job's name in bytes.
pub(super) const JOB_BYTES_MAX: usize = 1024;
/// Maximum length of the head's text in bytes: every character of the job's name may be escaped.
const TEXT_BYTES_MAX: usize = 8 * JOB_BYTES_MAX;
/// Length of the head before its text, in bytes.
pub(super) const HEAD_BYTES: usize = 20;
/// Length of a block before its payload, in bytes.
pub(super) const FRAME_BYTES: usize = 16;

const FILE_MARK: [u8; 8] = *b"taskdtrc";
const BLOCK_MARK: [u8; 3] = *b"tkb";
const KEY: u8 = 1;
const COMPRESSED: u8 = 2;

/// The head's text.
#[derive(Serialize, Deserialize)]
struct Text<'a> {
    #[serde(borrow)]
    job: std::borrow::Cow<'a, str>,
    rank: u32,
    incarnation: u32,
    pid: u32,
}

impl NativeHead {
    /// Encodes the head for the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Origin { rank, incarnation, pid } = self.origin;
        let job = cut(&self.job, JOB_BYTES_MAX).into();
        let text = Text { job, rank: rank.0, incarnation: incarnation.0, pid };
        let text = serde_json::to_vec(&text).unwrap_or_default(); // a string and three numbers can always be serialized
        let mut bytes = Vec::with_capacity(HEAD_BYTES + text.len());
        bytes.extend_from_slice(&FILE_MARK);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&length(&text).to_le_bytes());
        bytes.extend_from_slice(&checked(&bytes, &text).to_le_bytes());
        bytes.extend_from_slice(&text);
        bytes
    }

    /// Parses the head's text.
    pub(super) fn of_text(text: &[u8]) -> Option<NativeHead> {
        let Text { job, rank, incarnation, pid } = serde_json::from_slice(text).ok()?;
        let origin = Origin { rank: Rank(rank), incarnation: Incarnation(incarnation), pid };
        Some(NativeHead { job: job.into_owned(), origin })
    }
}

/// The fixed part of a file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileFrame {
    pub(super) version: u32,
    pub(super) text_bytes: usize,
    check: u32,
}

impl FileFrame {
    /// Returns true if these bytes can be the beginning of a native file.
    pub(super) fn may_begin_with(bytes: &[u8]) -> bool {
        FILE_MARK.starts_with(&bytes[..bytes.len().min(FILE_MARK.len())])
    }

    /// Parses the fixed part; `None` if the file is not a native file.
    pub(super) fn of(bytes: &[u8; HEAD_BYTES]) -> Option<FileFrame> {
        let text_bytes = usize::try_from(word(bytes, 12)).ok()?;
        let frame = FileFrame { version: word(bytes, 8), text_bytes, check: word(bytes, 16) };
        (bytes[..8] == FILE_MARK && text_bytes <= TEXT_BYTES_MAX).then_some(frame)
    }

    /// Returns true if the checksum of head and text is right.
    pub(super) fn is_sound(&self, bytes: &[u8; HEAD_BYTES], text: &[u8]) -> bool {
        checked(&bytes[..16], text) == self.check
    }
}

/// The header of a block's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) is_key: bool,
    pub(super) is_compressed: bool,
    pub(super) payload_bytes: usize,
    payload_check: u32,
}

impl Frame {
    /// Parses the header; `None` if no block begins here.
    pub(super) fn of(bytes: &[u8; FRAME_BYTES]) -> Option<Frame> {
        if bytes[..3] != BLOCK_MARK || crc32fast::hash(&bytes[..12]) != word(bytes, 12) {
            return None;
        }
        Some(Frame {
            is_key: bytes[3] & KEY != 0,
            is_compressed: bytes[3] & COMPRESSED != 0,
            payload_bytes: usize::try_from(word(bytes, 4)).ok()?,
            payload_check: word(bytes, 8),
        })
    }

    /// Returns true if the payload's checksum is right.
    pub(super) fn is_sound(&self, payload: &[u8]) -> bool {
        crc32fast::hash(payload) == self.payload_check
    }

    /// Encodes the header of a payload.
    pub(super) fn encode(is_key: bool, is_compressed: bool, payload: &[u8]) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[..3].copy_from_slice(&BLOCK_MARK);
        bytes[3] = if is_key { KEY } else { 0 } | if is_compressed { COMPRESSED } else { 0 };
        bytes[4..8].copy_from_slice(&length(payload).to_le_bytes());
        bytes[8..12].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
        let check = crc32fast::hash(&bytes[..12]);
        bytes[12..].copy_from_slice(&check.to_le_bytes());
        bytes
    }
}

/// Cuts a text to a length in bytes, at a character boundary.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Returns the length of `bytes`, which is at most [`BLOCK_BYTES_MAX`](super::BLOCK_BYTES_MAX).
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn checked(head: &[u8], text: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(text);
    hasher.finalize()
}

fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

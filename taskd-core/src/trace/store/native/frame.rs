//! The head of a file, and the frame around every block of it.
//!
//! It knows nothing of what a block holds. A length counts only when the frame's own check sum is right, a payload only when its
//! check sum is.

use crate::job::{Incarnation, Rank};
use crate::trace::Origin;
use serde::{Deserialize, Serialize};

/// The version that is written. Version 1 has neither spans nor work of devices, and is read as well.
pub const FORMAT_VERSION: u32 = 2;
/// The oldest version that is read.
pub(super) const FORMAT_VERSION_MIN: u32 = 1;

/// Whose records a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeHead {
    /// The job's name or id; the file has its first 1,024 bytes.
    pub job: String,
    /// The process of the first block. Later ones may be of a later incarnation of the rank.
    pub origin: Origin,
}

/// Bytes of the job's name, at most.
pub(super) const JOB_BYTES_MAX: usize = 1024;
/// Bytes of the head's text, at most: every character of the job's name may be escaped.
const TEXT_BYTES_MAX: usize = 8 * JOB_BYTES_MAX;
/// Bytes of the head before its text.
pub(super) const HEAD_BYTES: usize = 20;
/// Bytes of a block before its payload.
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
    /// As it stands in the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Origin { rank, incarnation, pid } = self.origin;
        let job = cut(&self.job, JOB_BYTES_MAX).into();
        let text = Text { job, rank: rank.0, incarnation: incarnation.0, pid };
        let text = serde_json::to_vec(&text).unwrap_or_default(); // a text and three numbers always have a form
        let mut bytes = Vec::with_capacity(HEAD_BYTES + text.len());
        bytes.extend_from_slice(&FILE_MARK);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&length(&text).to_le_bytes());
        bytes.extend_from_slice(&checked(&bytes, &text).to_le_bytes());
        bytes.extend_from_slice(&text);
        bytes
    }

    /// The head of its text.
    pub(super) fn of_text(text: &[u8]) -> Option<NativeHead> {
        let Text { job, rank, incarnation, pid } = serde_json::from_slice(text).ok()?;
        let origin = Origin { rank: Rank(rank), incarnation: Incarnation(incarnation), pid };
        Some(NativeHead { job: job.into_owned(), origin })
    }
}

/// How a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileFrame {
    pub(super) version: u32,
    pub(super) text_bytes: usize,
    check: u32,
}

impl FileFrame {
    /// Whether a file of ours may begin so.
    pub(super) fn may_begin_with(bytes: &[u8]) -> bool {
        FILE_MARK.starts_with(&bytes[..bytes.len().min(FILE_MARK.len())])
    }

    /// `None` for a file that is none of ours.
    pub(super) fn of(bytes: &[u8; HEAD_BYTES]) -> Option<FileFrame> {
        let text_bytes = usize::try_from(word(bytes, 12)).ok()?;
        let frame = FileFrame { version: word(bytes, 8), text_bytes, check: word(bytes, 16) };
        (bytes[..8] == FILE_MARK && text_bytes <= TEXT_BYTES_MAX).then_some(frame)
    }

    /// Whether head and text are as they were written.
    pub(super) fn is_sound(&self, bytes: &[u8; HEAD_BYTES], text: &[u8]) -> bool {
        checked(&bytes[..16], text) == self.check
    }
}

/// What stands before a block's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) is_key: bool,
    pub(super) is_compressed: bool,
    pub(super) payload_bytes: usize,
    payload_check: u32,
}

impl Frame {
    /// `None` where no block begins.
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

    /// Whether a payload is as it was written.
    pub(super) fn is_sound(&self, payload: &[u8]) -> bool {
        crc32fast::hash(payload) == self.payload_check
    }

    /// What stands before such a payload.
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

/// The beginning of a text, of so many bytes at most.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// Its length. Nothing here is longer than [`BLOCK_BYTES_MAX`](super::BLOCK_BYTES_MAX).
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

//! Frames of JSON on a Unix socket: a message's length (`u32`, little endian) and that many bytes.
//!
//! The guard, the control links and the store of PyTorch use them, each with its own messages and limits. Hidden from
//! the documentation: no program outside this workspace shall depend on it.

use serde::{Serialize, de::DeserializeOwned};
use std::io;

/// Encodes a message as a frame: a length of four bytes, then the message in JSON with at most `bytes_max` bytes.
///
/// # Errors
/// Fails for a message that is longer, or that JSON cannot represent.
pub fn encode(message: &impl Serialize, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    let prefix = u32::try_from(length).ok().filter(|_| length <= bytes_max);
    let prefix = prefix.ok_or_else(|| io::Error::other(format!("a message of {length} bytes is too long")))?;
    frame[..4].copy_from_slice(&prefix.to_le_bytes());
    Ok(frame)
}

/// Splits a received byte stream into frames, each of which consists of a length and a JSON message.
#[derive(Debug)]
pub struct Frames {
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` that were returned.
    taken: usize,
    /// Maximum accepted length of a frame, in bytes.
    pub bytes_max: usize,
}

impl Frames {
    /// Creates a splitter that has received no bytes yet, for frames of at most `bytes_max` bytes.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Frames {
        Frames { buffer: Vec::new(), taken: 0, bytes_max }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Decodes and returns the next message, or `None` if it is not complete yet.
    ///
    /// # Errors
    /// Fails for a frame longer than `bytes_max`, or an invalid message. The bytes after it cannot be trusted.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let rest = &self.buffer[self.taken..];
        let Some((prefix, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > self.bytes_max {
            return Err(io::Error::other(format!("a frame of {length} bytes is beyond {} bytes", self.bytes_max)));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(frame)?;
        self.taken += 4 + length;
        if self.taken == self.buffer.len() {
            self.buffer = Vec::new(); // a large batch must not stay in memory
            self.taken = 0;
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let bytes: Vec<u8> = ["seven", "eight"].iter().flat_map(|text| encode(text, 10).unwrap()).collect();
        for cut in 0..bytes.len() {
            let mut frames = Frames::new(10);
            let mut seen = Vec::<String>::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                frames.push(part);
                while let Some(text) = frames.next_message().unwrap() {
                    seen.push(text);
                }
            }
            assert_eq!(seen, ["seven", "eight"], "cut at {cut}");
        }
    }

    #[test]
    fn a_frame_beyond_the_bound_and_garbage_are_errors() {
        assert!(encode(&"nine bytes", 10).is_err());
        for wrong in [&11u32.to_le_bytes()[..], &u32::MAX.to_le_bytes(), b"\x02\0\0\0{]", b"\x03\0\0\x00123"] {
            let mut frames = Frames::new(10);
            frames.push(wrong);
            assert!(frames.next_message::<String>().is_err(), "{wrong:?}");
        }
    }
}

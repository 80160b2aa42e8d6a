//! What a store's process and those who control it say to each other.
//!
//! A frame is its length (`u32`, little endian) and that many bytes of JSON. The listener of a `serve` comes with the first
//! byte of its frame, as `SCM_RIGHTS`. Who controls begins with [`ToStore::Hello`]; then each call is answered under its number,
//! in the order of the calls. Whoever sends more than the bound, or what is not a message, loses the connection.

use super::super::stats::Stats;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io;
use taskd_core::job::Generation;

/// Version of everything in this file. Both sides must have the same.
pub(super) const PROTOCOL: u32 = 1;
/// Longest frame, in bytes.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 10;

/// To the store.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToStore {
    /// The first frame.
    Hello { protocol: u32 },
    /// A request; answered under the same number.
    Call { id: u64, call: Call },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Call {
    /// Its listener comes along.
    Serve {
        generation: Generation,
    },
    Retire {
        generation: Generation,
    },
    Stats,
}

/// From the store.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromStore {
    /// The answer to the first frame, also of one that speaks another version: then nothing follows.
    Welcome { protocol: u32, pid: u32 },
    /// The answer to a call.
    Answer { id: u64, answer: Result<Answer, Refusal> },
}

/// What a call comes to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Served,
    Retired { was_served: bool },
    Stats(Box<Stats>),
}

/// Why a generation is not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// It is served.
    #[error("generation {} is served already, at {address}: retire it first, or use it", .generation.0)]
    AlreadyServed {
        /// Which.
        generation: Generation,
        /// Where.
        address: String,
    },
    /// It is over, and what is over never comes back.
    #[error("generation {} is over, because {} was retired: serve a newer one", .generation.0, .newest.0)]
    Retired {
        /// Which.
        generation: Generation,
        /// The newest that was retired.
        newest: Generation,
    },
    /// [`Limits::generations`](super::super::Limits::generations)
    #[error("{limit} generations are served, and that is the limit: retire one first")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// What was handed over cannot be listened at.
    #[error("the socket for generation {} {why}: hand over a TCP socket that is bound and listens", .generation.0)]
    NotAListener {
        /// For which generation.
        generation: Generation,
        /// What is wrong with it.
        why: String,
    },
    /// No socket came along.
    #[error("no socket came with the call to serve generation {}: send its listener with it (SCM_RIGHTS)", .generation.0)]
    NoListener {
        /// For which generation.
        generation: Generation,
    },
    /// The system refuses.
    #[error("generation {} cannot be served: {reason}", .generation.0)]
    System {
        /// Which.
        generation: Generation,
        /// The system's reason.
        reason: String,
    },
}

/// A message as a frame.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    let prefix = u32::try_from(length).ok().filter(|_| length <= FRAME_BYTES_MAX);
    let prefix = prefix.ok_or_else(|| io::Error::other(format!("a message of {length} bytes is too long")))?;
    frame[..4].copy_from_slice(&prefix.to_le_bytes());
    Ok(frame)
}

/// Takes the next whole message off the front, if one is there.
///
/// # Errors
/// For a frame beyond the bound or one that is not such a message; nothing after it can be trusted.
pub(super) fn decode<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some((prefix, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a frame of {length} bytes is beyond {FRAME_BYTES_MAX} bytes")));
    }
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let message = serde_json::from_slice(frame)?;
    buffer.drain(..4 + length);
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let calls =
            [Call::Serve { generation: Generation(3) }, Call::Retire { generation: Generation(3) }, Call::Stats];
        let bytes: Vec<u8> =
            (7..).zip(calls).flat_map(|(id, call)| encode(&ToStore::Call { id, call }).unwrap()).collect();
        for cut in 0..bytes.len() {
            let (mut buffer, mut seen) = (Vec::new(), Vec::new());
            for part in [&bytes[..cut], &bytes[cut..]] {
                buffer.extend_from_slice(part);
                while let Some(ToStore::Call { call, .. }) = decode(&mut buffer).unwrap() {
                    seen.push(call);
                }
            }
            assert_eq!(seen, calls, "cut at {cut}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_frame_beyond_the_bound_and_garbage_are_errors() {
        let mut buffer = u32::MAX.to_le_bytes().to_vec();
        assert!(decode::<ToStore>(&mut buffer).is_err());
        assert!(decode::<ToStore>(&mut b"\x02\0\0\0{]".to_vec()).is_err());
        assert!(decode::<ToStore>(&mut b"\x0a\0\0\0{\"hello\":1}".to_vec()).is_err());
    }

    #[test]
    fn the_first_version_stays_as_it_is() {
        let text = |message: &ToStore| serde_json::to_string(message).unwrap();
        assert_eq!(text(&ToStore::Hello { protocol: 1 }), r#"{"hello":{"protocol":1}}"#);
        let call = Call::Serve { generation: Generation(3) };
        assert_eq!(text(&ToStore::Call { id: 7, call }), r#"{"call":{"id":7,"call":{"serve":{"generation":3}}}}"#);
    }
}

//! The messages between a store's process and its controllers.
//!
//! A frame is its length (`u32`, little endian) and that many bytes of JSON. The listener of a `serve` is passed with
//! the first byte of its frame, as `SCM_RIGHTS`. A controller begins with [`ToStore::Hello`]; then each call is
//! answered under its number, in the order of the calls. A controller that sends more than the bound, or an invalid
//! message, loses the connection.

use super::super::stats::Stats;
use serde::{Deserialize, Serialize};
use std::io;
use taskd_core::job::Generation;
use taskd_core::launch::frames;

/// Version of the whole protocol. Both sides must have the same.
pub(super) const PROTOCOL: u32 = 1;
/// Maximum length of a frame, in bytes.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 10;

/// A message to the store.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToStore {
    /// The first message of a controller, with its version of the control protocol.
    Hello { protocol: u32 },
    /// A request of a controller; the store answers it under the same number, `id`.
    Call { id: u64, call: Call },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Call {
    /// Makes the store serve a generation of ranks. The listener is passed with the message, as a descriptor.
    Serve {
        generation: Generation,
    },
    Retire {
        generation: Generation,
    },
    Stats,
}

/// A message from the store.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromStore {
    /// The store's answer to a controller's first message, with its version of the protocol and its pid. It is also
    /// sent to a controller with another version; no answers to calls follow then.
    Welcome { protocol: u32, pid: u32 },
    /// The store's answer to the call with the same number, `id`.
    Answer { id: u64, answer: Result<Answer, Refusal> },
}

/// The result of a call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Served,
    Retired { was_served: bool },
    Stats(Box<Stats>),
}

/// Reasons why the store refuses to serve a generation of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The store already serves the generation that was to be added.
    #[error("generation {} is served already, at {address}: retire it first, or use it", .generation.0)]
    AlreadyServed {
        /// The generation that was to be served.
        generation: Generation,
        /// The address of the listener at which the generation is served already.
        address: String,
    },
    /// The generation, or a newer one, was retired before. The store does not serve such a generation again.
    #[error("generation {} is over, because {} was retired: serve a newer one", .generation.0, .newest.0)]
    Retired {
        /// The generation that was to be served.
        generation: Generation,
        /// The newest generation that was retired; only newer ones can be added.
        newest: Generation,
    },
    /// The store already serves the maximum number of generations,
    /// [`Limits::generations`](super::super::Limits::generations).
    #[error("{limit} generations are served, and that is the limit: retire one first")]
    TooMany {
        /// The maximum number of generations that the store serves at one time.
        limit: usize,
    },
    /// The socket that was passed for the generation is not a listening TCP socket.
    #[error("the socket for generation {} {why}: pass a TCP socket that is bound and listens", .generation.0)]
    NotAListener {
        /// The generation that was to be served.
        generation: Generation,
        /// The reason why the socket cannot be used.
        why: String,
    },
    /// The caller passed no socket over the control socket with the call to serve the generation.
    #[error("no socket was passed with the call to serve generation {}: pass its listener (SCM_RIGHTS)", .generation.0)]
    NoListener {
        /// The generation that was to be served.
        generation: Generation,
    },
    /// A system call that the store needs to serve the generation failed.
    #[error("generation {} cannot be served: {reason}", .generation.0)]
    System {
        /// The generation that was to be served.
        generation: Generation,
        /// The operating system's error.
        reason: String,
    },
}

/// Encodes a message as a frame.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    frames::encode(message, FRAME_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_stays_as_it_is() {
        let text = |message: &ToStore| serde_json::to_string(message).unwrap();
        assert_eq!(text(&ToStore::Hello { protocol: 1 }), r#"{"hello":{"protocol":1}}"#);
        let call = Call::Serve { generation: Generation(3) };
        assert_eq!(text(&ToStore::Call { id: 7, call }), r#"{"call":{"id":7,"call":{"serve":{"generation":3}}}}"#);
    }
}

//! Sends and receives of one rank in a training step, from which the time of a transfer between two ranks follows.
//!
//! Plain data, passed from reducers to detectors.

use serde::{Deserialize, Serialize};

/// Maximum number of channels in one [`StepTransfers`]: the operations of further ones are counted as left out.
pub const CHANNELS_MAX: usize = 16;
/// Maximum number of operations of one channel in one step that are kept with their times. Later ones are only counted.
pub const TRANSFERS_MAX: usize = 8;

/// Sends and receives of one rank in one training step.
///
/// Only operations count during which the calling thread waits until the data was transferred, as `send` and `recv` of
/// PyTorch do with gloo. An operation that returns at once ends when the program waits for it, which may be much later;
/// and one on a device ends when it was launched: neither shows how long a transfer took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTransfers {
    /// Number of the step, as counted by the training script.
    pub step: u64,
    /// End of the step, in nanoseconds since 1970 by the calendar of the process's records.
    pub ended_unix_ns: u64,
    /// The channels, in the order of their first operations, at most [`CHANNELS_MAX`].
    pub channels: Vec<Channel>,
    /// Number of operations that were left out, because they belong to a channel beyond [`CHANNELS_MAX`].
    pub left_out: u32,
}

/// The operations of a step in one direction between two ranks, in one process group. Operations with less than half of
/// the bytes of the largest one do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Global rank of the other side.
    pub peer: u32,
    /// True if the rank sends, false if it receives.
    pub is_send: bool,
    /// Checksum (CRC-32) of the name of the process group: equal on both sides.
    pub group: u32,
    /// Number of operations.
    pub calls: u32,
    /// Shortest time of an operation from its beginning to its end, in nanoseconds.
    pub shortest_ns: u64,
    /// Times of the first operations, at most [`TRANSFERS_MAX`].
    pub first: Vec<TransferTime>,
}

/// One time of a send or receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferTime {
    /// Sequence number of the operation: equal on both sides.
    pub sequence: u64,
    /// Time from the beginning of a send, or from the end of a receive, to the end of the step, in nanoseconds.
    pub before_end_ns: u64,
}

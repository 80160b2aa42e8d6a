//! Messages between ranks over blocking sockets, and waiting for them.
//!
//! A wait ends when there is something to read, or when a peer is lost. It never ends because a peer is slow: only the
//! supervisor, which observes the whole job, can decide that.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::TrainerError;

/// The longest message of the rendezvous in bytes. Gradients and states are not messages: both sides know their length.
pub(super) const MAX_MESSAGE_BYTES: u32 = 4096;

/// A connection to another rank.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) rank: u32,
    pub(super) stream: TcpStream,
}

impl Peer {
    /// Returns the error that this peer is lost, because of `source`.
    pub(super) fn lost(&self, source: io::Error) -> TrainerError {
        TrainerError::PeerLost { rank: self.rank, source }
    }

    /// Sends `bytes`. In this program a rank has at most one message to a peer under way, which fits into the socket's
    /// buffer: so this does not block, whatever the peer does.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), TrainerError> {
        self.stream.write_all(bytes).map_err(|source| self.lost(source))
    }
}

/// Returns the error for the closed connection of a peer.
pub(super) fn connection_ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "its connection ended")
}

/// Fills `buffer` with bytes from the peer at `index`. Fails if any other of `peers` is lost: a frozen peer must not
/// hide the death of another.
pub(super) fn receive(peers: &mut [Peer], index: usize, buffer: &mut [u8]) -> Result<(), TrainerError> {
    let mut filled = 0;
    while filled < buffer.len() {
        wait_readable(peers[index].stream.as_fd(), peers, None)?;
        match peers[index].stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(peers[index].lost(connection_ended())),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(peers[index].lost(error)),
        }
    }
    Ok(())
}

/// Waits until `source` is readable (or at its end) and returns `true`, or until `deadline` and returns `false`. If one
/// of `peers` is lost before that, returns an error.
pub(super) fn wait_readable(
    source: BorrowedFd<'_>,
    peers: &[Peer],
    deadline: Option<Instant>,
) -> Result<bool, TrainerError> {
    let mut polled = vec![PollFd::from_borrowed_fd(source, PollFlags::IN)];
    polled.extend(peers.iter().map(|peer| PollFd::new(&peer.stream, PollFlags::RDHUP)));
    loop {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A duration that does not fit a timespec counts as no limit.
        let timeout = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) if !polled[0].revents().is_empty() => return Ok(true),
            Ok(_) => {
                let gone = peers.iter().zip(&polled[1..]).find(|(_, polled)| !polled.revents().is_empty());
                if let Some((peer, _)) = gone {
                    return Err(peer.lost(connection_ended()));
                }
            }
            // For example after the process was stopped and continued.
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(TrainerError::io("wait for other ranks")(error.into())),
        }
    }
}

/// Sends `message` as JSON after its length. Messages are short.
pub(super) fn send_message(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_le_bytes(), json.as_slice()].concat())
}

/// Receives what [`send_message`] sent. Reads no byte beyond the message, so that what follows is left in the socket.
/// Accepts any bytes; the time limit is set on the socket.
pub(super) fn receive_message<T: DeserializeOwned>(mut stream: &TcpStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a message of this program"));
    }
    let mut json = vec![0; length as usize];
    stream.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

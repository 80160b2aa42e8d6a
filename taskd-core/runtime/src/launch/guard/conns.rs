//! Connections: one of the owner, and a few of processes that request ownership.
//!
//! A connection never blocks the guard: messages that a peer has not read wait in a bounded buffer, and when it is
//! full, no more requests are read from that peer.

use super::poll::Interest;
use super::wire::{self, Frames, FromGuard, STRANGER_FRAME_BYTES_MAX};
use crate::launch::OnOwnerLoss;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Number of unread bytes above which no more requests of the peer are read.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// Number of unread bytes below which reports may be added.
const NEWS_BYTES_MAX: usize = 64 << 10;

/// Result of a read from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Some bytes were received; there may be more.
    Bytes,
    /// No bytes can be received for now.
    Nothing,
    /// The peer has closed the connection, and all its messages were read.
    End,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    stream: UnixStream,
    frames: Frames,
    out: Vec<u8>,
    sent: usize,
    pub(super) peer_pid: u32,
    /// Time at which it was accepted.
    pub(super) since: Instant,
    /// The events for which it is registered.
    pub(super) interest: Interest,
    /// True if it has to be closed once everything is sent.
    pub(super) leaving: bool,
    /// The request of a client that was welcomed and has not confirmed yet.
    pub(super) request: Option<OwnerRequest>,
}

/// Request of a process for ownership.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerRequest {
    pub(super) takeover: bool,
    pub(super) on_owner_loss: OnOwnerLoss,
}

impl Conn {
    /// Makes the connection of a peer that is not trusted yet; it is non-blocking from now on.
    pub(super) fn new(stream: UnixStream, peer_pid: u32, now: Instant) -> io::Result<Conn> {
        stream.set_nonblocking(true)?;
        let frames = Frames::new(STRANGER_FRAME_BYTES_MAX);
        Ok(Conn {
            stream,
            frames,
            out: Vec::new(),
            sent: 0,
            peer_pid,
            since: now,
            interest: Interest { bytes: true, room: false },
            leaving: false,
            request: None,
        })
    }

    /// Accepts long frames from the peer from now on.
    pub(super) fn trust(&mut self) {
        self.frames.bytes_max = wire::FRAME_BYTES_MAX;
    }

    /// Reads the available bytes.
    pub(super) fn receive(&mut self, scratch: &mut [u8]) -> Received {
        if !self.wanted().bytes {
            return Received::Nothing;
        }
        match self.stream.read(scratch) {
            Ok(0) => Received::End,
            Ok(n) => {
                self.frames.push(&scratch[..n]);
                Received::Bytes
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Received::Nothing
            }
            Err(_) => Received::End,
        }
    }

    /// Returns the next received message.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        if self.wanted().bytes { self.frames.next_message() } else { Ok(None) }
    }

    /// Queues a message.
    pub(super) fn send(&mut self, message: &FromGuard) -> io::Result<()> {
        self.out.extend_from_slice(&wire::encode(message)?);
        Ok(())
    }

    /// Sends a copy of a descriptor, once and without waiting; on failure the peer requests it again.
    pub(super) fn lend(&mut self, descriptor: &impl AsFd) {
        let (bytes, descriptors) = ([IoSlice::new(&[0])], [descriptor.as_fd()]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            let _ = rustix::net::sendmsg(&self.stream, &bytes, &mut control, SendFlags::NOSIGNAL);
        }
    }

    /// Returns the events to wait for.
    pub(super) fn wanted(&self) -> Interest {
        Interest { bytes: !self.leaving && self.unsent() <= UNREAD_BYTES_MAX, room: self.unsent() > 0 }
    }

    /// Returns true if there is room for reports.
    pub(super) fn has_room(&self) -> bool {
        self.unsent() < NEWS_BYTES_MAX
    }

    pub(super) fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what can be sent now. If the peer is gone, pending output is dropped, but its last messages can still be
    /// read; the end of the connection is therefore detected by [`receive`](Conn::receive) only.
    pub(super) fn flush(&mut self) {
        while self.unsent() > 0 {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(_) => break,
            }
        }
        (self.out, self.sent) = (Vec::new(), 0);
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

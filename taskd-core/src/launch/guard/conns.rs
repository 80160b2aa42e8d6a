//! Connections: one to the owner, and a few to those who want to be it.
//!
//! A connection never blocks the guard: what a peer does not read waits in a buffer with a bound, and beyond the bound
//! nothing more is read from that peer.

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

/// Beyond this many bytes that a peer has not read, no more of its requests are taken.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// Below this many bytes that a peer has not read, news may be added.
const NEWS_BYTES_MAX: usize = 64 << 10;

/// What a look at a connection brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Some bytes; there may be more.
    Bytes,
    /// Nothing for now.
    Nothing,
    /// The peer is gone, and everything that it said was taken.
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
    /// When it came.
    pub(super) since: Instant,
    /// What the event loop waits for.
    pub(super) interest: Interest,
    /// To be closed when everything is sent.
    pub(super) leaving: bool,
    /// What it has asked for, where it was welcomed and has yet to confirm it.
    pub(super) request: Option<OwnerRequest>,
}

/// What a process that wants to be the owner asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerRequest {
    pub(super) takeover: bool,
    pub(super) on_owner_loss: OnOwnerLoss,
}

impl Conn {
    /// A stranger's connection; non-blocking from now on.
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

    /// Its peer may send long frames from now on.
    pub(super) fn trust(&mut self) {
        self.frames.bytes_max = wire::FRAME_BYTES_MAX;
    }

    /// Takes what has arrived.
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

    /// The next message that has arrived.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        if self.wanted().bytes { self.frames.next() } else { Ok(None) }
    }

    /// Queues a message.
    pub(super) fn send(&mut self, message: &FromGuard) -> io::Result<()> {
        self.out.extend_from_slice(&wire::encode(message)?);
        Ok(())
    }

    /// Sends a copy of a descriptor, now or never: the other side asks again.
    pub(super) fn lend(&mut self, descriptor: &impl AsFd) {
        let (bytes, descriptors) = ([IoSlice::new(&[0])], [descriptor.as_fd()]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            let _ = rustix::net::sendmsg(&self.stream, &bytes, &mut control, SendFlags::NOSIGNAL);
        }
    }

    /// What there is to wait for.
    pub(super) fn wanted(&self) -> Interest {
        Interest { bytes: !self.leaving && self.unsent() <= UNREAD_BYTES_MAX, room: self.unsent() > 0 }
    }

    /// Whether there is room for news.
    pub(super) fn has_room(&self) -> bool {
        self.unsent() < NEWS_BYTES_MAX
    }

    pub(super) fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what can be sent now. To a peer that is gone nothing can be said any more, but what it said last can still
    /// be heard: so its going is noticed by [`receive`](Conn::receive), and only there.
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

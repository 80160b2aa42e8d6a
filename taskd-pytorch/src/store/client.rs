//! One connection: what it has begun to send, and what it has not read.
//!
//! It knows no key. Whether it goes on is the server's to say.

use super::outbox::Outbox;
use super::poller::Interest;
use super::space::ClientId;
use super::wire::Decoder;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// A connected client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) id: ClientId,
    /// Index of its generation.
    pub(super) host: usize,
    pub(super) decoder: Decoder,
    /// A request whose end has not arrived, or requests that wait until answers are read.
    pub(super) input: Vec<u8>,
    /// Answers that it did not take at once.
    pub(super) outbox: Option<Box<Outbox>>,
    pub(super) interest: Interest,
    /// It is not listened to until it has read.
    pub(super) is_paused: bool,
    /// What of it was counted as held.
    pub(super) held: u64,
    /// On which other host it is.
    pub(super) remote: Option<IpAddr>,
}

impl Client {
    pub(super) fn new(socket: OwnedFd, id: ClientId, host: usize, remote: Option<IpAddr>) -> Client {
        Client {
            socket,
            id,
            host,
            decoder: Decoder::default(),
            input: Vec::new(),
            outbox: None,
            interest: Interest::Input,
            is_paused: false,
            held: 0,
            remote,
        }
    }

    /// Bytes of memory for what is on its way.
    pub(super) fn holds(&self) -> u64 {
        (self.input.capacity() + self.outbox.as_ref().map_or(0, |outbox| outbox.held())) as u64
    }

    /// What it should be waiting for.
    pub(super) const fn wants(&self) -> Interest {
        match (self.outbox.is_some(), self.is_paused) {
            (false, _) => Interest::Input,
            (true, false) => Interest::Both,
            (true, true) => Interest::Output,
        }
    }

    /// Sends what it takes of its own outbox; how much.
    pub(super) fn flush(&mut self) -> Result<u64, Errno> {
        let Some(outbox) = &mut self.outbox else { return Ok(0) };
        let sent = send(&self.socket, outbox)?;
        if outbox.is_empty() {
            self.outbox = None;
        }
        Ok(sent)
    }
}

/// Sends as much as the system takes; how much.
///
/// # Errors
/// The connection is broken.
pub(super) fn send(socket: &OwnedFd, outbox: &mut Outbox) -> Result<u64, Errno> {
    let mut sent = 0;
    while !outbox.is_empty() {
        match rustix::net::send(socket, outbox.front(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(bytes) => {
                sent += bytes as u64;
                outbox.advance(bytes);
            }
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

//! One client connection: its unfinished input and its unread answers.
//!
//! This module knows no keys. The server decides if the connection continues.

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
    /// A request that has not fully arrived, or requests that wait until answers are read.
    pub(super) input: Vec<u8>,
    /// Answers that the socket did not accept at once.
    pub(super) outbox: Option<Box<Outbox>>,
    pub(super) interest: Interest,
    /// True while its requests are not read, until it has read its answers.
    pub(super) is_paused: bool,
    /// Number of bytes that were counted for it as held.
    pub(super) held: u64,
    /// Address of its host, if that is another one.
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

    /// Returns the bytes of memory for its data in transit.
    pub(super) fn holds(&self) -> u64 {
        (self.input.capacity() + self.outbox.as_ref().map_or(0, |outbox| outbox.held())) as u64
    }

    /// Returns the events to wait for.
    pub(super) const fn wants(&self) -> Interest {
        match (self.outbox.is_some(), self.is_paused) {
            (false, _) => Interest::Input,
            (true, false) => Interest::Both,
            (true, true) => Interest::Output,
        }
    }

    /// Sends as much of its own outbox as the socket accepts; returns the number of bytes.
    pub(super) fn flush(&mut self) -> Result<u64, Errno> {
        let Some(outbox) = &mut self.outbox else { return Ok(0) };
        let sent = send(&self.socket, outbox)?;
        if outbox.is_empty() {
            self.outbox = None;
        }
        Ok(sent)
    }
}

/// Sends as much as the system accepts; returns the number of bytes.
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

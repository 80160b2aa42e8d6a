//! The store's end of its control socket: accepts controllers and carries out their calls.
//!
//! It never waits for a controller: one that does not read its answers loses the connection.

use super::super::limits::Bound;
use super::super::server::Server;
use super::wire::{self, Answer, Call, FRAME_BYTES_MAX, FromStore, PROTOCOL, Refusal, ToStore};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, accept_with, recvmsg, send, sockopt,
};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use taskd_core::launch::frames::Frames;

/// Number of the listener among the descriptors that the server watches.
const LISTENER: u64 = 0;

/// A process that controls the store.
#[derive(Debug)]
struct Controller {
    socket: OwnedFd,
    input: Frames,
    /// A descriptor that the controller has passed and that no call has used yet; at most one.
    passed: Option<OwnedFd>,
    is_welcome: bool,
}

/// The control socket and all its connections.
#[derive(Debug)]
pub(in super::super) struct Controllers {
    listener: UnixListener,
    connected: BTreeMap<u64, Controller>,
    next: u64,
}

impl Controllers {
    /// Starts to serve this listener; `server` reports when a connection is ready.
    pub(in super::super) fn new(listener: UnixListener, server: &Server) -> io::Result<Controllers> {
        listener.set_nonblocking(true)?;
        server.watch(&listener, LISTENER)?;
        Ok(Controllers { listener, connected: BTreeMap::new(), next: LISTENER + 1 })
    }

    /// Serves the descriptor with this number, which is ready.
    pub(in super::super) fn ready(&mut self, number: u64, server: &mut Server) {
        if number == LISTENER {
            return self.accept(server);
        }
        let Some(controller) = self.connected.get_mut(&number) else { return };
        if controller.listen(server).is_err() {
            server.unwatch(&controller.socket);
            self.connected.remove(&number);
        }
    }

    fn accept(&mut self, server: &mut Server) {
        let socket = match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE) => return server.refuse_at(&self.listener),
            Err(_) => return, // it is gone already
        };
        if self.connected.len() >= server.limits().controllers {
            return server.reached(Bound::Controllers);
        }
        let is_ours = sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid());
        if !is_ours {
            return server.met_stranger();
        }
        if server.watch(&socket, self.next).is_ok() {
            let controller =
                Controller { socket, input: Frames::new(FRAME_BYTES_MAX), passed: None, is_welcome: false };
            self.connected.insert(self.next, controller);
            self.next += 1;
        }
    }
}

impl Controller {
    /// Receives data from the controller, and answers every complete message.
    fn listen(&mut self, server: &mut Server) -> io::Result<()> {
        let mut room = [0; 4096];
        let mut ancillary = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut ancillary);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut room)], &mut ancillary, flags) {
            Ok(received) if received.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for message in ancillary.drain() {
            let RecvAncillaryMessage::ScmRights(passed) = message else { continue };
            for passed in passed {
                if self.passed.replace(passed).is_some() {
                    return Err(io::Error::other("more than one descriptor was passed"));
                }
            }
        }
        self.input.push(&room[..received]);
        while let Some(message) = self.input.next_message()? {
            let answer = self.answer(message, server)?;
            self.say(&answer)?;
        }
        Ok(())
    }

    fn answer(&mut self, message: ToStore, server: &mut Server) -> io::Result<FromStore> {
        match message {
            ToStore::Hello { protocol } if !self.is_welcome => {
                self.is_welcome = protocol == PROTOCOL; // otherwise it learns this version, and its calls fail
                Ok(FromStore::Welcome { protocol: PROTOCOL, pid: std::process::id() })
            }
            ToStore::Call { id, call } if self.is_welcome => {
                Ok(FromStore::Answer { id, answer: self.carry_out(call, server) })
            }
            _ => Err(io::Error::other("a message is out of order")),
        }
    }

    fn carry_out(&mut self, call: Call, server: &mut Server) -> Result<Answer, Refusal> {
        match call {
            Call::Serve { generation } => {
                let listener = self.passed.take().ok_or(Refusal::NoListener { generation })?;
                server.serve(generation, TcpListener::from(listener))?;
                Ok(Answer::Served)
            }
            Call::Retire { generation } => Ok(Answer::Retired { was_served: server.retire(generation) }),
            Call::Stats => Ok(Answer::Stats(Box::new(server.stats()))),
        }
    }

    /// Sends a message to the controller, all of it at once; otherwise returns an error, and the connection is closed.
    fn say(&self, message: &FromStore) -> io::Result<()> {
        let frame = wire::encode(message)?;
        let sent = send(&self.socket, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        if sent == frame.len() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

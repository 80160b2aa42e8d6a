//! New connections: accepted, or refused and counted.

use super::super::client::Client;
use super::super::limits::Bound;
use super::super::peer::Peer;
use super::super::poller::{Interest, Ready};
use super::super::space::ClientId;
use super::{Seat, Server};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, sockopt};
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Maximum number of connections that wait to be accepted, as far as the system allows (`net.core.somaxconn`).
const BACKLOG: i32 = 65_535;
/// Maximum number of connections accepted in a row, before connected clients are served.
const IN_A_ROW: usize = 256;
/// Keep-alive idle time. A client whose host disappeared without notice is detected after two minutes.
const KEEP_IDLE: Duration = Duration::from_secs(60);
const KEEP_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_COUNT: u32 = 6;

/// Opens a spare descriptor, to be released when there is no other.
pub(super) fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Returns what is wrong with a socket that should be listening.
pub(super) fn check(listener: &TcpListener) -> Result<(), &'static str> {
    let domain = sockopt::socket_domain(listener).map_err(|_| "is not a socket")?;
    if !matches!(domain, AddressFamily::INET | AddressFamily::INET6)
        || sockopt::socket_type(listener) != Ok(SocketType::STREAM)
    {
        return Err("is not a TCP socket");
    }
    if sockopt::socket_acceptconn(listener) != Ok(true) {
        return Err("does not listen");
    }
    Ok(())
}

/// Sets the options that every connection inherits.
pub(super) fn prepare(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    sockopt::set_tcp_nodelay(listener, true)?;
    sockopt::set_socket_keepalive(listener, true)?;
    sockopt::set_tcp_keepidle(listener, KEEP_IDLE)?;
    sockopt::set_tcp_keepintvl(listener, KEEP_INTERVAL)?;
    sockopt::set_tcp_keepcnt(listener, KEEP_COUNT)?;
    Ok(rustix::net::listen(listener, BACKLOG)?) // a longer queue than at its creation
}

impl Server {
    /// Accepts the connections that wait at this listener.
    pub(super) fn accept(&mut self, host: usize) {
        self.looked_at_silent = false;
        for _ in 0..IN_A_ROW {
            let Some(listener) = self.hosts.get(host).and_then(Option::as_ref).map(|host| &host.listener) else {
                return;
            };
            match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket, host),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.counts.reached(Bound::OpenFiles);
                    if !self.close_oldest_silent() && !self.refuse_one(host) {
                        return;
                    }
                }
                Err(Errno::INVAL) => return self.poller.remove(listener), // a process that shares it has shut it down
                Err(_) => (),                                             // the connection is gone already
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, host: usize) {
        self.counts.sums.accepted += 1;
        let remote = match self.peers.of(&socket) {
            Peer::User(user) if user == 0 || user == rustix::process::geteuid().as_raw() => None,
            Peer::Remote(address) => Some(address),
            Peer::User(_) | Peer::Unknown => {
                self.counts.sums.foreign += 1;
                return;
            }
        };
        if self.waiting.len() >= self.limits.silent && self.silent_now() >= self.limits.silent {
            self.counts.reached(Bound::Silent);
            self.close_oldest_silent();
        }
        if remote
            .is_some_and(|address| self.remote.get(&address).is_some_and(|count| *count >= self.limits.clients_of_host))
        {
            self.counts.reached(Bound::ClientsOfHost);
            return;
        }
        if self.clients >= self.limits.clients {
            self.counts.reached(Bound::Clients);
            if !self.close_oldest_silent() {
                return;
            }
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.seats.push(Seat::default());
            u32::try_from(self.seats.len() - 1).unwrap_or(u32::MAX) // one descriptor each: there are never so many
        });
        let Some(seat) = self.seats.get_mut(at as usize) else { return };
        seat.user = seat.user.wrapping_add(1) & (u32::MAX >> 2); // the upper bits are the token's kind
        let id = u64::from(seat.user) << 32 | u64::from(at);
        if self.poller.add(&socket, id, Interest::Input).is_err() {
            self.free.push(at);
            self.counts.reached(Bound::OpenFiles); // the system's limit of watched descriptors
            return;
        }
        seat.client = Some(Client::new(socket, id, host, remote));
        self.clients += 1;
        self.waiting.push_back((id, Instant::now() + Duration::from_millis(self.limits.silent_ms)));
        if let Some(address) = remote {
            *self.remote.entry(address).or_default() += 1;
        }
        if let Some(host) = self.hosts.get_mut(host).and_then(Option::as_mut) {
            host.clients += 1;
        }
    }

    /// Returns true if a connection has not identified itself as a client yet.
    fn is_silent(&self, id: ClientId) -> bool {
        let seat = self.seat_of(id).and_then(|at| self.seats.get(at as usize));
        seat.and_then(|seat| seat.client.as_ref()).is_some_and(|client| !client.decoder.is_validated())
    }

    /// Returns the number of connections that have not identified themselves yet. They are read once per turn, since
    /// each check reads from as many sockets.
    fn silent_now(&mut self) -> usize {
        if std::mem::replace(&mut self.looked_at_silent, true) { self.waiting.len() } else { self.count_silent() }
    }

    /// Reads from all connections that had not identified themselves so far, and returns how many still have not.
    fn count_silent(&mut self) -> usize {
        let mut waiting = std::mem::take(&mut self.waiting);
        for (id, _) in &waiting {
            self.client_ready(Ready { token: *id, output: false, broken: false }); // reads what has arrived
        }
        waiting.retain(|(id, _)| self.is_silent(*id));
        self.waiting = waiting;
        self.waiting.len()
    }

    /// Closes the connection that has gone longest without identifying itself; returns false if there is none. Its
    /// received data is read first, since many connections may have arrived at once.
    fn close_oldest_silent(&mut self) -> bool {
        while let Some((id, _)) = self.waiting.pop_front() {
            if self.is_silent(id) {
                self.client_ready(Ready { token: id, output: false, broken: false });
            }
            if let Some(at) = self.seat_of(id).filter(|_| self.is_silent(id)) {
                self.close(at);
                return true;
            }
        }
        false
    }

    /// Returns how long to wait for events at most, so that no connection is silent for longer than allowed.
    pub(super) fn until_silence(&self, timeout: Option<Duration>) -> Option<Duration> {
        let first = self.waiting.front().map(|(_, until)| until.saturating_duration_since(Instant::now()));
        [timeout, first].into_iter().flatten().min()
    }

    /// Closes connections that have sent nothing within their time.
    pub(super) fn close_silent(&mut self) {
        while let Some((id, until)) = self.waiting.front().copied() {
            if !self.is_silent(id) {
                self.waiting.pop_front();
                continue;
            }
            if until > Instant::now() {
                return;
            }
            self.counts.reached(Bound::SilentMs);
            self.close_oldest_silent();
        }
    }

    /// Accepts and closes one waiting connection although no descriptor is left: otherwise it would stay in the queue
    /// and wake this thread again and again. Returns false if nothing can be done now.
    fn refuse_one(&mut self, host: usize) -> bool {
        let had = self.spare.take().is_some();
        if let Some(host) = self.hosts.get(host).and_then(Option::as_ref) {
            drop(accept_with(&host.listener, SocketFlags::CLOEXEC));
        }
        self.spare = spare();
        had && self.spare.is_some()
    }

    /// Does the same for a listener that another component owns.
    pub(in super::super) fn refuse_at(&mut self, listener: impl AsFd) {
        self.counts.reached(Bound::OpenFiles);
        self.spare = None;
        drop(accept_with(listener, SocketFlags::CLOEXEC));
        self.spare = spare();
    }
}

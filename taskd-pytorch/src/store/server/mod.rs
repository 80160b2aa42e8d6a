//! The store server: generations, their listeners and clients, in one thread that waits in one place.
//!
//! It uses no name service, starts no thread, changes no process-wide state, and prints nothing.

mod accept;
mod feed;

use super::client::Client;
use super::control::Refusal;
use super::limits::{Bound, Limits, LimitsError};
use super::outbox::Outbox;
use super::peer::Peers;
use super::poller::{Events, Interest, Poller, Ready};
use super::space::{ClientId, Space};
use super::stats::{Counts, GenerationStats, Stats};
use super::value::Ledger;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use taskd_core::job::Generation;

/// Maximum number of bytes received at once.
const ROOM_BYTES: usize = 64 << 10;

/// The upper bits of a token: its kind.
const KIND: u64 = 3 << 62;
const CLIENT: u64 = 0;
const LISTENER: u64 = 1 << 62;
const OUTSIDE: u64 = 2 << 62;

/// Reasons why a server cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum NewError {
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error("the store cannot wait for clients: {0}")]
    System(#[from] io::Error),
}

/// One served generation.
#[derive(Debug)]
struct Host {
    generation: Generation,
    listener: TcpListener,
    address: String,
    space: Space,
    clients: u64,
}

/// A slot for a client. The slot's use count is part of its tokens, so that an event of an earlier client is not
/// attributed to a later one.
#[derive(Debug, Default)]
struct Seat {
    client: Option<Client>,
    user: u32,
}

/// A server that has one store per generation of ranks and speaks the protocol of torch's `TCPStore`. The program calls
/// [`turn`](Server::turn) in a loop; each call waits once for network events and handles those that have arrived.
///
/// ```no_run
/// use std::net::TcpListener;
/// use taskd_core::job::Generation;
/// use taskd_pytorch::store::{Limits, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut server = Server::new(Limits::default())?;
/// server.serve(Generation(1), TcpListener::bind("[::]:29500")?)?;
/// loop {
///     server.turn(None)?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    limits: Limits,
    poller: Poller,
    hosts: Vec<Option<Host>>,
    seats: Vec<Seat>,
    free: Vec<u32>,
    clients: usize,
    /// Number of clients on each other host, by the host's address.
    remote: BTreeMap<IpAddr, usize>,
    /// Connections that had not identified themselves when last checked, oldest first, with their deadlines.
    waiting: VecDeque<(ClientId, Instant)>,
    /// True if the connections that have not identified themselves were checked in this turn.
    looked_at_silent: bool,
    peers: Peers,
    newest_retired: Option<Generation>,
    ledger: Ledger,
    counts: Counts,
    /// Number of bytes of memory held by unfinished requests and unread answers.
    buffer_bytes: u64,
    /// Spare descriptor, released briefly when no file can be opened, so that a connection can be refused.
    spare: Option<File>,
    // Buffers that are reused in every turn.
    events: Events,
    room: Vec<u8>,
    answers: Outbox,
    woken: Vec<ClientId>,
    silent: Vec<ClientId>,
    outside: Vec<u64>,
}

impl Server {
    /// Creates a server that serves no generation of ranks yet.
    ///
    /// # Errors
    /// Returns an error of kind `InvalidInput` if a limit is too small ([`Limits::check`]), and the operating system's
    /// error if epoll cannot be set up, for example because no file descriptor is left.
    pub fn new(limits: Limits) -> io::Result<Server> {
        Self::checked(limits).map_err(|error| match error {
            NewError::System(error) => error,
            error @ NewError::Limits(_) => io::Error::new(io::ErrorKind::InvalidInput, error),
        })
    }

    pub(super) fn checked(limits: Limits) -> Result<Server, NewError> {
        limits.check()?;
        Ok(Server {
            limits,
            poller: Poller::new()?,
            hosts: Vec::new(),
            seats: Vec::new(),
            free: Vec::new(),
            clients: 0,
            remote: BTreeMap::new(),
            waiting: VecDeque::new(),
            looked_at_silent: false,
            peers: Peers::new(),
            newest_retired: None,
            ledger: Ledger::default(),
            counts: Counts::default(),
            buffer_bytes: 0,
            spare: accept::spare(),
            events: Events::default(),
            room: vec![0; ROOM_BYTES],
            answers: Outbox::default(),
            woken: Vec::new(),
            silent: Vec::new(),
            outside: Vec::new(),
        })
    }

    /// Adds a generation of ranks, whose clients connect to `listener`. The generation has its own keys and clients.
    ///
    /// # Errors
    /// Returns [`Refusal`] if the generation is already served, if this generation or a newer one was retired, if the
    /// server has its maximum number of generations, or if `listener` is not a listening TCP socket or cannot be
    /// watched. The server then serves the same generations as before.
    pub fn serve(&mut self, generation: Generation, listener: TcpListener) -> Result<(), Refusal> {
        if let Some(host) = self.hosts.iter().flatten().find(|host| host.generation == generation) {
            return Err(Refusal::AlreadyServed { generation, address: host.address.clone() });
        }
        if let Some(newest) = self.newest_retired.filter(|newest| generation <= *newest) {
            return Err(Refusal::Retired { generation, newest });
        }
        let slot = match self.hosts.iter().position(Option::is_none) {
            Some(slot) => slot,
            None if self.hosts.len() < self.limits.generations => self.hosts.len(),
            None => {
                self.counts.reached(Bound::Generations);
                return Err(Refusal::TooMany { limit: self.limits.generations });
            }
        };
        accept::check(&listener).map_err(|why| Refusal::NotAListener { generation, why: why.to_owned() })?;
        let system = |error: io::Error| Refusal::System { generation, reason: error.to_string() };
        accept::prepare(&listener).map_err(system)?;
        let address = listener.local_addr().map_err(system)?.to_string();
        self.poller.add(&listener, LISTENER | slot as u64, Interest::Input).map_err(system)?;
        let space = Space::new(self.ledger.clone());
        let host = Some(Host { generation, listener, address, space, clients: 0 });
        match self.hosts.get_mut(slot) {
            Some(place) => *place = host,
            None => self.hosts.push(host),
        }
        Ok(())
    }

    /// Retires a generation of ranks: closes its listener and its clients, and drops its keys. Afterwards
    /// [`serve`](Server::serve) refuses this generation and all earlier ones; earlier generations that are served now
    /// stay. Returns false if the generation was not served.
    pub fn retire(&mut self, generation: Generation) -> bool {
        self.newest_retired = self.newest_retired.max(Some(generation));
        let Some(slot) = self.hosts.iter().position(|host| host.as_ref().is_some_and(|h| h.generation == generation))
        else {
            return false;
        };
        if let Some(host) = self.hosts[slot].take() {
            self.poller.remove(&host.listener);
            // The process that passed the listener may still hold it: closing this descriptor alone would leave it
            // listening.
            let _ = rustix::net::shutdown(&host.listener, rustix::net::Shutdown::Both);
        }
        let of_host: Vec<u32> = (0..)
            .zip(&self.seats)
            .filter(|(_, seat)| seat.client.as_ref().is_some_and(|client| client.host == slot))
            .map(|(at, _)| at)
            .collect();
        self.counts.sums.retired_clients += of_host.len() as u64;
        self.counts.sums.retired += 1;
        for at in of_host {
            self.close(at);
        }
        true
    }

    /// Returns the server's statistics: counters since its start, and its present generations, clients and memory.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let generation = |host: &Host| GenerationStats {
            generation: host.generation,
            address: host.address.clone(),
            clients: host.clients,
            keys: host.space.keys() as u64,
            waits: host.space.waits() as u64,
        };
        Stats {
            generations: self.hosts.iter().flatten().map(generation).collect(),
            clients: self.clients as u64,
            store_bytes: self.ledger.total(),
            buffer_bytes: self.buffer_bytes,
            ..self.counts.stats()
        }
    }

    /// Waits for network events for `timeout` at most, or without a limit if `timeout` is `None`. Then accepts new
    /// connections, carries out the requests that have arrived, and sends answers.
    ///
    /// # Errors
    /// Returns the operating system's error if waiting for events fails. No action of a client causes an error.
    pub fn turn(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        let waited = self.poller.wait(self.until_silence(timeout), &mut events);
        self.outside.clear();
        for ready in events.ready() {
            match ready.token & KIND {
                CLIENT => self.client_ready(ready),
                LISTENER => self.accept((ready.token & !KIND) as usize),
                _ => self.outside.push(ready.token & !KIND),
            }
        }
        self.events = events;
        self.look_again();
        self.close_silent();
        waited
    }

    /// Serves clients again whose last request has no answer: they have gone on without waiting, so their next request
    /// has arrived by now. In the next turn it would wait behind all others.
    fn look_again(&mut self) {
        let mut silent = std::mem::take(&mut self.silent);
        for token in silent.drain(..) {
            self.client_ready(Ready { token, output: false, broken: false });
        }
        self.silent = silent; // once is enough: later requests are served in the next turn
    }

    /// Watches a descriptor that is not the store's, under this number.
    pub(super) fn watch(&self, fd: impl AsFd, number: u64) -> io::Result<()> {
        self.poller.add(fd, OUTSIDE | number, Interest::Input)
    }

    /// Stops watching such a descriptor.
    pub(super) fn unwatch(&self, fd: impl AsFd) {
        self.poller.remove(fd);
    }

    /// Returns the numbers of such descriptors that were ready in the last turn.
    pub(super) fn take_outside(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.outside)
    }

    /// Returns the bounds that were reached and are not in `known` yet, and adds them to it.
    pub(super) fn new_bounds(&self, known: &mut BTreeSet<Bound>) -> Vec<Bound> {
        if known.len() == self.counts.sums.at_bound.len() {
            return Vec::new();
        }
        self.counts.sums.at_bound.keys().copied().filter(|bound| known.insert(*bound)).collect()
    }

    pub(super) fn reached(&mut self, bound: Bound) {
        self.counts.reached(bound);
    }

    /// Counts an attempt of another user to control the store.
    pub(super) const fn met_stranger(&mut self) {
        self.counts.sums.strangers += 1;
    }

    pub(super) const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the slot of the client with this id, if that client is still connected.
    fn seat_of(&self, id: ClientId) -> Option<u32> {
        let at = u32::try_from(id & u64::from(u32::MAX)).ok()?;
        let seat = self.seats.get(at as usize)?;
        seat.client.as_ref().filter(|client| client.id == id).map(|_| at)
    }

    /// Closes the client in this slot; its wait ends, and what it has set stays.
    fn close(&mut self, at: u32) {
        let Some(client) = self.seats.get_mut(at as usize).and_then(|seat| seat.client.take()) else { return };
        self.free.push(at);
        self.clients -= 1;
        if let Some(address) = client.remote {
            let left = self.remote.get(&address).map_or(0, |count| count - 1);
            if left == 0 {
                self.remote.remove(&address)
            } else {
                self.remote.insert(address, left)
            };
        }
        self.buffer_bytes -= client.held;
        if let Some(host) = self.hosts.get_mut(client.host).and_then(Option::as_mut) {
            host.clients -= 1;
            host.space.forget(client.id);
        }
    }
}

#[cfg(test)]
mod tests;

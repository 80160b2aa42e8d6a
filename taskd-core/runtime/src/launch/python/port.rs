//! Rendezvous port of one generation, reserved until a process of the job listens there.
//!
//! The process that listens (a store, a scheduler) does so seconds after the port was chosen. Until then the launcher
//! has a socket bound to the port and, if the listener can be handed over, a second socket that *listens*: then no
//! other process can listen there, whatever options it sets. Linux allows two sockets to be bound to one port if both
//! set SO_REUSEADDR and neither listens. A socket that is only bound therefore keeps the port from `bind` to port 0 and
//! from outgoing connections, but not from a process that requests this port number.

use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{
    AddressFamily, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType, bind,
    getsockname, socket_with, sockopt,
};

use crate::job::Generation;

/// Connections that may wait until the service accepts them; the system's limit may be lower.
const BACKLOG: i32 = 4096;

/// The port of one generation.
#[derive(Debug)]
pub(super) struct HeldPort {
    pub(super) generation: Generation,
    pub(super) port: u16,
    /// Address at which the listener listens; `None`: all addresses.
    at: Option<IpAddr>,
    /// Socket that is bound to the port, and held until the next generation, in addition to the listener. `None`: the
    /// port belongs to an earlier owner.
    socket: Option<OwnedFd>,
    /// The listener to hand over to the process that serves this generation.
    listener: Option<TcpListener>,
    /// Socket that listens at the other addresses until the listener is handed over, since the process that takes it
    /// may listen on all of them.
    others: Option<OwnedFd>,
    /// True if there is, or was, a listener at the port.
    is_listened_at: bool,
    /// Host name under which a process may request the listener (empty: any). `None`: the listener is not handed over.
    lent_as: Option<String>,
}

/// Reply to a process that requests a port.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) listener: TcpListener,
    /// Host name by which the other ranks reach the listener; empty if it may be any.
    pub(super) host: String,
    /// Closed together with this value.
    _others: Option<OwnedFd>,
}

impl HeldPort {
    /// Reserves a port that is free now: at this address, for a service; without an address for IPv4 and, where
    /// available, IPv6, since the rank that listens may do so on both.
    pub(super) fn choose(generation: Generation, at: Option<IpAddr>) -> io::Result<HeldPort> {
        HeldPort::hold(generation, 0, at)
    }

    fn hold(generation: Generation, port: u16, at: Option<IpAddr>) -> io::Result<HeldPort> {
        let socket = bound_at(at, port, false)?;
        let port = SocketAddr::try_from(getsockname(&socket)?)?.port();
        Ok(HeldPort { socket: Some(socket), ..HeldPort::theirs(generation, port, at) })
    }

    fn theirs(generation: Generation, port: u16, at: Option<IpAddr>) -> HeldPort {
        let (socket, listener, others) = (None, None, None);
        HeldPort { generation, port, at, socket, listener, others, is_listened_at: false, lent_as: None }
    }

    /// Listens at the port, unless done before. Connections from now on wait in the backlog.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        if self.socket.is_none() || self.is_listened_at {
            return Ok(());
        }
        let socket = bound_at(self.at, self.port, self.lent_as.is_some())?;
        rustix::net::listen(&socket, BACKLOG)?;
        (self.listener, self.is_listened_at) = (Some(TcpListener::from(socket)), true);
        Ok(())
    }

    /// Listens at the port for a process that will request the listener under this host name.
    ///
    /// The other addresses of this host get a listener as well: a program that does not take the listener may listen on
    /// all addresses, which would fail if another process listened at one of them.
    pub(super) fn listen_for(&mut self, host: &str) -> io::Result<()> {
        self.lent_as = Some(if self.at.is_some() { host.to_owned() } else { String::new() });
        self.listen()?;
        if self.at.is_some() && self.listener.is_some() {
            let others = bound_at(None, self.port, true)?;
            rustix::net::listen(&others, BACKLOG)?;
            self.others = Some(others);
        }
        Ok(())
    }

    /// Takes the listener, once.
    pub(super) fn take_listener(&mut self) -> Option<TcpListener> {
        self.listener.take()
    }

    /// Takes the listener of this port for the process that requests it, once.
    pub(super) fn lend(&mut self, port: u16) -> Option<Lent> {
        let host = self.lent_as.clone().filter(|_| port == self.port)?;
        Some(Lent { listener: self.listener.take()?, host, _others: self.others.take() })
    }

    /// Reserves a port that an earlier owner of the job has chosen. If a process listens there already, the port is
    /// left to that process. Otherwise the owner ended before it handed over its listener, and the port is held as
    /// before.
    pub(super) fn again(generation: Generation, port: u16, at: Option<IpAddr>) -> HeldPort {
        HeldPort::hold(generation, port, at).unwrap_or_else(|_| HeldPort::theirs(generation, port, at))
    }
}

/// Binds a socket to a port at this address, or at all addresses without one. With `shares`, another socket of the same
/// user that sets the same option may listen there as well, at a more or less specific address; sockets of other users
/// may not.
fn bound_at(at: Option<IpAddr>, port: u16, shares: bool) -> io::Result<OwnedFd> {
    let v6 = |address| bound(AddressFamily::INET6, SocketAddr::V6(SocketAddrV6::new(address, port, 0, 0)), shares);
    let v4 = |address| bound(AddressFamily::INET, SocketAddr::V4(SocketAddrV4::new(address, port)), shares);
    match at {
        Some(IpAddr::V4(address)) => v4(address),
        Some(IpAddr::V6(address)) => v6(address),
        None => v6(Ipv6Addr::UNSPECIFIED).or_else(|_| v4(Ipv4Addr::UNSPECIFIED)),
    }
}

fn bound(family: AddressFamily, address: SocketAddr, shares: bool) -> io::Result<OwnedFd> {
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, shares)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Returns the address at which a service listens that is reached at this host; `None` (all addresses) if the host is
/// not an address of this machine, or is not resolved within the time.
pub(super) async fn listens_at(host: &str, within: Duration) -> Option<IpAddr> {
    let name = host.to_owned();
    let address = tokio::time::timeout(within, tokio::task::spawn_blocking(move || address_of(&name))).await;
    let address = address.ok().and_then(Result::ok).flatten();
    if address.is_none() {
        tracing::warn!("{host} is no address of this host: the rendezvous service listens on all addresses");
    }
    address
}

/// Returns the address at which a rank listens that is reached at this host, if `host` is an IP address of this
/// machine. For a name, which may have several addresses, it is unknown which one the others dial: `None` (all
/// addresses), as the rank itself would do.
pub(super) fn listens_at_address(host: &str) -> Option<IpAddr> {
    host.parse::<IpAddr>().ok().and_then(|_| address_of(host))
}

/// Returns the address of this host at which a service listens that ranks reach by this name or address: only that
/// address, so that the service is not reachable from other networks. `None`: no such address of this host was found. A
/// name is resolved by the name service.
fn address_of(host: &str) -> Option<IpAddr> {
    let named = (host, 0).to_socket_addrs().ok()?;
    let mut own: Vec<IpAddr> =
        named.map(|address| address.ip()).filter(|ip| TcpListener::bind((*ip, 0)).is_ok()).collect();
    own.sort_by_key(IpAddr::is_ipv6); // torch tries both families, and IPv4 last
    own.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_port_can_be_listened_on_and_the_next_is_another() {
        let first = HeldPort::choose(Generation(1), None).unwrap();
        let _store = TcpListener::bind(("0.0.0.0", first.port)).unwrap(); // std sets SO_REUSEADDR, as a store does
        let second = HeldPort::choose(Generation(2), None).unwrap();
        assert_ne!(first.port, second.port);
        assert_eq!(second.generation, Generation(2));
    }

    #[test]
    fn the_port_of_an_earlier_owner_is_held_again_unless_in_use() {
        let first = HeldPort::choose(Generation(1), None).unwrap();
        let port = first.port;
        drop(first); // its owner was killed
        let mut again = HeldPort::again(Generation(1), port, None);
        again.listen().unwrap();
        let service = again.take_listener().unwrap();
        assert_eq!(service.local_addr().unwrap().port(), port);
        let mut theirs = HeldPort::again(Generation(1), port, None);
        theirs.listen().unwrap();
        assert!(theirs.take_listener().is_none(), "a process listens there");
        assert_eq!(theirs.port, port);
    }

    #[test]
    fn a_client_that_connects_before_the_service_waits_for_it() {
        let mut held = HeldPort::choose(Generation(1), None).unwrap();
        held.listen().unwrap();
        held.listen().unwrap(); // as a repeated start does
        let _early = std::net::TcpStream::connect(("127.0.0.1", held.port)).unwrap();
        let service = held.take_listener().unwrap();
        service.accept().unwrap();
        assert!(held.take_listener().is_none());
    }

    #[test]
    fn a_service_listens_where_it_is_reached_and_nowhere_else() {
        assert_eq!(address_of("127.0.0.1"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(address_of("localhost"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(address_of("192.0.2.1"), None, "it is no address of this host");
        let mut held = HeldPort::choose(Generation(1), Some(Ipv4Addr::new(127, 0, 0, 2).into())).unwrap();
        held.listen().unwrap();
        let dial = |host: &str| std::net::TcpStream::connect((host, held.port)).is_ok();
        assert_eq!((dial("127.0.0.2"), dial("127.0.0.1")), (true, false));
    }

    /// Tries to listen at the port as an ordinary program does; returns true if it succeeds.
    fn listens_there(host: &str, port: u16) -> bool {
        TcpListener::bind((host, port)).is_ok() // std sets SO_REUSEADDR
    }

    #[test]
    fn a_port_with_a_listener_is_kept_until_that_is_handed_over_or_closed() {
        let mut held = HeldPort::choose(Generation(1), Some(Ipv4Addr::LOCALHOST.into())).unwrap();
        held.listen_for("here").unwrap();
        let port = held.port;
        for host in ["127.0.0.1", "0.0.0.0", "127.0.0.2", "::"] {
            assert!(!listens_there(host, port), "{host}");
        }
        let early = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert!(held.lend(port + 1).is_none(), "another port");
        let lent = held.lend(port).unwrap();
        assert!(held.lend(port).is_none(), "once");
        assert_eq!(lent.host, "here");
        let (_, from) = lent.listener.accept().unwrap();
        assert_eq!(from, early.local_addr().unwrap());
        assert!(!listens_there("127.0.0.1", port));
        drop(lent);
        assert!(listens_there("0.0.0.0", port), "the process that has taken it may do without it");
        held.listen_for("here").unwrap();
        assert!(held.lend(port).is_none(), "it was handed over");
    }

    #[test]
    fn a_listener_at_all_addresses_is_for_any_name() {
        let mut held = HeldPort::choose(Generation(1), None).unwrap();
        held.listen_for("here").unwrap();
        assert!(!listens_there("127.0.0.1", held.port) && !listens_there("0.0.0.0", held.port));
        assert_eq!(held.lend(held.port).unwrap().host, "");
        let mut of_a_service = HeldPort::choose(Generation(1), None).unwrap();
        of_a_service.listen().unwrap();
        assert!(of_a_service.lend(of_a_service.port).is_none(), "it is for the service");
        assert_eq!(listens_at_address("localhost"), None, "a name may have several");
        assert_eq!(listens_at_address("192.0.2.1"), None);
        assert_eq!(listens_at_address("127.0.0.1"), Some(Ipv4Addr::LOCALHOST.into()));
    }
}

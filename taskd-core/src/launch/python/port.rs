//! A port for the ranks of one generation to meet at, kept from everybody else until one of them listens there.
//!
//! Who listens (a store, a scheduler) does so seconds after the port was chosen. Until then a socket of ours is bound to it
//! without listening. Where both set SO_REUSEADDR, the other's own bind and listen succeed beside it, while the system
//! gives the port neither to a `bind` to port 0 nor to an outgoing connection. (Measured with all of a machine's other
//! ports taken.) What is left is a program that asks for this very number.

use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{
    AddressFamily, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType, bind,
    getsockname, socket_with, sockopt,
};

use crate::job::Generation;

/// Processes that may dial before the service accepts them; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// The port of one generation.
#[derive(Debug)]
pub(super) struct HeldPort {
    pub(super) generation: Generation,
    pub(super) port: u16,
    /// Held until the next generation: who listens there does not mind.
    socket: Option<OwnedFd>,
    /// What is to be handed to the service that serves this generation.
    listener: Option<TcpListener>,
}

impl HeldPort {
    /// A port that is free now: at this address, where a service is to listen; else for IPv4 and, where there is IPv6, for both, as
    /// the rank that listens may do so on both.
    pub(super) fn choose(generation: Generation, at: Option<IpAddr>) -> io::Result<HeldPort> {
        HeldPort::hold(generation, 0, at)
    }

    fn hold(generation: Generation, port: u16, at: Option<IpAddr>) -> io::Result<HeldPort> {
        let v6 = |address| bound(AddressFamily::INET6, SocketAddr::V6(SocketAddrV6::new(address, port, 0, 0)));
        let v4 = |address| bound(AddressFamily::INET, SocketAddr::V4(SocketAddrV4::new(address, port)));
        let socket = match at {
            Some(IpAddr::V4(address)) => v4(address),
            Some(IpAddr::V6(address)) => v6(address),
            None => v6(Ipv6Addr::UNSPECIFIED).or_else(|_| v4(Ipv4Addr::UNSPECIFIED)),
        }?;
        let port = SocketAddr::try_from(getsockname(&socket)?)?.port();
        Ok(HeldPort { generation, port, socket: Some(socket), listener: None })
    }

    /// Listens at the port, where that was not done before: who dials from now on waits.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        if let Some(socket) = self.socket.take() {
            rustix::net::listen(&socket, BACKLOG)?;
            self.listener = Some(TcpListener::from(socket));
        }
        Ok(())
    }

    /// The listener, once.
    pub(super) fn take_listener(&mut self) -> Option<TcpListener> {
        self.listener.take()
    }

    /// A port that an earlier owner of the job has chosen. Where somebody listens there by now, it is theirs. Where nobody does, the
    /// owner had ended ahead of handing its listener over, and it is held as before.
    pub(super) fn again(generation: Generation, port: u16, at: Option<IpAddr>) -> HeldPort {
        let theirs = HeldPort { generation, port, socket: None, listener: None };
        HeldPort::hold(generation, port, at).unwrap_or(theirs)
    }
}

fn bound(family: AddressFamily, address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Where a service is to listen that is reached at this host; `None`, on all addresses, where that is none of this host's, or is not known
/// within the time.
pub(super) async fn listens_at(host: &str, within: Duration) -> Option<IpAddr> {
    let name = host.to_owned();
    let address = tokio::time::timeout(within, tokio::task::spawn_blocking(move || address_of(&name))).await;
    let address = address.ok().and_then(Result::ok).flatten();
    if address.is_none() {
        tracing::warn!("{host} is no address of this host: the service at which ranks meet listens on all of them");
    }
    address
}

/// The address of this host at which a service is to listen that ranks reach by this name or address: only that one, so that it is
/// not reachable by another network. `None`: this host has no such address, as far as it knows. Asks the name service where it is a name.
fn address_of(host: &str) -> Option<IpAddr> {
    let named = (host, 0).to_socket_addrs().ok()?;
    let mut own: Vec<IpAddr> =
        named.map(|address| address.ip()).filter(|ip| TcpListener::bind((*ip, 0)).is_ok()).collect();
    own.sort_by_key(IpAddr::is_ipv6); // torch asks for either, and for IPv4 at last
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
    fn the_port_of_an_earlier_owner_is_held_again_unless_somebody_listens_there() {
        let first = HeldPort::choose(Generation(1), None).unwrap();
        let port = first.port;
        drop(first); // its owner was killed
        let mut again = HeldPort::again(Generation(1), port, None);
        again.listen().unwrap();
        let service = again.take_listener().unwrap();
        assert_eq!(service.local_addr().unwrap().port(), port);
        let mut theirs = HeldPort::again(Generation(1), port, None);
        theirs.listen().unwrap();
        assert!(theirs.take_listener().is_none(), "somebody listens there");
        assert_eq!(theirs.port, port);
    }

    #[test]
    fn who_dials_before_the_service_is_there_waits_for_it() {
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
}

//! Identifies the user of the process at the other end of a connection, if that process is on this host.
//!
//! torch's client can present no proof of identity. On this host the system knows the user of its socket
//! (`sock_diag(7)`, or `/proc/net/tcp` where that is unavailable), and the store serves its own user and root.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, netlink};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

/// Identity of a process that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process on this host, with the id of its user.
    User(u32),
    /// A process on another host, with the address of that host.
    Remote(IpAddr),
    /// A process on this host of an unknown user: it has closed its socket, or the system does not report it.
    Unknown,
}

/// Looks up the users of connections.
#[derive(Debug)]
pub(super) struct Peers {
    /// Socket for queries to the Linux kernel about connections (`sock_diag`); `None` if the system has no such
    /// sockets, or they do not work.
    diag: Option<OwnedFd>,
    sequence: u32,
}

impl Peers {
    pub(super) fn new() -> Peers {
        let flags = SocketFlags::CLOEXEC;
        let protocol = Some(netlink::SOCK_DIAG);
        let diag = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol).ok();
        Peers { diag, sequence: 0 }
    }

    /// Identifies the process at the other end of a connected socket.
    pub(super) fn of(&mut self, socket: impl AsFd) -> Peer {
        let ours = rustix::net::getsockname(&socket).ok();
        let theirs = rustix::net::getpeername(&socket).ok().flatten();
        let address = |end: Option<SocketAddrAny>| end.and_then(|end| SocketAddr::try_from(end).ok());
        let (Some(ours), Some(theirs)) = (address(ours).map(plain), address(theirs)) else { return Peer::Unknown };
        let from = plain(theirs);
        let answer = self.ask(from, ours);
        if let Some(Some(user)) = answer {
            return Peer::User(user);
        }
        if !is_here(theirs, ours.ip()) {
            return Peer::Remote(from.ip());
        }
        // The tables are long if there are many connections: they are read only if the kernel cannot be asked.
        answer.unwrap_or_else(|| listed(from, ours)).map_or(Peer::Unknown, Peer::User)
    }

    /// Returns the user of the socket with these two addresses; `Some(None)`: there is no such socket any more. `None`:
    /// the Linux kernel cannot be asked.
    fn ask(&mut self, own: SocketAddr, other: SocketAddr) -> Option<Option<u32>> {
        let diag = self.diag.as_ref()?;
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.sequence, own, other);
        rustix::net::send(diag, &request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).ok()?;
        let mut answer = [0; 512];
        loop {
            // The kernel answers within the call that sends the request.
            let (_, length) = rustix::net::recv(diag, answer.as_mut_slice(), RecvFlags::DONTWAIT).ok()?;
            let answer = answer.get(..length)?;
            if word(answer, 8)? == self.sequence {
                return is_final(answer).then(|| user_in(answer, own));
            }
        }
    }
}

/// Converts an IPv4-mapped address of a dual-stack socket to plain IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns true unless the system reports that the address `theirs` is not one of this host.
fn is_here(theirs: SocketAddr, ours: IpAddr) -> bool {
    let mut address = theirs; // with the interface, without which a link-local address is not recognised
    address.set_port(0);
    let from = plain(theirs).ip();
    from.is_loopback() || ours.is_loopback() || from == ours || may_be_ours(UdpSocket::bind(address).map(drop))
}

/// Returns true unless the result of binding an address shows that it is not this host's, which only EADDRNOTAVAIL
/// does. Another user can cause other errors (no free port, no descriptor), so these prove nothing.
fn may_be_ours(bound: io::Result<()>) -> bool {
    bound.map_or_else(|error| error.kind() != io::ErrorKind::AddrNotAvailable, |()| true)
}

// Of `sock_diag`: `linux/netlink.h`, `linux/sock_diag.h`, `linux/inet_diag.h`. Numbers are the machine's, ports and
// addresses the network's.

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const TCP: u8 = 6;
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// `nlmsghdr`
const HEAD_BYTES: usize = 16;
/// `nlmsghdr` and `inet_diag_req_v2`
const REQUEST_BYTES: u32 = 16 + 56;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Offsets of `idiag_uid` and `idiag_inode` in `inet_diag_msg`.
const UID_AT: usize = HEAD_BYTES + 64;
const INODE_AT: usize = HEAD_BYTES + 68;

fn request(sequence: u32, own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(REQUEST_BYTES.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes()); // the kernel
    bytes.extend([if own.is_ipv4() { AF_INET } else { AF_INET6 }, TCP, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes()); // in any state
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(other.port().to_be_bytes());
    for address in [own.ip(), other.ip()] {
        let mut room = [0; 16];
        match address {
            IpAddr::V4(address) => room[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => room.copy_from_slice(&address.octets()),
        }
        bytes.extend(room);
    }
    bytes.extend(0_u32.to_ne_bytes()); // any interface
    bytes.extend(NO_COOKIE);
    bytes
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns true if an answer of the Linux kernel identifies the socket, or states that there is none; other errors are
/// the system's (no such family, not permitted).
fn is_final(answer: &[u8]) -> bool {
    let kind = answer.get(4..6).and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
    let error = word(answer, HEAD_BYTES).map(u32::cast_signed);
    kind == Some(SOCK_DIAG_BY_FAMILY) || (kind == Some(NLMSG_ERROR) && error == Some(-Errno::NOENT.raw_os_error()))
}

/// Returns the user of the socket in an answer of the Linux kernel, if that socket is an end of the connection and is
/// open. The system reports a closed socket as owned by root.
fn user_in(answer: &[u8], own: SocketAddr) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let port = u16::from_be_bytes(answer.get(HEAD_BYTES + 4..HEAD_BYTES + 6)?.try_into().ok()?);
    let is_connected = answer.get(HEAD_BYTES + 6..HEAD_BYTES + 8)? != [0, 0];
    if kind != SOCK_DIAG_BY_FAMILY || port != own.port() || !is_connected || word(answer, INODE_AT)? == 0 {
        return None;
    }
    word(answer, UID_AT)
}

// Of `/proc/net/tcp`: `proc_net_tcp(5)`.

fn listed(own: SocketAddr, other: SocketAddr) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    tables.iter().find_map(|table| user_listed(&fs::read_to_string(table).ok()?, own, other))
}

fn user_listed(table: &str, own: SocketAddr, other: SocketAddr) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let ends = (fields.nth(1).and_then(address_in)?, fields.next().and_then(address_in)?);
        let (uid, inode) = (fields.nth(4)?, fields.nth(1)?);
        (ends == (own, other) && inode != "0").then(|| uid.parse().ok())?
    })
}

/// Parses an address of `/proc/net/tcp` such as `0100007F:1F90`: words of four bytes, each in the machine's order.
fn address_in(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<u32>> =
        (0..address.len()).step_by(8).map(|at| u32::from_str_radix(address.get(at..at + 8)?, 16).ok()).collect();
    let bytes: Vec<u8> = words?.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(plain(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?)))
}

impl Default for Peers {
    fn default() -> Peers {
        Peers::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair(listen_at: &str, dial: &str) -> Option<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((listen_at, 0)).ok()?;
        let client = TcpStream::connect((dial, listener.local_addr().unwrap().port())).unwrap();
        Some((listener.accept().unwrap().0, client))
    }

    #[test]
    fn a_connection_of_this_host_has_a_user_as_long_as_it_is_open() {
        let us = Peer::User(rustix::process::geteuid().as_raw());
        let ends = [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1", "::ffff:127.0.0.1"),
            ("::", "::ffff:127.0.0.1"),
            ("::", "127.0.0.1"),
            ("::", "::1"),
            ("0.0.0.0", "127.0.0.1"),
        ];
        for (listen_at, dial) in ends {
            let Some((server, client)) = pair(listen_at, dial) else { continue }; // a host without IPv6
            let (ours, theirs) = (plain(server.local_addr().unwrap()), plain(server.peer_addr().unwrap()));
            assert_eq!(Peers::new().of(&server), us, "{dial}");
            assert_eq!(Peers { diag: None, sequence: 0 }.of(&server), us, "{dial} by /proc/net/tcp");
            assert_eq!(listed(theirs, ours).map(Peer::User), Some(us));
            assert_eq!(Peers::new().ask(theirs, ours).flatten().map(Peer::User), Some(us), "{dial} by sock_diag");
            drop(client);
            // A process that another test forks holds the socket, too, until it executes its program.
            let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while Peers::new().ask(theirs, ours).is_some_and(|answer| answer.is_some()) {
                assert!(std::time::Instant::now() < until, "{dial}: its end is known");
                std::thread::yield_now();
            }
            assert_eq!(
                Peers::new().of(&server),
                Peer::Unknown,
                "{dial}: a closed socket is root's, as the system has it"
            );
        }
    }

    #[test]
    fn address_is_foreign_only_if_the_system_cannot_assign_it() {
        let remote: SocketAddr = "192.0.2.7:4000".parse().unwrap(); // an address for documentation (RFC 5737)
        assert!(!is_here(remote, "192.0.2.8".parse().unwrap()));
        assert!(is_here(remote, "127.0.0.1".parse().unwrap()), "no other host reaches loopback");
        for (errno, may_be) in
            [(Errno::ADDRNOTAVAIL, false), (Errno::ADDRINUSE, true), (Errno::MFILE, true), (Errno::INVAL, true)]
        {
            assert_eq!(may_be_ours(Err(io::Error::from_raw_os_error(errno.raw_os_error()))), may_be, "{errno}");
        }
        assert!(may_be_ours(Ok(())));
    }

    #[test]
    fn addresses_are_read_as_the_system_writes_them() {
        let read = |text| address_in(text).map(|address| address.to_string());
        assert_eq!(read("0100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(read("0000000000000000FFFF00000100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(read("00000000000000000000000001000000:0050").as_deref(), Some("[::1]:80"));
        for wrong in ["", ":", "0100007F", "01:1", "0100007G:1", "010000é:1"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn cut_or_unrelated_socket_answers_name_no_user() {
        let own: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let mut answer = request(1, own, "127.0.0.1:81".parse().unwrap());
        answer.resize(HEAD_BYTES + 72, 0);
        answer[INODE_AT] = 7;
        answer[UID_AT] = 5;
        // The socket's identity begins after four bytes, where the request has eight.
        answer.drain(HEAD_BYTES + 4..HEAD_BYTES + 8);
        answer.extend([0; 4]);
        answer[INODE_AT] = 7;
        answer[UID_AT] = 5;
        assert_eq!(user_in(&answer, own), Some(5));
        for length in 0..INODE_AT + 4 {
            assert_eq!(user_in(&answer[..length], own), None, "{length}");
        }
        assert_eq!(user_in(&answer, "127.0.0.1:82".parse().unwrap()), None);
        answer[INODE_AT] = 0;
        assert_eq!(user_in(&answer, own), None, "it is closed");
        assert!(is_final(&answer) && !is_final(&answer[..5]) && !is_final(&[]));
    }

    #[test]
    fn missing_socket_is_a_final_answer_and_other_errors_are_not() {
        let no_peer: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let mut peers = Peers::new();
        if peers.diag.is_some() {
            assert_eq!(peers.ask(no_peer, no_peer), Some(None), "no table is read for it");
        }
        let mut error = vec![0; HEAD_BYTES + 4];
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        for (errno, is_answer) in [(Errno::NOENT, true), (Errno::PERM, false), (Errno::OPNOTSUPP, false)] {
            error[HEAD_BYTES..].copy_from_slice(&(-errno.raw_os_error()).to_ne_bytes());
            assert_eq!(is_final(&error), is_answer, "{errno}");
        }
    }
}

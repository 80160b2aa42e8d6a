//! The user of the process at the other end of a connection, when that process is on this host.
//!
//! torch's client can present nothing that proves an identity. Where it is on this host the system knows the user of its socket
//! (`sock_diag(7)`, or `/proc/net/tcp` where there is no such), and the store serves its own user and root.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, netlink};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

/// What is known of the process that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process of this user, on this host.
    User(u32),
    /// A process on another host.
    Remote(IpAddr),
    /// A process on this host, of a user that is not known: it has closed its socket, or the system does not report it.
    Unknown,
}

/// Looks up the users of connections.
#[derive(Debug)]
pub(super) struct Peers {
    /// None where the system has no such sockets, or they do not work.
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

    /// The process at the other end of a connected socket.
    pub(super) fn of(&mut self, socket: impl AsFd) -> Peer {
        let ours = rustix::net::getsockname(&socket).ok();
        let theirs = rustix::net::getpeername(&socket).ok().flatten();
        let address = |end: Option<SocketAddrAny>| end.and_then(|end| SocketAddr::try_from(end).ok());
        let (Some(ours), Some(theirs)) = (address(ours).map(plain), address(theirs)) else { return Peer::Unknown };
        let from = plain(theirs);
        let told = self.ask(from, ours);
        if let Some(Some(user)) = told {
            return Peer::User(user);
        }
        if !is_here(theirs, ours.ip()) {
            return Peer::Remote(from.ip());
        }
        // The tables are long where there are many connections: they are read only where the kernel cannot be asked.
        told.unwrap_or_else(|| listed(from, ours)).map_or(Peer::Unknown, Peer::User)
    }

    /// The user of the socket with these ends; `Some(None)`: there is none any more. `None`: the kernel cannot be asked.
    fn ask(&mut self, own: SocketAddr, other: SocketAddr) -> Option<Option<u32>> {
        let diag = self.diag.as_ref()?;
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.sequence, own, other);
        rustix::net::send(diag, &request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).ok()?;
        let mut answer = [0; 512];
        loop {
            // The kernel answers within the call that asks.
            let (_, length) = rustix::net::recv(diag, answer.as_mut_slice(), RecvFlags::DONTWAIT).ok()?;
            let answer = answer.get(..length)?;
            if word(answer, 8)? == self.sequence {
                return is_final(answer).then(|| user_in(answer, own));
            }
        }
    }
}

/// An address of IPv4 as such, also where a socket for both has it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns true unless the system reports that the address is not one of this host.
fn is_here(theirs: SocketAddr, ours: IpAddr) -> bool {
    let mut address = theirs; // with the interface, which an address of one link is not known without
    address.set_port(0);
    let from = plain(theirs).ip();
    from.is_loopback() || ours.is_loopback() || from == ours || may_be_ours(UdpSocket::bind(address).map(drop))
}

/// Interprets the result of binding an address: only EADDRNOTAVAIL shows that it is not this host's. Another user can bring about other errors
/// (no free port, no descriptor), so these prove nothing.
fn may_be_ours(bound: io::Result<()>) -> bool {
    bound.map_or_else(|error| error.kind() != io::ErrorKind::AddrNotAvailable, |()| true)
}

// Of `sock_diag`: `linux/netlink.h`, `linux/sock_diag.h`, `linux/inet_diag.h`. Numbers are the machine's, ports and addresses the network's.

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
/// Where `idiag_uid` and `idiag_inode` are in `inet_diag_msg`.
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
    bytes.extend(u32::MAX.to_ne_bytes()); // in whatever state
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
    bytes.extend(0_u32.to_ne_bytes()); // whatever interface
    bytes.extend(NO_COOKIE);
    bytes
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Whether an answer says which socket it is, or that there is none; other errors are the system's (no such family, not permitted).
fn is_final(answer: &[u8]) -> bool {
    let kind = answer.get(4..6).and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
    let error = word(answer, HEAD_BYTES).map(u32::cast_signed);
    kind == Some(SOCK_DIAG_BY_FAMILY) || (kind == Some(NLMSG_ERROR) && error == Some(-Errno::NOENT.raw_os_error()))
}

/// The user of the socket that an answer is about, if that socket is a connection's end and is open. One that was
/// closed belongs to root, as far as the system says.
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

/// `0100007F:1F90`: words of four bytes, each in the machine's order.
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
            assert!(Peers::new().ask(theirs, ours).is_none_or(|told| told.is_none()), "{dial}: its end is known");
            assert_eq!(
                Peers::new().of(&server),
                Peer::Unknown,
                "{dial}: a closed socket is root's, as the system has it"
            );
        }
    }

    #[test]
    fn an_address_is_another_hosts_only_where_the_system_says_that_it_is_not_ours() {
        let remote: SocketAddr = "192.0.2.7:4000".parse().unwrap(); // of documentation (RFC 5737)
        assert!(!is_here(remote, "192.0.2.8".parse().unwrap()));
        assert!(is_here(remote, "127.0.0.1".parse().unwrap()), "nobody else reaches loopback");
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
    fn answers_that_are_cut_or_are_about_something_else_name_nobody() {
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
    fn that_there_is_no_such_socket_is_an_answer_and_other_errors_are_none() {
        let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let mut peers = Peers::new();
        if peers.diag.is_some() {
            assert_eq!(peers.ask(nobody, nobody), Some(None), "no table is read for it");
        }
        let mut error = vec![0; HEAD_BYTES + 4];
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        for (errno, is_answer) in [(Errno::NOENT, true), (Errno::PERM, false), (Errno::OPNOTSUPP, false)] {
            error[HEAD_BYTES..].copy_from_slice(&(-errno.raw_os_error()).to_ne_bytes());
            assert_eq!(is_final(&error), is_answer, "{errno}");
        }
    }
}

//! Cuts the connections between two processes: packets are dropped on both sides from then on, and neither side
//! receives FIN or RST.
//!
//! It works from outside, on duplicates of the processes' own sockets: it attaches a filter that drops every packet.
//! That needs Linux 5.6 and the right to trace the processes (root has it).

use rustix::fd::OwnedFd;
use rustix::net::{SocketAddrAny, SocketType, getpeername, getsockname, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use socket2::{SockFilter, SockRef};
use std::io;
use std::net::SocketAddr;

/// Cuts all TCP connections between two processes and returns their number.
///
/// # Errors
/// A process has ended, or the system denies access to its sockets.
pub fn cut(one: Pid, other: Pid) -> io::Result<usize> {
    let (ours, theirs) = (connections(one)?, connections(other)?);
    let mut count = 0;
    for (socket, local, peer) in &ours {
        for (end, ..) in theirs.iter().filter(|(_, at, to)| (at, to) == (peer, local)) {
            drop_all(socket)?;
            drop_all(end)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Returns the TCP connections of a process: the socket, its local address, and the peer's address.
fn connections(pid: Pid) -> io::Result<Vec<(OwnedFd, SocketAddr, SocketAddr)>> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))? {
        let path = entry?.path();
        let is_socket = std::fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let Some(number) = number.filter(|_| is_socket) else { continue };
        match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
            Ok(socket) => found.extend(ends(&socket).map(|(local, peer)| (socket, local, peer))),
            Err(rustix::io::Errno::BADF) => {} // closed meanwhile
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

fn ends(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    if sockopt::socket_type(socket).ok()? != SocketType::STREAM {
        return None;
    }
    Some((plain(getsockname(socket).ok()?)?, plain(getpeername(socket).ok()??)?))
}

/// Returns the IPv4 address for one that is mapped to IPv6.
fn plain(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// BPF's return instruction; the kernel keeps as many bytes of the packet as its operand states.
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// Drops all packets that arrive at this socket, before TCP sees them.
fn drop_all(socket: &OwnedFd) -> io::Result<()> {
    let nothing = SockFilter::new(RETURN, 0, 0, 0);
    SockRef::from(socket).attach_filter(&[nothing])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn a_cut_connection_delivers_neither_bytes_nor_its_end() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        here.write_all(b"x").unwrap();
        there.read_exact(&mut [0]).unwrap();
        let own = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        assert!(cut(own, own).unwrap() >= 2, "both ends are in this process");
        here.write_all(b"y").unwrap();
        drop(here);
        there.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let error = there.read(&mut [0]).expect_err("neither a byte nor an end");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}

//! Messages between guard and standbys: packets of strings separated by NUL, a kind followed by `name=value` fields.
//!
//! This module encodes and transfers packets without interpreting them. No string can contain a NUL, since they are
//! arguments and variables. The other end is `python/_taskd_standby.py`, which needs no module to parse them.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Version of the messages.
pub(in crate::launch::guard) const VERSION: &str = "1";
/// Maximum length of a packet in bytes. A rank that needs a longer one cannot use a standby.
pub(in crate::launch::guard) const PACKET_BYTES_MAX: usize = 128 << 10;
/// Maximum number of processes requested from a template at once: each takes three descriptors, and a packet carries
/// 253.
pub(in crate::launch::guard) const FORKS_MAX: usize = 64;

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::launch::guard) struct Packet {
    pub(in crate::launch::guard) kind: String,
    fields: Vec<String>,
}

impl Packet {
    pub(in crate::launch::guard) fn new(kind: &str) -> Packet {
        Packet { kind: kind.into(), fields: Vec::new() }
    }

    pub(in crate::launch::guard) fn with(mut self, name: &str, value: &str) -> Packet {
        self.fields.push(format!("{name}={value}"));
        self
    }

    pub(in crate::launch::guard) fn with_all<'a>(
        self,
        name: &str,
        values: impl IntoIterator<Item = &'a String>,
    ) -> Packet {
        values.into_iter().fold(self, |packet, value| packet.with(name, value))
    }

    /// Returns the value of the first field of this name; empty if there is none.
    pub(in crate::launch::guard) fn one(&self, name: &str) -> &str {
        let value = |field: &'_ String| field.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        self.fields.iter().find(|field| value(field)).map_or("", |field| &field[name.len() + 1..])
    }

    /// Returns the encoded packet; `None` if it could not be decoded again.
    fn encode(&self) -> Option<Vec<u8>> {
        let texts = || std::iter::once(&self.kind).chain(&self.fields);
        let is_whole = texts().all(|text| !text.contains('\0'));
        let bytes = texts().map(String::as_str).collect::<Vec<_>>().join("\0").into_bytes();
        (is_whole && bytes.len() <= PACKET_BYTES_MAX).then_some(bytes)
    }

    fn decode(bytes: &[u8]) -> io::Result<Packet> {
        let text = std::str::from_utf8(bytes).map_err(|_| io::Error::other("its answer is not UTF-8"))?;
        let mut texts = text.split('\0').map(str::to_owned);
        let kind = texts.next().unwrap_or_default();
        Ok(Packet { kind, fields: texts.collect() })
    }
}

/// Makes a standby's socket pair: the guard's end, which never blocks, and the process's end.
pub(in crate::launch::guard) fn seat() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Sends a packet with descriptors, either at once or not at all.
pub(in crate::launch::guard) fn send(seat: &OwnedFd, packet: &Packet, passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = packet.encode().ok_or_else(|| io::Error::other("the message does not fit into a packet"))?;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3 * FORKS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    if !passed.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(passed)) {
        return Err(io::Error::other("more descriptors than a packet carries"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(seat, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives the next packet; `None` if there is none now.
///
/// # Errors
/// Fails if the process has ended, or has sent invalid data.
pub(in crate::launch::guard) fn receive(seat: &OwnedFd, scratch: &mut [u8]) -> io::Result<Option<Packet>> {
    match rustix::net::recv(seat, &mut *scratch, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
        Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((_, length)) if length > scratch.len() => Err(io::Error::other("its answer is too long")),
        Ok((_, length)) => Packet::decode(&scratch[..length]).map(Some),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_packet_arrives_as_it_was_sent_with_its_descriptors() {
        let (ours, theirs) = seat().unwrap();
        let packet = Packet::new("run").with("set", "A=b=c").with("set", "").with("argument", "ü\n");
        send(&ours, &packet, &[ours.as_fd(), theirs.as_fd()]).unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        let mut scratch = [0; 100];
        let received = receive(&theirs, &mut scratch).unwrap().unwrap();
        assert_eq!(received, packet);
        assert_eq!((received.one("set"), received.one("argument"), received.one("arg")), ("A=b=c", "ü\n", ""));
        assert_eq!(receive(&theirs, &mut scratch).unwrap(), None);
        drop(ours);
        assert!(receive(&theirs, &mut scratch).is_err());
    }

    #[test]
    fn python_has_the_same_version_and_bounds() {
        let program = "from _taskd_standby import *\nprint(json.dumps([VERSION, PACKET_BYTES_MAX, FORKS_MAX]))";
        let theirs = taskd_core::testing::python::evaluated(&[], program);
        assert_eq!(theirs, serde_json::json!([VERSION, PACKET_BYTES_MAX, FORKS_MAX]));
    }

    #[test]
    fn packets_that_are_too_long_or_not_text_are_errors() {
        let (ours, theirs) = seat().unwrap();
        let long = Packet::new("run").with("set", &"x".repeat(PACKET_BYTES_MAX));
        assert!(send(&ours, &long, &[]).is_err());
        assert!(send(&ours, &Packet::new("run").with("set", "a\0b"), &[]).is_err());
        rustix::net::send(&theirs, &[b'x'; 101], SendFlags::empty()).unwrap();
        rustix::net::send(&theirs, b"\xff", SendFlags::empty()).unwrap();
        let mut scratch = [0; 100];
        assert!(receive(&ours, &mut scratch).unwrap_err().to_string().contains("too long"));
        assert!(receive(&ours, &mut scratch).unwrap_err().to_string().contains("not UTF-8"));
    }
}

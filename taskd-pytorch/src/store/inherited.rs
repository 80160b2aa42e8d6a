//! The listening control socket that this process inherited from a taskd guard.
//!
//! This module adopts one descriptor, once, and is the only file of the store with `unsafe`.
#![allow(unsafe_code)]

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, sockopt};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

/// Environment variable with the number of the passed descriptor.
pub(super) const VARIABLE: &str = "TASKD_LISTEN_FD";
/// Smallest number of a passed descriptor: those below it are the standard streams.
const NUMBER_MIN: RawFd = 3;

/// Returns the number of the inherited descriptor from the value of [`VARIABLE`]; `None` if it has no valid one.
pub(super) fn descriptor(value: Option<&str>) -> Option<RawFd> {
    value?.parse().ok().filter(|number| *number >= NUMBER_MIN)
}

/// Adopts the descriptor that [`descriptor`] has found.
///
/// Must be called once, by a process that has opened nothing that could have this number.
///
/// # Errors
/// The descriptor is not open, or is not a listening Unix socket.
pub(super) fn adopt(number: RawFd) -> io::Result<UnixListener> {
    // SAFETY: the borrow is used for one call, which fails if there is no such descriptor.
    let is_open = rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
    is_open?;
    // SAFETY: it is open (see above), was passed to this process for this use, and is adopted once, before anything else of
    // this process could own it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    let is_ours = sockopt::socket_domain(&socket)? == AddressFamily::UNIX && sockopt::socket_acceptconn(&socket)?;
    if !is_ours {
        return Err(io::Error::other("it is not a listening Unix socket"));
    }
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_listener_is_selected_by_the_environment() {
        assert_eq!(descriptor(Some("17")), Some(17));
        assert_eq!(descriptor(Some("3")), Some(3));
        assert_eq!(descriptor(None), None);
        for wrong in ["", "0", "2", "-1", "many", "99999999999999999999"] {
            assert_eq!(descriptor(Some(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn closed_descriptor_is_an_error() {
        assert!(adopt(987_654).is_err());
    }
}

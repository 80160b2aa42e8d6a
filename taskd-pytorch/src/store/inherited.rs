//! A listening control socket that this process was started with: systemd's convention for services.
//!
//! It adopts one descriptor, once, and is the only file of the store with `unsafe`.
#![allow(unsafe_code)]

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, sockopt};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

/// The first descriptor that is passed.
const FIRST: RawFd = 3;
/// More than anybody passes.
const PASSED_MAX: usize = 1024;

/// Which descriptor the environment says it is; `None` where it says nothing of one for us.
///
/// `LISTEN_FDS` is how many were passed, from 3 on; `LISTEN_FDNAMES` has their names, with colons between. Where no names are
/// given, a single descriptor is ours. `LISTEN_PID`, where it is set, must be us: who is started by a process that was itself
/// passed something must not take it for its own. (Who starts us need not set it: it may not know the pid before `exec`.)
///
/// A guard of taskd's says the number itself, in `TASKD_LISTEN_FD`.
pub(super) fn descriptor(variable: impl Fn(&str) -> Option<String>, pid: u32, name: &str) -> Option<RawFd> {
    if let Some(number) = variable("TASKD_LISTEN_FD").and_then(|number| number.parse().ok()) {
        return (number >= FIRST).then_some(number);
    }
    let count: usize = variable("LISTEN_FDS")?.parse().ok().filter(|count| (1..=PASSED_MAX).contains(count))?;
    if variable("LISTEN_PID").is_some_and(|named| named != pid.to_string()) {
        return None;
    }
    let index = match variable("LISTEN_FDNAMES") {
        Some(names) => names.split(':').take(count).position(|passed| passed == name)?,
        None if count == 1 => 0,
        None => return None,
    };
    Some(FIRST + RawFd::try_from(index).ok()?)
}

/// Takes the descriptor that [`descriptor`] has found.
///
/// Must be called once, by a process that has opened nothing that could have this number.
///
/// # Errors
/// It is not open, or no Unix socket that listens.
pub(super) fn adopt(number: RawFd) -> io::Result<UnixListener> {
    // SAFETY: the borrow is used for one call, which fails if there is no such descriptor.
    let is_open = rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
    is_open?;
    // SAFETY: it is open (see above), was passed to this process for this use, and is adopted once, before anything else of
    // this process could own it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    let is_ours = sockopt::socket_domain(&socket)? == AddressFamily::UNIX && sockopt::socket_acceptconn(&socket)?;
    if !is_ours {
        return Err(io::Error::other("it is no Unix socket that listens"));
    }
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Option<RawFd> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        descriptor(variable, 77, "ours")
    }

    #[test]
    fn the_environment_says_which_it_is() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("LISTEN_FDS", "1")]), Some(3));
        assert_eq!(found(&[("LISTEN_FDS", "1"), ("LISTEN_PID", "77")]), Some(3));
        assert_eq!(found(&[("LISTEN_FDS", "1"), ("LISTEN_PID", "78")]), None, "it is somebody else's");
        assert_eq!(found(&[("LISTEN_FDS", "3"), ("LISTEN_FDNAMES", "a:b:ours")]), Some(5));
        assert_eq!(found(&[("LISTEN_FDS", "2"), ("LISTEN_FDNAMES", "a:b:ours")]), None, "it was not passed");
        assert_eq!(found(&[("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", "theirs")]), None);
        assert_eq!(found(&[("LISTEN_FDS", "2")]), None, "which of them?");
        assert_eq!(found(&[("TASKD_LISTEN_FD", "17"), ("LISTEN_FDS", "1")]), Some(17));
        assert_eq!(found(&[("TASKD_LISTEN_FD", "0")]), None, "that is its input");
        for wrong in ["", "0", "-1", "many", "99999999999999999999", "5000"] {
            assert_eq!(found(&[("LISTEN_FDS", wrong)]), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_not_open_is_an_error() {
        assert!(adopt(987_654).is_err());
    }
}

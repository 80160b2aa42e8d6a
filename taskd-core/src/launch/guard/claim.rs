//! That one guard at a time has a run directory, also where somebody has removed its files: a name that no file system has.
//!
//! A Unix socket in the abstract namespace (`unix(7)`), named after the directory's device and inode, is there as long as the guard
//! is. Another user may take the name, and is told from a guard by its user; then there is only the lock.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::os::fd::OwnedFd;

/// Guards that have looked whether this one is there, while it is stopped; the system may allow fewer. Beyond it nobody can tell.
const BACKLOG: i32 = 4096;

/// What came of it.
#[derive(Debug)]
pub(super) enum Claim {
    /// The directory is this guard's, as long as this is open.
    Ours(OwnedFd),
    /// A guard of this user's has it.
    Taken,
    /// Nobody can tell: another user has taken the name, or there are no such names here.
    Unknown(String),
}

/// Claims the directory with this device and inode.
pub(super) fn claim((device, inode): (u64, u64)) -> Claim {
    match try_claim(format!("taskd-guard/{device:x}/{inode:x}").as_bytes()) {
        Ok(claim) => claim,
        Err(error) => Claim::Unknown(error.to_string()),
    }
}

fn try_claim(name: &[u8]) -> io::Result<Claim> {
    let address = SocketAddrUnix::new_abstract_name(name)?;
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    };
    let own = socket()?;
    match rustix::net::bind(&own, &address) {
        Ok(()) => {
            rustix::net::listen(&own, BACKLOG)?;
            Ok(Claim::Ours(own))
        }
        Err(Errno::ADDRINUSE) => {
            let asking = socket()?;
            rustix::net::connect(&asking, &address)?;
            let user = sockopt::socket_peercred(&asking)?.uid;
            if user == rustix::process::geteuid() || user.is_root() {
                return Ok(Claim::Taken);
            }
            Ok(Claim::Unknown(format!("user {} has taken the name of its guard", user.as_raw())))
        }
        Err(error) => Err(error.into()),
    }
}

/// Takes those who have looked: their connections are of no use.
pub(super) fn dismiss(claim: &OwnedFd) {
    while rustix::net::accept_with(claim, SocketFlags::CLOEXEC).is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_directory_has_one_guard_until_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let here = std::fs::metadata(dir.path()).unwrap();
        let identity = (here.dev(), here.ino());
        let Claim::Ours(first) = claim(identity) else { panic!("nobody had it") };
        for _ in 0..40 {
            assert!(matches!(claim(identity), Claim::Taken));
            dismiss(&first);
        }
        assert!(matches!(claim((here.dev(), u64::MAX)), Claim::Ours(_)), "another directory");
        drop(first);
        assert!(matches!(claim(identity), Claim::Ours(_)));
    }
}

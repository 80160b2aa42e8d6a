//! Claim of a run directory by one guard at a time, even if its files were removed: an abstract socket name, which is
//! in no file system.
//!
//! A Unix socket in the abstract namespace (`unix(7)`), named after the directory's device and inode, exists as long as
//! the guard does. If a process of another user has bound the name, which the peer credentials show, only the lock
//! excludes a second guard.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::os::fd::OwnedFd;

/// Number of connections by other guards that can wait while this one is stopped; the system's limit may be lower.
/// Beyond it, the result of a claim is unknown.
const BACKLOG: i32 = 4096;

/// Result of a claim.
#[derive(Debug)]
pub(super) enum Claim {
    /// This guard has claimed the run directory, as long as the descriptor is open.
    Ours(OwnedFd),
    /// A guard of the same user has claimed the run directory.
    Taken,
    /// The state of the claim is unknown: another user has bound the name, or the system has no abstract names.
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
            Ok(Claim::Unknown(format!("user {} has bound the name of the guard's socket", user.as_raw())))
        }
        Err(error) => Err(error.into()),
    }
}

/// Maximum number of connections closed per turn: any user of the host can connect, faster than a guard can close.
pub(super) const IN_A_ROW: usize = 64;

/// Accepts and closes the connections by which other guards tested whether this one exists, at most [`IN_A_ROW`] of
/// them. Returns false if there may be more.
pub(super) fn dismiss(claim: &OwnedFd) -> bool {
    (0..IN_A_ROW).any(|_| rustix::net::accept_with(claim, SocketFlags::CLOEXEC).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn identity_of(dir: &tempfile::TempDir) -> (u64, u64) {
        let here = std::fs::metadata(dir.path()).unwrap();
        (here.dev(), here.ino())
    }

    #[test]
    fn connections_are_closed_so_many_in_a_row() {
        let dir = tempfile::tempdir().unwrap();
        let identity = identity_of(&dir);
        let Claim::Ours(own) = claim(identity) else { panic!("it was free") };
        let look = |_| matches!(claim(identity), Claim::Taken);
        assert!((0..IN_A_ROW + 1).all(look));
        assert!(!dismiss(&own) && dismiss(&own) && dismiss(&own));
    }

    #[test]
    fn a_directory_has_one_guard_until_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let identity = identity_of(&dir);
        let Claim::Ours(first) = claim(identity) else { panic!("it was free") };
        for _ in 0..40 {
            assert!(matches!(claim(identity), Claim::Taken));
            dismiss(&first);
        }
        assert!(matches!(claim((identity.0, u64::MAX)), Claim::Ours(_)), "another directory");
        drop(first);
        assert!(matches!(claim(identity), Claim::Ours(_)));
    }

    #[test]
    fn a_process_of_another_network_namespace_cannot_take_a_guards_name() {
        use std::io::{BufRead, BufReader};
        use taskd_core::testing::{OtherHost, python};
        let Some(other) = OtherHost::join("a_process_of_another_network_namespace_cannot_take_a_guards_name") else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let here = std::fs::metadata(dir.path()).unwrap();
        let name = format!("taskd-guard/{:x}/{:x}", here.dev(), here.ino());
        let bind = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('\\0' + sys.argv[1]); s.listen(); print('bound', flush=True); sys.stdin.read()";
        let mut command = other.command(python::system());
        command.args(["-c", bind, &name]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut theirs = command.spawn().unwrap();
        let mut text = String::new();
        BufReader::new(theirs.stdout.take().unwrap()).read_line(&mut text).unwrap();
        assert_eq!(text, "bound\n", "there the name is free");
        let claimed = claim((here.dev(), here.ino()));
        drop(theirs.stdin.take()); // it ends
        theirs.wait().unwrap();
        assert!(matches!(claimed, Claim::Ours(_)), "{claimed:?}");
    }
}

//! File of the control socket: access for this user only; replaces a dead process's socket, never one that is served.

use crate::private;
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest path of a socket, in bytes: the size of `sun_path` without the terminating NUL.
const PATH_BYTES_MAX: usize = 107;

/// Number of attempts to lock, and time between them. The lock's holder needs it only briefly.
const LOCK_TRIES: u32 = 100;
const LOCK_TRY_EVERY: Duration = Duration::from_millis(10);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Error of [`ControlSocket::bind`](super::ControlSocket::bind).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The path of the socket is longer than the system supports.
    #[error(
        "the socket's path {} has {} bytes, and the system allows {PATH_BYTES_MAX}: choose a shorter one",
        .path.display(), .path.as_os_str().len()
    )]
    PathTooLong {
        /// Path of the socket, which is too long.
        path: PathBuf,
    },
    /// Another user could replace the socket, because of the directory's owner or mode.
    #[error("the directory {} of the socket is {why}: give the socket a directory of its own, with mode 0700", .dir.display())]
    Directory {
        /// Directory of the socket.
        dir: PathBuf,
        /// Problem of the directory, such as `owned by user 1001`.
        why: String,
    },
    /// The path of the socket names an existing file that is no socket.
    #[error("{} exists and is not a socket: choose another path, or remove it", .path.display())]
    NotASocket {
        /// Path of the file that is no socket.
        path: PathBuf,
    },
    /// Another process serves the socket.
    #[error("the socket {} is served by another process: stop that one, or choose another path", .path.display())]
    InUse {
        /// Path of the socket that is in use.
        path: PathBuf,
    },
    /// One of the socket's limits is invalid; contains the limit and the values that are valid.
    #[error("{0}")]
    Limits(crate::job::ConfigError),
    /// A system call failed.
    #[error("the socket {} cannot be created: {source}", .path.display())]
    System {
        /// Path of the socket, or of its directory.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// File of a bound socket. Dropping it removes the file, if the file is still the socket that this process bound.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Device and inode number of the socket's file; `None` if they could not be read.
    identity: Option<(u64, u64)>,
}

impl Place {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path); // an error means that the file is gone already
        }
    }
}

/// Binds a socket of mode 0600 at `path`. Creates a missing directory with mode 0700.
pub(super) fn bind(path: &Path) -> Result<(UnixListener, Place), SocketError> {
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return Err(SocketError::PathTooLong { path: path.to_owned() });
    }
    let system = |source: io::Error| SocketError::System { path: path.to_owned(), source };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directory(dir).map_err(system)?;
    let held = File::open(dir).map_err(system)?;
    check_directory(dir, &held)?;
    private::check_dir(dir).map_err(system)?;
    // Two programs that find the same dead socket must not remove each other's new one. The lock is a file that only
    // this user can open: other users could lock a directory that they can read, for as long as they like.
    let _lock = lock(path).map_err(system)?;
    clear(path)?;
    let listener = listen(path).map_err(|e| system(e.into()))?;
    let place = Place { path: path.to_owned(), identity: identity(path) };
    Ok((listener, place))
}

/// Opens and locks a file beside the socket. Dropping the file releases the lock.
fn lock(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = private::open(Path::new(&name))?;
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => pause(),
            locked => return locked.map(|()| file).map_err(io::Error::from),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::WouldBlock,
        format!("another process has locked {} for a second", Path::new(&name).display()),
    ))
}

/// Waits between two attempts: the system has no event for a released lock.
#[allow(clippy::disallowed_methods)]
fn pause() {
    std::thread::sleep(LOCK_TRY_EVERY);
}

fn make_directory(dir: &Path) -> io::Result<()> {
    if dir.exists() { Ok(()) } else { private::make_dir(dir) }
}

/// Checks that no other user can replace the socket in this directory.
fn check_directory(dir: &Path, held: &File) -> Result<(), SocketError> {
    let meta = held.metadata().map_err(|source| SocketError::System { path: dir.to_owned(), source })?;
    let us = rustix::process::geteuid().as_raw();
    let why = match (meta.uid(), meta.mode()) {
        (owner, _) if owner != us && owner != 0 => format!("owned by user {owner}"),
        (_, mode) if mode & 0o022 != 0 => format!("writable for others (mode {:04o})", mode & 0o7777),
        _ => return Ok(()),
    };
    Err(SocketError::Directory { dir: dir.to_owned(), why })
}

/// Removes the socket of a dead process.
fn clear(path: &Path) -> Result<(), SocketError> {
    let path_is = || path.to_owned();
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(SocketError::System { path: path_is(), source }),
        Ok(meta) if !meta.file_type().is_socket() => return Err(SocketError::NotASocket { path: path_is() }),
        Ok(_) => {}
    }
    match knock(path) {
        Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(|source| SocketError::System { path: path_is(), source })
        }
        Ok(()) | Err(Errno::AGAIN) => Err(SocketError::InUse { path: path_is() }),
        Err(e) => Err(SocketError::System { path: path_is(), source: e.into() }),
    }
}

/// Connects to the socket to find out if a process listens. Never blocks, even if the listener's backlog is full.
fn knock(path: &Path) -> rustix::io::Result<()> {
    rustix::net::connect(&socket()?, &SocketAddrUnix::new(path)?)
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Binds and listens. Sets the mode before the file exists, so that the file never has another mode.
fn listen(path: &Path) -> rustix::io::Result<UnixListener> {
    let socket = socket()?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

//! The socket's place in the file system: made for us alone, taken over from the dead, never from the living.

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

/// Longest path of a socket, in bytes: `sun_path` without its end.
const PATH_BYTES_MAX: usize = 107;

/// How often the lock is tried, and after what time again: its holder is about to be done.
const LOCK_TRIES: u32 = 100;
const LOCK_TRY_EVERY: Duration = Duration::from_millis(10);

/// Connections that may wait to be taken.
const BACKLOG: i32 = 64;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The system has no room for such a path.
    #[error(
        "the socket's path {} has {} bytes, and the system takes {PATH_BYTES_MAX}: choose a shorter one",
        .path.display(), .path.as_os_str().len()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// Others could put something in our place.
    #[error("the directory {} of the socket is {why}: give the socket a directory of its own, with mode 0700", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something else is there.
    #[error("{} is there already and is no socket: choose another path, or remove it", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Another process serves it.
    #[error("the socket {} is served by another process: stop that one, or choose another path", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A bound is wrong.
    #[error("{0}")]
    Limits(crate::job::ConfigError),
    /// The system refuses.
    #[error("the socket {} cannot be made: {source}", .path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
}

/// A bound socket's file; removed when this is dropped, if it is still ours.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Device and inode.
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
            let _ = fs::remove_file(&self.path); // gone already: as it should be
        }
    }
}

/// Binds a socket of mode 0600 at `path`. A missing directory is made, with mode 0700.
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
    // Two programs that find the same dead socket must not remove each other's new one. The lock is a file of our own: a directory that
    // others may read they may lock as well, for as long as they like.
    let _lock = lock(path).map_err(system)?;
    clear(path)?;
    let listener = listen(path).map_err(|e| system(e.into()))?;
    let place = Place { path: path.to_owned(), identity: identity(path) };
    Ok((listener, place))
}

/// A file beside the socket, locked until it is dropped.
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
        format!("another process has held {} for a second", Path::new(&name).display()),
    ))
}

/// There is no event for a lock that is released.
#[allow(clippy::disallowed_methods)]
fn pause() {
    std::thread::sleep(LOCK_TRY_EVERY);
}

fn make_directory(dir: &Path) -> io::Result<()> {
    if dir.exists() { Ok(()) } else { private::make_dir(dir) }
}

/// Whoever can write there can put a socket of their own in place of ours.
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

/// Whether somebody listens; never waits for one who is too busy to take a connection.
fn knock(path: &Path) -> rustix::io::Result<()> {
    rustix::net::connect(&socket()?, &SocketAddrUnix::new(path)?)
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The mode is set before there is a file, so that nobody ever sees another one.
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

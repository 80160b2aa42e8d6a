//! Listening sockets that outlive the processes that serve them: the guard holds them and passes them to each
//! incarnation.
//!
//! The guard never accepts a connection: clients wait in the backlog until the process accepts them.

use super::wire::WireSpec;
use crate::private;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Maximum number of sockets.
const DOORS_MAX: usize = 64;

/// The sockets by path. Their files are removed on drop.
#[derive(Debug, Default)]
pub(super) struct Doors(BTreeMap<PathBuf, Door>);

#[derive(Debug)]
struct Door {
    listener: UnixListener,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

impl Door {
    /// Returns true if `path` is still the socket that this guard bound, and was neither removed nor replaced by
    /// another guard (the guard of another logical host can run on this machine).
    fn is_at(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == self.file)
    }
}

impl Doors {
    /// Returns the descriptor for a process whose specification requests a socket. It is closed at exec unless kept
    /// open.
    ///
    /// # Errors
    /// The error contains the path.
    pub(super) fn of(&mut self, spec: &WireSpec) -> io::Result<Option<RawFd>> {
        let Some(path) = &spec.listen else { return Ok(None) };
        if let Some(door) = self.0.get(path).filter(|door| door.is_at(path)) {
            return Ok(Some(door.listener.as_raw_fd()));
        }
        let cannot =
            |why: &dyn std::fmt::Display| io::Error::other(format!("cannot listen at {}: {why}", path.display()));
        if !self.0.contains_key(path) && self.0.len() >= DOORS_MAX {
            return Err(cannot(&format!("there are {DOORS_MAX} such sockets already")));
        }
        let door = listen(path).map_err(|error| cannot(&error))?;
        let number = door.listener.as_raw_fd();
        self.0.insert(path.clone(), door);
        Ok(Some(number))
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        for (path, _) in self.0.iter().filter(|(path, door)| door.is_at(path)) {
            let _ = fs::remove_file(path); // a file that stays is replaced by the next guard
        }
    }
}

fn listen(path: &Path) -> io::Result<Door> {
    let listener = listen_at(path)?;
    let there = fs::symlink_metadata(path)?;
    Ok(Door { listener, file: (there.dev(), there.ino()) })
}

/// Listens at a path, accessible to this user only. Replaces the socket of a dead process, but no other file.
pub(in crate::launch) fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("it names no file"));
    };
    private::make_dir(directory)?;
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::other(
                "a file that is not a socket is there: choose another path, or remove the file",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (),
        Err(error) => return Err(error),
    }
    // Through a descriptor: the directory's path may be too long for a socket address.
    let directory = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    let listener = UnixListener::bind(short)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn spec(path: Option<PathBuf>) -> WireSpec {
        let (argv, env, cwd) = (Vec::new(), BTreeMap::new(), PathBuf::from("/"));
        WireSpec { argv, env, cwd, nice: 0, log: None, listen: path, standby: None, secrets: Default::default() }
    }

    #[test]
    fn incarnations_share_a_socket_that_is_removed_with_the_guard() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x".repeat(100)).join("store.sock");
        let mut doors = Doors::default();
        assert_eq!(doors.of(&spec(None)).unwrap(), None);
        let first = doors.of(&spec(Some(path.clone()))).unwrap();
        assert!(first.is_some() && doors.of(&spec(Some(path.clone()))).unwrap() == first);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(doors);
        assert!(!path.exists());
    }

    #[test]
    fn a_client_reaches_the_guard_that_bound_the_socket_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sock");
        let mut hosts = [Doors::default(), Doors::default()];
        for turn in [0, 1, 0, 1] {
            hosts[turn].of(&spec(Some(path.clone()))).unwrap();
            let _client = UnixStream::connect(&path).unwrap();
            let reached = |doors: &Doors| {
                doors.0[&path].listener.set_nonblocking(true).unwrap();
                doors.0[&path].listener.accept().is_ok()
            };
            assert!(reached(&hosts[turn]), "host {turn}");
        }
        let [first, second] = hosts;
        drop(first);
        UnixStream::connect(&path).expect("another one's socket stays");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_guards_socket_is_replaced_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sock");
        drop(UnixListener::bind(&path).unwrap());
        let mut doors = Doors::default();
        doors.of(&spec(Some(path.clone()))).unwrap();
        UnixStream::connect(&path).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "precious").unwrap();
        let error = doors.of(&spec(Some(file.clone()))).unwrap_err().to_string();
        assert!(error.contains("a file that is not a socket") && fs::read(&file).unwrap() == b"precious", "{error}");
    }
}

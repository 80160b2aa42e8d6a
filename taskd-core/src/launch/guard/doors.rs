//! Listening sockets that outlive the processes which serve them: held here, and handed to each incarnation.
//!
//! Nothing is ever accepted here: who connects waits for the process.

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

/// Most of them at once.
const DOORS_MAX: usize = 64;

/// The sockets by their paths. Dropped, they are removed.
#[derive(Debug, Default)]
pub(super) struct Doors(BTreeMap<PathBuf, Door>);

#[derive(Debug)]
struct Door {
    listener: UnixListener,
    /// Device and number of its file.
    file: (u64, u64),
}

impl Door {
    /// Whether who connects there comes to it: not where the guard of another host, which is this machine as well, has put one of its
    /// own there since, or somebody has removed it.
    fn is_at(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == self.file)
    }
}

impl Doors {
    /// The descriptor for a process, which has one if its specification says so. It is closed at exec unless kept open.
    ///
    /// # Errors
    /// With the path, for whom it may concern.
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
            let _ = fs::remove_file(path); // where it stays, the next guard takes its place
        }
    }
}

fn listen(path: &Path) -> io::Result<Door> {
    let listener = listen_at(path)?;
    let there = fs::symlink_metadata(path)?;
    Ok(Door { listener, file: (there.dev(), there.ino()) })
}

/// Listens at a path, for this user alone: in the place of a dead process's socket, and of nothing else.
pub(in crate::launch) fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("it names no file"));
    };
    private::make_dir(directory)?;
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::other("something else is there: choose another path, or remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (),
        Err(error) => return Err(error),
    }
    // Through a descriptor: the directory's name may be too long for a socket's address.
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
    fn one_socket_for_all_incarnations_which_goes_with_the_guard() {
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
    fn the_guard_whose_service_starts_last_is_who_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sock");
        let mut hosts = [Doors::default(), Doors::default()];
        for turn in [0, 1, 0, 1] {
            hosts[turn].of(&spec(Some(path.clone()))).unwrap();
            let _who = UnixStream::connect(&path).unwrap();
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
        assert!(error.contains("something else is there") && fs::read(&file).unwrap() == b"precious", "{error}");
    }
}

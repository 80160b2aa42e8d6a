//! Listening sockets that outlive the processes which serve them: held here, and handed to each incarnation.
//!
//! Nothing is ever accepted here: who connects waits for the process.

use super::wire::WireSpec;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Most of them at once.
const DOORS_MAX: usize = 64;

/// The sockets by their paths. Dropped, they are removed.
#[derive(Debug, Default)]
pub(super) struct Doors(BTreeMap<PathBuf, UnixListener>);

impl Doors {
    /// The descriptor for a process, which has one if its specification says so. It is closed at exec unless kept open.
    ///
    /// # Errors
    /// With the path, for whom it may concern.
    pub(super) fn of(&mut self, spec: &WireSpec) -> io::Result<Option<RawFd>> {
        let Some(path) = &spec.listen else { return Ok(None) };
        if let Some(listener) = self.0.get(path) {
            return Ok(Some(listener.as_raw_fd()));
        }
        let cannot =
            |why: &dyn std::fmt::Display| io::Error::other(format!("cannot listen at {}: {why}", path.display()));
        if self.0.len() >= DOORS_MAX {
            return Err(cannot(&format!("there are {DOORS_MAX} such sockets already")));
        }
        let listener = listen(path).map_err(|error| cannot(&error))?;
        let number = listener.as_raw_fd();
        self.0.insert(path.clone(), listener);
        Ok(Some(number))
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        for path in self.0.keys() {
            let _ = fs::remove_file(path); // where it stays, the next guard takes its place
        }
    }
}

/// In the place of a dead guard's socket, and of nothing else.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("it names no file"));
    };
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::other("something else is there: choose another path, or remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(directory)?,
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
        WireSpec { argv, env, cwd, nice: 0, log: None, listen: path, standby: None }
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

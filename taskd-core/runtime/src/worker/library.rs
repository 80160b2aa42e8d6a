//! Libraries embedded in this program, such as `libtaskd.so`, and their unpacking to where processes can load them.
//!
//! This module loads nothing, and trusts no file or directory that another user could have written.
//!
//! # Destination
//! A library is written to `taskd/NAME-HASH.so` in the user's cache directory (`$XDG_CACHE_HOME`, else `$HOME/.cache`).
//! It is created there completely or not at all, and an existing file is compared byte by byte. If there is no such
//! directory, or files there cannot be written or executed (a read-only root, a user without a home, a file system for
//! data only), the library is written to memory that lives as long as this process.

use crate::private;
use rustix::fs::{AtFlags, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Maximum number of bytes of a file that are searched for a symbol.
const SEARCHED_BYTES_MAX: u64 = 256 << 20;
/// Permission bits that only the owner may have.
const WRITE_BY_OTHERS: u32 = 0o022;

/// The library `libtaskd.so`, with which a training process records what it does.
pub const LIBTASKD: Library = Library::new("libtaskd", include_bytes!(concat!(env!("OUT_DIR"), "/libtaskd.so")));

/// Writes the embedded `libtaskd.so` to a file that processes of this user can load, unless the file exists
/// already. Returns the path of the file.
///
/// # Errors
/// Returns an error if this program was built without the library, or there is no place to write it.
pub fn unpack() -> io::Result<PathBuf> {
    LIBTASKD.unpack()
}

/// Returns true if the file contains the symbol `name`, followed by a zero byte, as a library that exports the
/// symbol does. Only the first 256 MiB of the file are searched.
///
/// # Errors
/// Returns an error if the file cannot be read.
#[doc(hidden)]
pub fn has_symbol(path: &Path, name: &str) -> io::Result<bool> {
    let (mut bytes, name) = (Vec::new(), [name.as_bytes(), b"\0"].concat());
    File::open(path)?.take(SEARCHED_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes.windows(name.len()).any(|window| window == name))
}

/// A shared library (`.so` file) that is embedded in this program.
#[derive(Clone, Copy)]
pub struct Library {
    name: &'static str,
    bytes: &'static [u8],
}

impl Library {
    /// Creates a library from its unique name, without `.so`, and the bytes of its file. `bytes` is empty if the build
    /// could not produce the file.
    #[must_use]
    pub const fn new(name: &'static str, bytes: &'static [u8]) -> Library {
        Library { name, bytes }
    }

    /// Returns the library's name, without `.so`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the library to a file that processes of this user can load, unless the file exists already. Returns the
    /// path of the file.
    ///
    /// # Errors
    /// Returns an error if this program was built without the library, or there is no place to write it.
    pub fn unpack(&self) -> io::Result<PathBuf> {
        if self.bytes.is_empty() {
            return Err(io::Error::other(format!(
                "this program was built without {}.so: see the build's warning",
                self.name
            )));
        }
        let in_cache =
            cache_directory().map_or_else(|| Err(io::ErrorKind::NotFound.into()), |cache| self.write_below(&cache));
        in_cache.or_else(|_| self.in_memory())
    }

    /// Writes the library into a directory that only this user can write to.
    fn write_below(&self, cache: &Path) -> io::Result<PathBuf> {
        let path = cache.join("taskd");
        private::make_dir(&path)?; // so no other user can replace it
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = File::from(rustix::fs::open(&path, flags, Mode::empty())?);
        if !is_ours(&directory)? || rustix::fs::fstatvfs(&directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(io::Error::other(format!("{} is not this user's own, or is mounted noexec", path.display())));
        }
        let name = format!("{}-{:016x}.so", self.name, hash(self.bytes));
        if !self.is_in(&directory, &name).unwrap_or(false) {
            self.write_into(&directory, &name)?;
        }
        Ok(path.join(name))
    }

    fn is_in(&self, directory: &File, name: &str) -> io::Result<bool> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
        if !is_ours(&file)? || file.metadata()?.len() != self.bytes.len() as u64 {
            return Ok(false);
        }
        let mut bytes = Vec::with_capacity(self.bytes.len());
        file.take(self.bytes.len() as u64).read_to_end(&mut bytes)?;
        Ok(bytes == self.bytes)
    }

    /// Writes the file under a temporary name and renames it, so that a loading process finds it complete.
    fn write_into(&self, directory: &File, name: &str) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let new = format!(".{name}.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let remove = || rustix::fs::unlinkat(directory, &new, AtFlags::empty());
        let _ = remove(); // left by an earlier process with the same pid
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(directory, &new, flags, Mode::RUSR | Mode::XUSR)?);
        let written = file.write_all(self.bytes);
        let written = written.and_then(|()| Ok(rustix::fs::renameat(directory, &new, directory, name)?));
        if written.is_err() {
            let _ = remove();
        }
        written
    }

    /// Writes the library to sealed memory, which lives as long as this process.
    fn in_memory(&self) -> io::Result<PathBuf> {
        static HELD: Mutex<BTreeMap<&str, OwnedFd>> = Mutex::new(BTreeMap::new());
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = match held.remove(self.name) {
            Some(memory) => memory,
            None => self.sealed()?,
        };
        let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        held.insert(self.name, memory);
        Ok(path.into())
    }

    fn sealed(&self) -> io::Result<OwnedFd> {
        let memory = rustix::fs::memfd_create(self.name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(memory);
        file.write_all(self.bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file.into())
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("name", &self.name).field("bytes", &self.bytes.len()).finish()
    }
}

/// Returns the user's cache directory, if there is one.
fn cache_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))
}

fn is_ours(file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    Ok(metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & WRITE_BY_OTHERS == 0)
}

/// FNV-1a, for the file name only: the file's content is compared.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_library_is_written_once_and_replaced_when_it_differs() {
        let cache = tempfile::tempdir().unwrap();
        let path = LIBTASKD.write_below(&cache.path().join("not/there/yet")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), LIBTASKD.bytes);
        let inode = || fs::metadata(&path).unwrap().ino();
        let first = inode();
        assert_eq!(
            (LIBTASKD.write_below(&cache.path().join("not/there/yet")).unwrap(), inode()),
            (path.clone(), first)
        );
        let spoil: [&dyn Fn(); 4] = [
            &|| fs::write(&path, b"").unwrap(),
            &|| fs::write(&path, vec![0; LIBTASKD.bytes.len()]).unwrap(),
            &|| fs::remove_file(&path).unwrap(),
            &|| {
                fs::remove_file(&path).unwrap();
                std::os::unix::fs::symlink("/bin/sh", &path).unwrap();
            },
        ];
        for spoil in spoil {
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            spoil();
            assert_eq!(LIBTASKD.write_below(&cache.path().join("not/there/yet")).unwrap(), path);
            assert_eq!(fs::read(&path).unwrap(), LIBTASKD.bytes);
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn a_directory_that_others_can_write_into_is_not_trusted() {
        let cache = tempfile::tempdir().unwrap();
        LIBTASKD.write_below(cache.path()).unwrap();
        for mode in [0o777, 0o1777] {
            fs::set_permissions(cache.path(), Permissions::from_mode(mode)).unwrap();
            let below = cache.path().join("below");
            let why = LIBTASKD.write_below(&below).map(drop);
            assert_eq!(why.is_ok(), mode == 0o1777, "in a sticky directory no other user removes it: {why:?}");
        }
        fs::set_permissions(cache.path(), Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(cache.path().join("taskd"), Permissions::from_mode(0o777)).unwrap();
        assert!(LIBTASKD.write_below(cache.path()).is_err());
        fs::rename(cache.path().join("taskd"), cache.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", cache.path().join("taskd")).unwrap();
        assert!(LIBTASKD.write_below(cache.path()).is_err());
    }

    #[test]
    fn in_memory_it_is_the_same_and_cannot_be_changed() {
        let path = LIBTASKD.in_memory().unwrap();
        assert_eq!(
            (fs::read(&path).unwrap().as_slice(), LIBTASKD.in_memory().unwrap()),
            (LIBTASKD.bytes, path.clone())
        );
        assert!(fs::write(path, b"x").is_err());
    }
}

//! `libtaskd.so` on this machine: the library travels inside of this program, and is written to where processes can load it.
//!
//! It loads nothing, and trusts no file or directory that another user could have written.
//!
//! # Where it is written
//! To `taskd/libtaskd-HASH.so` in the user's cache directory (`$XDG_CACHE_HOME`, else `$HOME/.cache`). It is made there as a
//! whole or not at all, and what stands there already is compared byte by byte. Where there is no such directory, or nothing
//! can be written or executed there (a read-only root, a user without a home, a file system for data only), it is written to
//! memory, which lives as long as this process.

use rustix::fs::{AtFlags, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The library; empty where it could not be built.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libtaskd.so"));
/// What nobody but its owner may do.
const WRITE_BY_OTHERS: u32 = 0o022;

/// Writes the library to where processes of this user can load it, unless it is there already, and says where that is.
///
/// # Errors
/// When this program was built without it, or it can be written nowhere.
pub fn unpack() -> io::Result<PathBuf> {
    if LIBRARY.is_empty() {
        return Err(io::Error::other("this program was built without libtaskd.so, as its build said"));
    }
    let in_cache = cache_directory().map_or_else(|| Err(io::ErrorKind::NotFound.into()), |cache| write_below(&cache));
    in_cache.or_else(|_| in_memory())
}

/// The user's cache directory, if there is one.
fn cache_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))
}

/// The library in a directory of ours.
fn write_below(cache: &Path) -> io::Result<PathBuf> {
    let path = cache.join("taskd");
    DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(rustix::fs::open(&path, flags, Mode::empty())?);
    if !is_ours(&directory)? || rustix::fs::fstatvfs(&directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other(format!("{} is no place for a program of this user", path.display())));
    }
    let name = format!("libtaskd-{:016x}.so", hash(LIBRARY));
    if !holds_library(&directory, &name).unwrap_or(false) {
        write_into(&directory, &name)?;
    }
    Ok(path.join(name))
}

fn is_ours(file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    Ok(metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & WRITE_BY_OTHERS == 0)
}

fn holds_library(directory: &File, name: &str) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
    if !is_ours(&file)? || file.metadata()?.len() != LIBRARY.len() as u64 {
        return Ok(false);
    }
    let mut bytes = Vec::with_capacity(LIBRARY.len());
    file.take(LIBRARY.len() as u64).read_to_end(&mut bytes)?;
    Ok(bytes == LIBRARY)
}

/// Under another name first: whoever loads the library finds all of it.
fn write_into(directory: &File, name: &str) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let new = format!(".{name}.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let remove = || rustix::fs::unlinkat(directory, &new, AtFlags::empty());
    let _ = remove(); // of a process before, which had the same pid
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, &new, flags, Mode::RUSR | Mode::XUSR)?);
    let written = file.write_all(LIBRARY);
    let written = written.and_then(|()| Ok(rustix::fs::renameat(directory, &new, directory, name)?));
    if written.is_err() {
        let _ = remove();
    }
    written
}

/// The library in memory that nobody can change, for as long as this process lives.
fn in_memory() -> io::Result<PathBuf> {
    static HELD: Mutex<Option<OwnedFd>> = Mutex::new(None);
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = match held.take() {
        Some(memory) => memory,
        None => sealed_library()?,
    };
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    *held = Some(memory);
    Ok(path.into())
}

fn sealed_library() -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("libtaskd.so", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    file.write_all(LIBRARY)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// FNV-1a, for a name only: what stands in the file is compared.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_written_once_and_what_stands_there_is_compared() {
        let cache = tempfile::tempdir().unwrap();
        let path = write_below(&cache.path().join("not/there/yet")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), LIBRARY);
        let inode = || fs::metadata(&path).unwrap().ino();
        let first = inode();
        assert_eq!((write_below(&cache.path().join("not/there/yet")).unwrap(), inode()), (path.clone(), first));
        let spoil: [&dyn Fn(); 4] = [
            &|| fs::write(&path, b"").unwrap(),
            &|| fs::write(&path, vec![0; LIBRARY.len()]).unwrap(),
            &|| fs::remove_file(&path).unwrap(),
            &|| {
                fs::remove_file(&path).unwrap();
                std::os::unix::fs::symlink("/bin/sh", &path).unwrap();
            },
        ];
        for spoil in spoil {
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            spoil();
            assert_eq!(write_below(&cache.path().join("not/there/yet")).unwrap(), path);
            assert_eq!(fs::read(&path).unwrap(), LIBRARY);
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn a_directory_that_others_can_write_into_is_not_trusted() {
        let cache = tempfile::tempdir().unwrap();
        write_below(cache.path()).unwrap();
        fs::set_permissions(cache.path().join("taskd"), Permissions::from_mode(0o777)).unwrap();
        assert!(write_below(cache.path()).is_err());
        fs::rename(cache.path().join("taskd"), cache.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", cache.path().join("taskd")).unwrap();
        assert!(write_below(cache.path()).is_err());
    }

    #[test]
    fn in_memory_it_is_the_same_and_cannot_be_changed() {
        let path = in_memory().unwrap();
        assert_eq!((fs::read(&path).unwrap().as_slice(), in_memory().unwrap()), (LIBRARY, path.clone()));
        assert!(fs::write(path, b"x").is_err());
    }
}

//! Creates and verifies private directories and files: only this user and root can change them, whatever the umask is.
//!
//! A user that can write to a directory can replace its entries. Therefore a directory is used only if no user other
//! than this one and root can change it or any directory on its path, as sshd requires for a user's keys. Sticky
//! directories such as `/tmp`, in which users cannot remove each other's files, are accepted on the path. The final
//! component of a file's path is never followed as a symbolic link; only regular files are opened (opening a FIFO could
//! block), with mode 0600.

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links followed on the path to one directory; the same as Linux's limit.
const LINKS_MAX: u32 = 40;
const ROOT: u32 = 0;

/// Creates a directory and its missing parents with mode 0700, and verifies the result.
///
/// # Errors
/// Errors of the system; or another user could change the directory's content: the error names the directory and the
/// remedy.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    let existing = dir.ancestors().find(|above| above.as_os_str().is_empty() || above.symlink_metadata().is_ok());
    let existing = existing.filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_way(existing, existing != dir)?;
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(refused(format!("{} is no directory", dir.display())))
        }
        made => made,
    }?;
    check_dir(dir) // another process may have created it first
}

/// Verifies that only this user and root can change the content of a directory, or replace the directory.
///
/// # Errors
/// Errors of the system; or another user could do so: the error names the directory and the remedy.
pub(crate) fn check_dir(dir: &Path) -> io::Result<()> {
    check_way(dir, false)
}

/// Checks that no other user can change a directory, or any directory on its path. `is_above`: the directory will only
/// contain another one, so it may be sticky.
fn check_way(dir: &Path, is_above: bool) -> io::Result<()> {
    let mut left: Vec<OsString> = components(&std::path::absolute(dir)?);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(next) = left.pop() {
        if next == ".." {
            at.pop();
            continue;
        }
        let here = at.join(&next);
        let stat = rustix::fs::lstat(&here)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            at = here;
            check_one(&at, &stat, is_above || !left.is_empty())?;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        check_owner(&here, &stat, "symbolic link")?;
        let target = fs::read_link(&here)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        left.extend(components(&target));
    }
    Ok(())
}

/// Components of a path in reverse order, without the root and `.`.
fn components(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

fn check_one(path: &Path, stat: &Stat, is_above: bool) -> io::Result<()> {
    check_owner(path, stat, "directory")?;
    let mode = stat.st_mode & 0o7777;
    let by_group = mode & 0o020 != 0 && (!is_own_group(stat.st_gid) || has_acl(path));
    let is_open = by_group || mode & 0o002 != 0;
    if is_open && !(is_above && mode & 0o1000 != 0) {
        return Err(refused(format!(
            "other users may write to the directory {} (mode {mode:04o}), and could replace its files: chmod go-w it, or choose another",
            path.display()
        )));
    }
    Ok(())
}

fn check_owner(path: &Path, stat: &Stat, what: &str) -> io::Result<()> {
    let us = rustix::process::geteuid().as_raw();
    if stat.st_uid == us || stat.st_uid == ROOT {
        return Ok(());
    }
    Err(refused(format!(
        "the {what} {} belongs to user {}, and this process is user {us}: choose another directory, or chown it",
        path.display(),
        stat.st_uid
    )))
}

/// Returns true if the group is this user's private group, by the convention that its number equals the user's.
fn is_own_group(group: u32) -> bool {
    group == rustix::process::geteuid().as_raw()
}

/// Returns true if a directory has an access control list, which may let other users write to it. The group bits of the
/// mode bound what the list allows (`acl(5)`), so the list matters only if these bits allow writing.
fn has_acl(path: &Path) -> bool {
    let size = rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0_u8; 0]);
    !matches!(size, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Opens a private file for reading and writing; creates it if it is missing, and keeps its content.
///
/// # Errors
/// Errors of the system; the path is not a regular file, or another user owns it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::RDWR | OFlags::CREATE)
}

/// Opens a private file for writing and truncates it; creates it if it is missing.
///
/// # Errors
/// Errors of the system; the path is not a regular file, or another user owns it.
pub fn create(path: &Path) -> io::Result<File> {
    let file = open_with(path, OFlags::WRONLY | OFlags::CREATE)?;
    file.set_len(0)?; // only after the check that the file is ours
    Ok(file)
}

/// Opens an existing file of this user or root for reading.
///
/// # Errors
/// Returns an error in the same cases as [`open`].
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let file = open_as(path, OFlags::RDONLY)?;
    check_file(path, &file)?;
    Ok(file)
}

/// Reads a whole file of this user or root that has at most `most` bytes.
///
/// # Errors
/// Returns an error in the same cases as [`open`], and if the file is longer than `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_to_read(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(refused(format!("{} has more than {most} bytes", path.display())));
    }
    Ok(bytes)
}

/// Replaces a file atomically: no reader sees a partly written file.
///
/// # Errors
/// Returns the error of the system call that failed.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, false)
}

/// Replaces a file atomically like [`write`], also with regard to a power failure: the file then has its former or its
/// new content.
///
/// # Errors
/// Returns the error of the system call that failed. The file has its former content, unless only the directory could
/// not be synced.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, true)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

fn replace(path: &Path, bytes: &[u8], is_durable: bool) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (), // left by a writer that was killed
    }
    let mut file = open_with(&new, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    let written = file.write_all(bytes).and_then(|()| if is_durable { file.sync_all() } else { Ok(()) });
    if written.is_err() {
        let _ = fs::remove_file(&new); // a part of it would occupy a full disk
    }
    written?;
    fs::rename(&new, path)
}

/// Fills a buffer with random bytes for secrets.
///
/// # Errors
/// Returns the error of the system call that failed.
pub(crate) fn fill_with_random(bytes: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes)
}

fn open_with(path: &Path, flags: OFlags) -> io::Result<File> {
    let file = open_as(path, flags)?;
    let stat = check_file(path, &file)?;
    if stat.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?; // from an earlier version, or created by hand
    }
    Ok(file)
}

fn open_as(path: &Path, flags: OFlags) -> io::Result<File> {
    let always = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags | always, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => Ok(File::from(fd)),
        Err(Errno::LOOP) => {
            Err(refused(format!("{} is a symbolic link, and is not followed: remove it", path.display())))
        }
        Err(Errno::NXIO) => Err(no_file(path)), // a FIFO without a reader, or a socket
        Err(error) => Err(error.into()),
    }
}

fn check_file(path: &Path, file: &File) -> io::Result<Stat> {
    let stat = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(no_file(path));
    }
    check_owner(path, &stat, "file")?;
    Ok(stat)
}

fn no_file(path: &Path) -> io::Error {
    refused(format!("{} is no regular file: remove it", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn why(result: io::Result<impl Sized>) -> String {
        result.err().expect("it is refused").to_string()
    }

    #[test]
    fn directories_and_files_are_made_for_this_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        make_dir(&deep).unwrap();
        make_dir(&deep).unwrap();
        assert_eq!((mode_of(&deep), mode_of(&dir.path().join("a"))), (0o700, 0o700));
        let file = deep.join("file");
        write(&file, b"one").unwrap();
        write(&file, b"two").unwrap();
        assert_eq!((read(&file, 3).unwrap(), mode_of(&file)), (b"two".to_vec(), 0o600));
        assert!(why(read(&file, 2)).contains("more than 2 bytes"));
        set_mode(&file, 0o666);
        drop(open(&file).unwrap());
        assert_eq!((mode_of(&file), fs::read(&file).unwrap()), (0o600, b"two".to_vec()), "it is made private");
        create(&file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"");
    }

    #[test]
    fn a_directory_writable_by_others_is_refused_except_a_sticky_parent() {
        let dir = tempfile::tempdir().unwrap();
        let (open_to_all, inside) = (dir.path().join("open"), dir.path().join("open/inside"));
        fs::create_dir_all(&inside).unwrap();
        for (mode, is_good) in [(0o777, false), (0o757, false), (0o1777, true), (0o755, true)] {
            set_mode(&open_to_all, mode);
            assert_eq!(check_dir(&inside).is_ok(), is_good, "inside of {mode:o}");
            assert_eq!(check_dir(&open_to_all).is_ok(), mode == 0o755, "{mode:o} itself");
        }
        set_mode(&open_to_all, 0o1777);
        make_dir(&open_to_all.join("made")).unwrap();
        set_mode(&open_to_all, 0o777);
        let error = why(make_dir(&inside.join("new")));
        assert!(error.contains("open (mode 0777)") && error.contains("chmod go-w"), "{error}");
        assert!(!inside.join("new").exists(), "nothing is made there");
    }

    /// Grants user 65534 write access to a directory by an access control list (`acl(5)`), in Linux's stored form.
    fn let_another_write(dir: &Path) -> io::Result<()> {
        const NOBODY: u32 = u32::MAX;
        let mut list = 2_u32.to_le_bytes().to_vec(); // version of the format
        let (owner, user, group, mask, others) = (0x01_u16, 0x02, 0x04, 0x10, 0x20);
        for (tag, may, id) in
            [(owner, 7_u16, NOBODY), (user, 7, 65534), (group, 7, NOBODY), (mask, 7, NOBODY), (others, 5, NOBODY)]
        {
            list.extend(tag.to_le_bytes());
            list.extend(may.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        Ok(rustix::fs::setxattr(dir, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty())?)
    }

    #[test]
    fn a_directory_that_an_acl_lets_another_user_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        fs::create_dir(&own).unwrap();
        std::os::unix::fs::chown(&own, None, Some(rustix::process::geteuid().as_raw())).unwrap_or_default();
        set_mode(&own, 0o775);
        assert!(!is_own_group(fs::metadata(&own).unwrap().gid()) || check_dir(&own).is_ok(), "a group of its own");
        if let Err(error) = let_another_write(&own) {
            return println!("skipped: this file system has no access control lists: {error}");
        }
        let reason = why(check_dir(&own));
        assert!(reason.contains("own (mode 0775)") && reason.contains("chmod go-w"), "{reason}");
        set_mode(&own, 0o755); // now the list grants no other user write access
        check_dir(&own).unwrap();
    }

    #[test]
    fn links_to_directories_are_followed_and_links_to_files_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (there, link) = (dir.path().join("there/deep"), dir.path().join("link"));
        fs::create_dir_all(&there).unwrap();
        symlink("there/../there", &link).unwrap();
        check_dir(&link.join("deep")).unwrap();
        set_mode(&dir.path().join("there"), 0o777);
        assert!(why(check_dir(&link.join("deep"))).contains("there (mode 0777)"));
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(check_dir(&dir.path().join("loop")).is_err());
        let (file, to_file) = (dir.path().join("file"), dir.path().join("to-file"));
        fs::write(&file, "precious").unwrap();
        symlink(&file, &to_file).unwrap();
        for error in [why(open(&to_file)), why(create(&to_file)), why(open_to_read(&to_file))] {
            assert!(error.contains("symbolic link"), "{error}");
        }
        write(&to_file, b"new").unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "precious");
    }

    #[test]
    fn a_fifo_is_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for error in [why(open(&fifo)), why(create(&fifo)), why(open_to_read(&fifo)), why(read(&fifo, 9))] {
            assert!(error.contains("is no regular file"), "{error}");
        }
        assert!(why(make_dir(&fifo)).contains("directory"));
    }

    #[test]
    fn another_users_directory_link_and_file_are_refused() {
        const NOBODY: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give a file to another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let give = |path: &Path| std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        let (theirs, file, link) = (dir.path().join("theirs"), dir.path().join("file"), dir.path().join("link"));
        fs::create_dir_all(theirs.join("ours")).unwrap();
        fs::write(&file, "").unwrap();
        symlink("/usr", &link).unwrap();
        for path in [&theirs, &file, &link] {
            give(path);
        }
        for error in
            [why(make_dir(&theirs)), why(make_dir(&theirs.join("ours"))), why(check_dir(&link)), why(open(&file))]
        {
            assert!(error.contains("belongs to user 65534, and this process is user 0"), "{error}");
        }
    }
}

//! Reads the files of certificates, keys and tokens.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::error::SecurityError;

/// Longest accepted file, in bytes: a bundle of several hundred certificates.
pub const SECURITY_FILE_BYTES_MAX: u64 = 1 << 20;
/// Access of all other users, and of other users than owner and group.
const OTHERS: u32 = 0o007;
const GROUP: u32 = 0o070;

/// Requirement on the access of other users to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Any user may read the file.
    Public,
    /// Only the owner may read the file; the group may, if the owner is root (for keys that the administrator of a host
    /// provides to services). Source of the rule: PostgreSQL's `ssl_key_file`.
    Secret,
}

/// What changes when a file is replaced or written: inode, length, and time of the last modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Fingerprint {
    /// Returns the fingerprint of the file at `path`, or `None` if there is none.
    pub(super) fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|metadata| Self::new(&metadata))
    }

    fn new(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// A file's content, with the fingerprint that the file had before the content was read.
pub(super) struct Content {
    pub(super) content: Vec<u8>,
    pub(super) fingerprint: Fingerprint,
}

/// Reads a file after a check of its access.
pub(super) fn read(what: &'static str, path: &Path, access: Access) -> Result<Content, SecurityError> {
    let unreadable = |source| SecurityError::Unreadable { what, path: path.to_owned(), source };
    // A pipe would block the open.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    let file = File::open(path).map_err(unreadable)?;
    // Of the open file: the name may refer to another one by now.
    let metadata = file.metadata().map_err(unreadable)?;
    let mode = metadata.mode() & 0o7777;
    let exposed = mode & OTHERS != 0 || (mode & GROUP != 0 && metadata.uid() != 0);
    if access == Access::Secret && exposed {
        return Err(SecurityError::Exposed { what, path: path.to_owned(), mode });
    }
    let mut content = Vec::new();
    file.take(SECURITY_FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > SECURITY_FILE_BYTES_MAX {
        let reason = format!("it is longer than {SECURITY_FILE_BYTES_MAX} bytes");
        return Err(SecurityError::Malformed { what, path: path.to_owned(), reason });
    }
    Ok(Content { content, fingerprint: Fingerprint::new(&metadata) })
}

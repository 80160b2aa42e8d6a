//! Rank table files: reads them up to a size limit, and replaces them atomically.
//!
//! Beside a table is a file `version` with a number that changes whenever the table does, for readers that poll.

use super::packed::BYTES_MAX;
use super::{Problems, RankTable};
use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Reason why a rank table could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Reading or writing the rank table, or writing the file `version` in the same directory, failed.
    #[error("the rank table {} cannot be {action}: {source}", path.display())]
    Io {
        /// Path of the file that could not be read or written: the rank table, or the file `version` in its directory.
        path: PathBuf,
        /// Word for the failed action in the error message: `read` or `written`.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file of the rank table is larger than 1 GB, the maximum that HCCL accepts.
    #[error("the rank table {} has more than {BYTES_MAX} bytes", path.display())]
    TooLong {
        /// Path of the rank table.
        path: PathBuf,
    },
    /// The file's content is no valid rank table.
    #[error("the rank table {} cannot be used: {problems}", path.display())]
    Wrong {
        /// Path of the rank table.
        path: PathBuf,
        /// All problems of the table.
        problems: Problems,
    },
}

impl RankTable {
    /// Reads a rank table from a file that contains JSON, or gzip-compressed JSON in base64.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file cannot be read, is larger than 1 GB, or contains an invalid table.
    pub fn read(path: impl AsRef<Path>) -> Result<RankTable, FileError> {
        let path = path.as_ref();
        let io = |source| FileError::Io { path: path.to_owned(), action: "read", source };
        let mut bytes = Vec::new();
        let length = File::open(path).map_err(io)?.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
        if length as u64 > BYTES_MAX {
            return Err(FileError::TooLong { path: path.to_owned() });
        }
        RankTable::from_bytes(&bytes).map_err(|problems| FileError::Wrong { path: path.to_owned(), problems })
    }

    /// Replaces the file `path` with the rank table atomically, then writes the number `version` into the file named
    /// `version` in the same directory: a reader that sees the new number also finds the new table. The number has to
    /// differ from the previous one; MindCluster's operator uses the time in seconds.
    ///
    /// # Errors
    /// Returns [`FileError::Io`] if one of the two files cannot be written. The file `version` then has its old
    /// content; the rank table may have been replaced already.
    pub fn write(&self, path: impl AsRef<Path>, version: u64) -> Result<(), FileError> {
        let path = path.as_ref();
        let number = path.with_file_name("version");
        for (path, text) in [(path, self.to_json()), (number.as_path(), version.to_string())] {
            let io = |source| FileError::Io { path: path.to_owned(), action: "written", source };
            write_whole(path, text.as_bytes()).map_err(io)?;
        }
        Ok(())
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let readable = Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().prefix(".").permissions(readable).tempfile_in(dir)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|failed| failed.error)
}

//! Rank tables as files: read within bounds, written so that nobody ever sees half of one.
//!
//! A table lies beside a file `version`, a number that changes whenever the table does: whoever polls looks at that.

use super::packed::BYTES_MAX;
use super::{Problems, RankTable};
use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Why a rank table could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system says no.
    #[error("the rank table {} cannot be {action}: {source}", path.display())]
    Io {
        /// The table or the file `version` beside it.
        path: PathBuf,
        /// `read` or `written`.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It is longer than HCCL takes.
    #[error("the rank table {} has more than {BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// What is in it is wrong.
    #[error("the rank table {} cannot be used: {problems}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Everything that is wrong.
        problems: Problems,
    },
}

impl RankTable {
    /// Reads a table from a file, compressed or not.
    ///
    /// # Errors
    /// It cannot be read, is too long, or is wrong.
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

    /// Writes the table in one go, and then `version` into the file of that name beside it: whoever sees the new number
    /// finds the new table. The operator takes the time in seconds as the number; it has to be another one than before.
    ///
    /// # Errors
    /// One of them cannot be written: it is as it was, and so is the number.
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

//! Files of a job's configuration, read within a bound. It says of each what is wrong, where, and what to do.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use taskd_core::job::{NotText, document_text};

/// Most bytes of such a file. What a cluster takes is smaller.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why a file of a job's configuration is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFileError {
    /// The system says no.
    #[error("{} cannot be read: {source}: correct the path, or leave the file out", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is longer than any such file.
    #[error("{} has more than {FILE_BYTES_MAX} bytes: name the job's own file", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It is not UTF-8.
    #[error("{} is no text in UTF-8 (byte {at}): name the job's own file", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
        /// The first byte that is none.
        at: usize,
    },
    /// It begins with a byte-order mark, or is a job's file with nothing in it.
    #[error("{} {what}", path.display())]
    NoDocument {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: NotText,
    },
    /// A job in which places are left that a program is to fill in: what it says of the job is not known.
    #[error(
        "{} is a template that was not rendered: {at} is {text:?}: name the file that the cluster is given",
        path.display()
    )]
    Unrendered {
        /// The file.
        path: PathBuf,
        /// Where: a line, or a path such as `$.metadata.labels`.
        at: String,
        /// What stands there.
        text: String,
    },
    /// A job that is neither YAML nor JSON, or too much of it.
    #[error("{} cannot be used, line {line}: {what}: name the file that the cluster is given", path.display())]
    NoJob {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// Not what Kubernetes writes of labels or annotations.
    #[error(
        "{} cannot be used, line {line}: {what}: name a file that the downward API makes of metadata.labels or \
         metadata.annotations, or one that is named like a key and holds its value",
        path.display()
    )]
    NoDownward {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
}

/// What is wrong with a text of this file, if anything is.
pub(super) fn not_text(path: &Path, bytes: &[u8]) -> Option<ConfigFileError> {
    let path = path.to_owned();
    document_text(bytes).err().map(|what| match what {
        NotText::NotUtf8 { at } => ConfigFileError::NoText { path, at },
        what => ConfigFileError::NoDocument { path, what },
    })
}

/// Whether a file is refused for having nothing in it.
pub(super) const fn is_empty(error: &ConfigFileError) -> bool {
    matches!(error, ConfigFileError::NoDocument { what: NotText::Empty, .. })
}

/// The text of a file. It may be empty: such is a downward-API file of a pod without annotations.
pub(super) fn text(path: &Path) -> Result<String, ConfigFileError> {
    let io = |source| ConfigFileError::Io { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(io::Error::other("it is no file"))); // a pipe would be waited for
    }
    let mut bytes = Vec::new();
    let length = File::open(path).map_err(io)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(ConfigFileError::TooLong { path: path.to_owned() });
    }
    if let Some(error) = not_text(path, &bytes).filter(|error| !is_empty(error)) {
        return Err(error);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned()) // it is UTF-8
}

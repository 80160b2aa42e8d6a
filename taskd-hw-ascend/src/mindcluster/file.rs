//! Configuration files of a job: reads them up to a size limit, and defines their errors.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use taskd_core::job::{NotText, document_text};

/// Maximum size of a job's configuration file in bytes (1 MiB). Files that a cluster accepts are smaller.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reason why a configuration file of a job, a job file or a downward-API file, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFileError {
    /// The operating system returned an error when the file was read.
    #[error("{} cannot be read: {source}: correct the path, or leave the file out", path.display())]
    Io {
        /// Path of the configuration file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is larger than [`FILE_BYTES_MAX`].
    #[error("{} has more than {FILE_BYTES_MAX} bytes: name the job's own file", path.display())]
    TooLong {
        /// Path of the configuration file.
        path: PathBuf,
    },
    /// The file is not UTF-8.
    #[error("{} is not UTF-8 text (byte {at}): name the job's own file", path.display())]
    NoText {
        /// Path of the configuration file.
        path: PathBuf,
        /// Offset of the first invalid byte, from the start of the file.
        at: usize,
    },
    /// The configuration file starts with a byte-order mark, or it is an empty job file.
    #[error("{} {what}", path.display())]
    NoDocument {
        /// Path of the configuration file.
        path: PathBuf,
        /// The defect of the file's content, such as a byte-order mark.
        what: NotText,
    },
    /// The job file contains a template placeholder that was not rendered, so the real value is unknown.
    #[error(
        "{} is a template that was not rendered: {at} is {text:?}: name the file submitted to the cluster",
        path.display()
    )]
    Unrendered {
        /// Path of the job file.
        path: PathBuf,
        /// Place of the placeholder in the file: a line, or a path such as `$.metadata.labels`.
        at: String,
        /// Text of the template placeholder.
        text: String,
    },
    /// The content of the job file is not a job, is neither YAML nor JSON, or exceeds a limit.
    #[error("{} cannot be used, line {line}: {what}: name the file submitted to the cluster", path.display())]
    NoJob {
        /// Path of the job file.
        path: PathBuf,
        /// Number of the line with the problem, from 1.
        line: usize,
        /// Description of the problem in that line.
        what: String,
    },
    /// The file does not have the format that Kubernetes writes for labels or annotations.
    #[error(
        "{} cannot be used, line {line}: {what}: name a file that the downward API writes for metadata.labels or \
         metadata.annotations, or one that has a key's name and contains its value",
        path.display()
    )]
    NoDownward {
        /// Path of the downward-API file.
        path: PathBuf,
        /// Number of the line with the problem, from 1.
        line: usize,
        /// Description of the problem in that line.
        what: String,
    },
}

/// Returns an error if the bytes are not usable as text.
pub(super) fn not_text(path: &Path, bytes: &[u8]) -> Option<ConfigFileError> {
    let path = path.to_owned();
    document_text(bytes).err().map(|what| match what {
        NotText::NotUtf8 { at } => ConfigFileError::NoText { path, at },
        what => ConfigFileError::NoDocument { path, what },
    })
}

/// Returns true if the file was refused because it is empty.
pub(super) const fn is_empty(error: &ConfigFileError) -> bool {
    matches!(error, ConfigFileError::NoDocument { what: NotText::Empty, .. })
}

/// Reads the text of a file. It may be empty, as the downward-API file of a pod without annotations is.
pub(super) fn text(path: &Path) -> Result<String, ConfigFileError> {
    let io = |source| ConfigFileError::Io { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(io::Error::other("it is not a regular file"))); // reading a pipe would block
    }
    let mut bytes = Vec::new();
    let length = File::open(path).map_err(io)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(ConfigFileError::TooLong { path: path.to_owned() });
    }
    if let Some(error) = not_text(path, &bytes).filter(|error| !is_empty(error)) {
        return Err(error);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned()) // checked to be UTF-8 above
}

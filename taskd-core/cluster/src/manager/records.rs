//! Records of a host, fetched when they are requested: for a report, or to examine a fault.

use super::Manager;
use super::host::Host;
use crate::session::{CallError, Request};
use crate::wire::{
    ListRecords, PART_BYTES_MAX, ReadRecords, RecordFile, RecordsList, RecordsPart, decode, encode, method,
};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use taskd_runtime::__private::{create_private_file, make_private_dir};
use taskd_runtime::job::{NodeId, Rank};
use taskd_runtime::launch::LaunchError;

/// Which records to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordsRequest {
    /// Only files that were written to at this time or later, in seconds since 1970 of the host.
    pub since: u64,
    /// Only records of these ranks; `None` for all.
    pub ranks: Option<BTreeSet<Rank>>,
    /// Bytes that are fetched from a host at most: the newest files. Default: 256 MiB.
    pub bytes_max: u64,
}

impl Default for RecordsRequest {
    /// Returns a request of all records, up to 256 MiB of each host.
    fn default() -> RecordsRequest {
        RecordsRequest { since: 0, ranks: None, bytes_max: 256 << 20 }
    }
}

impl RecordsRequest {
    /// Requests only files that were written to at this time or later, in seconds since 1970 of the host.
    #[must_use]
    pub fn since(mut self, unix_seconds: u64) -> RecordsRequest {
        self.since = unix_seconds;
        self
    }

    /// Requests only records of these ranks.
    #[must_use]
    pub fn of_ranks(mut self, ranks: impl IntoIterator<Item = Rank>) -> RecordsRequest {
        self.ranks = Some(ranks.into_iter().collect());
        self
    }

    /// Sets the number of bytes that are fetched from a host at most.
    #[must_use]
    pub fn at_most(mut self, bytes: u64) -> RecordsRequest {
        self.bytes_max = bytes;
        self
    }
}

/// Records that were fetched from a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedRecords {
    /// Files that were written here.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Files that stayed on the host: beyond the bound of the request, or deleted there meanwhile.
    pub left_out: u64,
}

/// Error of records that could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    /// The host is not connected.
    #[error("{0} is not connected: its records stay on it")]
    NoHost(NodeId),
    /// The host cannot send its records; contains the host and the reason.
    #[error("the records of {0} cannot be fetched: {1}")]
    Host(NodeId, String),
    /// A file cannot be written here; contains its path.
    #[error("{} cannot be written: {source}", path.display())]
    Io {
        /// Path of the file or the directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl Manager {
    /// Copies records of a host to `into/RANK/FILE`, as the host's own trace store lays them out, so that
    /// [`RankFiles::list`](taskd_runtime::trace::store::RankFiles::list) finds them. The host keeps them.
    ///
    /// # Errors
    /// Returns [`RecordsError`] if the host is not connected, keeps no records or is lost meanwhile, or a file cannot be
    /// written. What was copied by then stays.
    pub async fn fetch_records(
        &self,
        host: &NodeId,
        request: &RecordsRequest,
        into: &Path,
    ) -> Result<FetchedRecords, RecordsError> {
        let host = self.inner.lock().get(host).cloned().ok_or_else(|| RecordsError::NoHost(host.clone()))?;
        let ranks = request.ranks.iter().flatten().copied().collect();
        let RecordsList { files, left_out } =
            call(&host, method::RECORDS_LIST, &ListRecords { since: request.since, ranks }).await?;
        let mut fetched = FetchedRecords { left_out, ..FetchedRecords::default() };
        for file in files {
            let left = request.bytes_max.saturating_sub(fetched.bytes);
            let bytes = if file.bytes <= left { copy(&host, &file, into).await? } else { 0 };
            fetched.bytes += bytes;
            if bytes > 0 { fetched.files += 1 } else { fetched.left_out += 1 }
        }
        Ok(fetched)
    }
}

/// Copies a file, as long as it was when it was listed. Returns the number of bytes; 0 if the host has deleted it.
async fn copy(host: &Arc<Host>, file: &RecordFile, into: &Path) -> Result<u64, RecordsError> {
    let RecordFile { rank, name, bytes } = file;
    let is_plain =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '.') && !name.starts_with('.');
    if !is_plain {
        let why = format!("it lists a file with the name {name:?}");
        return Err(RecordsError::Host(host.name.clone(), why));
    }
    let path = into.join(rank.0.to_string()).join(name);
    let (mut copied, mut written) = (0, None);
    while copied < *bytes {
        let length = (bytes - copied).min(PART_BYTES_MAX);
        let part = ReadRecords { rank: *rank, name: name.clone(), offset: copied, bytes: length };
        let mut data = match call::<RecordsPart>(host, method::RECORDS_READ, &part).await {
            Ok(part) => part.data,
            Err(error) if copied == 0 => {
                tracing::warn!(host = %host.name, file = %name, %error, "a file with records is left out");
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        if data.is_empty() {
            break; // the file was cut
        }
        data.truncate(usize::try_from(length).unwrap_or(usize::MAX)); // not more than was requested
        copied += data.len() as u64;
        let (file, to) = (written.take(), path.clone());
        let writing = tokio::task::spawn_blocking(move || append(file, &to, &data)).await;
        let file = writing.map_err(io::Error::other).flatten();
        written = Some(file.map_err(|source| RecordsError::Io { path: path.clone(), source })?);
    }
    Ok(copied)
}

/// Appends a part to the file, which is created for the first one: other users cannot read it, and no link is followed.
fn append(file: Option<File>, path: &Path, data: &[u8]) -> io::Result<File> {
    let mut file = match file {
        Some(file) => file,
        None => {
            if let Some(dir) = path.parent() {
                make_private_dir(dir)?;
            }
            create_private_file(path)?
        }
    };
    file.write_all(data)?;
    Ok(file)
}

async fn call<T: DeserializeOwned>(
    host: &Host,
    method: &'static str,
    arguments: &impl Serialize,
) -> Result<T, RecordsError> {
    let failed = |why: &dyn fmt::Display| RecordsError::Host(host.name.clone(), why.to_string());
    let arguments = encode(arguments).map_err(|error| failed(&error))?;
    match host.session().calls.call(Request::new(method, arguments), true).await {
        Ok(answer) => decode(&answer).map_err(|error| failed(&error)),
        Err(CallError::Failed(error)) => match decode::<LaunchError>(&error) {
            Ok(error) => Err(failed(&error)),
            Err(error) => Err(failed(&error)),
        },
        Err(error) => Err(failed(&error)),
    }
}

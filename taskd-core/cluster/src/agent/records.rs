//! The record files of a host: lists them and reads parts of them when the manager requests that. They stay where they
//! are.

use crate::wire::{FILES_MAX, ListRecords, PART_BYTES_MAX, ReadRecords, RecordFile, RecordsList, RecordsPart};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use taskd_runtime::job::Rank;
use taskd_runtime::launch::LaunchError;
use taskd_runtime::trace::store::{RankFiles, StoredFile};

/// Lists the record files in `dir`, the directory of a task in a trace store.
pub(super) async fn list(dir: Option<&Path>, request: ListRecords) -> Result<RecordsList, LaunchError> {
    on_disk(dir, move |dir| files(dir, &request)).await
}

/// Reads a part of a record file.
pub(super) async fn read(dir: Option<&Path>, request: ReadRecords) -> Result<RecordsPart, LaunchError> {
    on_disk(dir, move |dir| part(dir, &request)).await
}

/// Works on the directory of the records in a thread that may wait for a disk.
async fn on_disk<T: Send + 'static>(
    dir: Option<&Path>,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, LaunchError> {
    let none = || LaunchError::Refused("this host keeps no records: its agent was started without a directory".into());
    let dir: PathBuf = dir.ok_or_else(none)?.to_owned();
    let failed = |why: String| LaunchError::Refused(format!("the records of this host cannot be read: {why}"));
    let done = tokio::task::spawn_blocking(move || work(&dir)).await;
    done.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

fn files(dir: &Path, request: &ListRecords) -> io::Result<RecordsList> {
    let since = UNIX_EPOCH.checked_add(Duration::from_secs(request.since));
    let mut all = Vec::new();
    for entry in entries(dir)? {
        let entry = entry?;
        let rank = entry.file_name().to_str().and_then(|name| name.parse().ok()).map(Rank);
        let Some(rank) = rank.filter(|rank| request.ranks.is_empty() || request.ranks.contains(rank)) else { continue };
        for StoredFile { seconds, path, .. } in RankFiles::list(&entry.path())?.files {
            let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue }; // deleted by the quota meanwhile
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if metadata.is_file() && since.is_some_and(|since| metadata.modified().is_ok_and(|at| at >= since)) {
                all.push((seconds, RecordFile { rank, name, bytes: metadata.len() }));
            }
        }
    }
    all.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.rank.cmp(&other.rank)));
    let left_out = all.len().saturating_sub(FILES_MAX) as u64;
    Ok(RecordsList { files: all.into_iter().take(FILES_MAX).map(|(_, file)| file).collect(), left_out })
}

/// Returns the entries of the directory; none if no record was written yet.
fn entries(dir: &Path) -> io::Result<impl Iterator<Item = io::Result<std::fs::DirEntry>>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        entries => Some(entries?),
    };
    Ok(entries.into_iter().flatten())
}

fn part(dir: &Path, request: &ReadRecords) -> io::Result<RecordsPart> {
    // Only files that the store lists are opened, whatever name was sent.
    let listed = RankFiles::list(&dir.join(request.rank.0.to_string()))?;
    let is_it = |file: &&StoredFile| file.path.file_name().is_some_and(|name| name == request.name.as_str());
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{} has no file {}", request.rank, request.name));
    let file = listed.files.iter().find(is_it).ok_or_else(missing)?;
    let mut file = File::open(&file.path)?;
    file.seek(SeekFrom::Start(request.offset))?;
    let mut data = Vec::new();
    file.take(request.bytes.min(PART_BYTES_MAX)).read_to_end(&mut data)?;
    Ok(RecordsPart { data: data.into() })
}

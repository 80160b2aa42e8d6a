//! Reads the trace stores of taskd below a directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use taskd_analysis::model::{Missing, Trace};
use taskd_analysis::records::Records;
use taskd_runtime::job::Rank;
use taskd_runtime::trace::store::{Format, Problem, RankFiles, StoredFile};

/// Reads the stored files of each rank as one trace.
///
/// A store may have the same records in both formats; the native one has more of them, and counts where it exists.
///
/// # Errors
/// A directory cannot be listed. Files that cannot be read are named among the missing parts.
pub fn read(ranks: &BTreeMap<u32, Vec<PathBuf>>, title: &str) -> io::Result<Trace> {
    read_into(ranks, title, None)
}

/// Reads the newest files of each rank of a run that is still going on.
///
/// `bytes_max`: bound of the files that are read, in equal parts for each rank. The newest file of each rank is always
/// read. Older files are counted among the missing parts.
///
/// # Errors
/// As those of [`read`].
pub fn read_running(ranks: &BTreeMap<u32, Vec<PathBuf>>, title: &str, bytes_max: u64) -> io::Result<Trace> {
    read_into(ranks, title, Some(bytes_max))
}

/// Returns the directories of the ranks below the directory of a task. A directory that does not exist yet has none.
///
/// # Errors
/// The directory cannot be listed.
pub fn ranks_of(task: &Path) -> io::Result<BTreeMap<u32, Vec<PathBuf>>> {
    let mut ranks: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
    let entries = match std::fs::read_dir(task) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ranks),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if let Some(rank) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            ranks.entry(rank).or_default().push(entry.path());
        }
    }
    Ok(ranks)
}

/// Returns true if the directory has files of a store.
#[must_use]
pub fn has_files(dir: &Path) -> bool {
    RankFiles::list(dir).is_ok_and(|found| !found.files.is_empty())
}

/// `running`: bound of the files, if their writers still run.
fn read_into(ranks: &BTreeMap<u32, Vec<PathBuf>>, title: &str, running: Option<u64>) -> io::Result<Trace> {
    let mut records = running.map_or_else(Records::default, |_| Records::still_running());
    let mut missing = Vec::new();
    let of_each = running.map(|bytes_max| bytes_max / u64::try_from(ranks.len().max(1)).unwrap_or(u64::MAX));
    for (rank, dirs) in ranks {
        let mut files = Vec::new();
        for dir in dirs {
            files.append(&mut of_one_format(RankFiles::list(dir)?.files));
        }
        let left_out = of_each.map_or(0, |bytes_max| keep_newest(&mut files, bytes_max));
        if left_out > 0 {
            let what =
                format!("rank {rank}: {left_out} older files were not read: a live page shows the newest records");
            missing.push(Missing { rank: Some(*rank), what });
        }
        let newest = files.last().map(|file| file.path.clone()).filter(|_| running.is_some());
        for file in files {
            let is_written = newest.as_ref() == Some(&file.path);
            if let Err(what) = file_into(&mut records, *rank, &file, is_written) {
                missing.push(Missing { rank: Some(*rank), what: format!("rank {rank}: {what}") });
            }
        }
    }
    let mut trace = records.finish(title);
    trace.missing.append(&mut missing);
    Ok(trace)
}

fn of_one_format(mut files: Vec<StoredFile>) -> Vec<StoredFile> {
    if files.iter().any(|file| file.format == Format::Native) {
        files.retain(|file| file.format == Format::Native);
    }
    files
}

/// Removes the oldest files until the others have at most `bytes_max`, and returns their number.
fn keep_newest(files: &mut Vec<StoredFile>, bytes_max: u64) -> usize {
    let mut bytes = 0_u64;
    let newest = files.iter().rev().take_while(|file| {
        let is_first = bytes == 0;
        bytes = bytes.saturating_add(std::fs::metadata(&file.path).map_or(0, |found| found.len()));
        is_first || bytes <= bytes_max
    });
    let left_out = files.len() - newest.count();
    files.drain(..left_out);
    left_out
}

/// Reads one file. Parts of it that were skipped are an error after its other records were taken. The end of a file that
/// `is_written` may be incomplete.
fn file_into(records: &mut Records, rank: u32, file: &StoredFile, is_written: bool) -> Result<(), String> {
    let path = file.path.display();
    let mut reader = file.read(Rank(rank)).map_err(|error| format!("{path} was not read: {error}"))?;
    for batch in reader.by_ref() {
        records.take(&batch);
    }
    let skipped = reader.skipped();
    match skipped.problems.first() {
        None => Ok(()),
        Some(Problem::Torn { .. }) if is_written && skipped.count == 1 => Ok(()),
        Some(first) => Err(format!("{path} has {} damaged part(s): {first}", skipped.count)),
    }
}

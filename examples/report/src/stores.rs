//! Reads the trace stores of taskd below a directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use taskd_core::analysis::model::{Missing, Trace};
use taskd_core::analysis::records::Records;
use taskd_core::job::Rank;
use taskd_core::trace::store::{Format, RankFiles, StoredFile};

/// Reads the stored files of each rank as one trace.
///
/// A store may have the same records in both formats; the native one has more of them, and counts where it exists.
///
/// # Errors
/// A directory cannot be listed. Files that cannot be read are named among the missing parts.
pub fn read(ranks: &BTreeMap<u32, Vec<PathBuf>>, title: &str) -> io::Result<Trace> {
    let mut records = Records::default();
    let mut missing = Vec::new();
    for (rank, dirs) in ranks {
        for dir in dirs {
            for file in of_one_format(RankFiles::list(dir)?.files) {
                if let Err(what) = file_into(&mut records, *rank, &file) {
                    missing.push(Missing { rank: Some(*rank), what: format!("rank {rank}: {what}") });
                }
            }
        }
    }
    let mut trace = records.finish(title);
    trace.missing.append(&mut missing);
    Ok(trace)
}

/// Returns true if the directory has files of a store.
#[must_use]
pub fn has_files(dir: &Path) -> bool {
    RankFiles::list(dir).is_ok_and(|found| !found.files.is_empty())
}

fn of_one_format(mut files: Vec<StoredFile>) -> Vec<StoredFile> {
    if files.iter().any(|file| file.format == Format::Native) {
        files.retain(|file| file.format == Format::Native);
    }
    files
}

/// Reads one file. Parts of it that were skipped are an error after its other records were taken.
fn file_into(records: &mut Records, rank: u32, file: &StoredFile) -> Result<(), String> {
    let path = file.path.display();
    let mut reader = file.read(Rank(rank)).map_err(|error| format!("{path} was not read: {error}"))?;
    for batch in reader.by_ref() {
        records.take(&batch);
    }
    let skipped = reader.skipped();
    match skipped.problems.first() {
        None => Ok(()),
        Some(first) => Err(format!("{path} has {} damaged part(s): {first}", skipped.count)),
    }
}

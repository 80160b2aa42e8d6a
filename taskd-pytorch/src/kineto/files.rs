//! One file per rank: which files a directory has, which rank each belongs to, and how they are read at the same time.

use super::document::Document;
use super::window::decompressed;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use taskd_core::analysis::model::Missing;
use thiserror::Error;

/// Reason for which no trace could be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KinetoError {
    /// The directory or the file cannot be opened.
    #[error("{} cannot be read: {source}", path.display())]
    Open {
        /// Path of the directory or file.
        path: PathBuf,
        /// Reason that the operating system gives.
        source: io::Error,
    },
    /// The directory has no trace file.
    #[error("{} has no trace file: one *.json or *.json.gz per rank is expected", path.display())]
    NoFile {
        /// Path of the directory.
        path: PathBuf,
    },
}

/// Result of reading one file.
pub(super) struct Part<T> {
    /// Name of the file.
    pub(super) name: String,
    pub(super) document: Document,
    pub(super) value: T,
}

/// Returns the trace files of a directory in the order of their names.
pub(super) fn find(directory: &Path) -> Result<Vec<PathBuf>, KinetoError> {
    let failed = |source| KinetoError::Open { path: directory.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = file_name(&path);
        if (name.ends_with(".json") || name.ends_with(".json.gz")) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() { Err(KinetoError::NoFile { path: directory.to_owned() }) } else { Ok(paths) }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the names of the files in messages: their paths below the directory that contains all of them, because in
/// several directories the files of all ranks can have one name.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let contains_all = |directory: &&Path| paths.iter().all(|path| path.starts_with(directory));
    let Some(first) = paths.first() else { return Vec::new() };
    let root = first.ancestors().skip(1).find(contains_all).unwrap_or(Path::new(""));
    let name = |path: &PathBuf| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    paths.iter().map(name).collect()
}

/// Reads all files, as many at the same time as the machine has cores. The result is in the order of the paths.
pub(super) fn read_all<T: Send + Default>(
    paths: &[PathBuf],
    read: impl Fn(&mut dyn Read) -> (Document, T) + Sync,
) -> Vec<Part<T>> {
    let next = AtomicUsize::new(0);
    let names = names(paths);
    let work = || {
        let mut parts = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(path), Some(name)) = (paths.get(index), names.get(index)) else { return parts };
            let part = match File::open(path) {
                Ok(file) => read_one(name, file, &read),
                Err(error) => unreadable(name, &error),
            };
            parts.push((index, part));
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(paths.len());
    let mut parts: Vec<(usize, Part<T>)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).flatten().collect()
    });
    parts.sort_by_key(|(index, _)| *index);
    parts.into_iter().map(|(_, part)| part).collect()
}

/// Reads one open file, which may be compressed.
pub(super) fn read_one<T: Default>(
    name: &str,
    source: impl Read + Send,
    read: impl Fn(&mut dyn Read) -> (Document, T),
) -> Part<T> {
    match decompressed(source) {
        Ok(mut source) => {
            let (document, value) = read(&mut source);
            Part { name: name.to_owned(), document, value }
        }
        Err(error) => unreadable(name, &error),
    }
}

fn unreadable<T: Default>(name: &str, error: &io::Error) -> Part<T> {
    let document = Document { missing: vec![format!("cannot be read: {error}")], ..Document::default() };
    Part { name: name.to_owned(), document, value: T::default() }
}

/// Assigns the files to their ranks, and returns what is missing. The rank is the one in the file; if it has none, the
/// one in its name, or in that of a directory below the one that contains all files (`rank3`, `rank_3`, `rank-3`); and
/// 0 for a single file without any. A file without events has no rank.
pub(super) fn by_rank<T>(parts: Vec<Part<T>>) -> (BTreeMap<u32, Part<T>>, Vec<Missing>) {
    let is_single = parts.len() == 1;
    let mut ranks: BTreeMap<u32, Part<T>> = BTreeMap::new();
    let mut missing = Vec::new();
    for part in parts {
        let rank = part.document.header.distributed.rank.or_else(|| rank_in_name(&part.name));
        let report = |rank: Option<u32>, what: &str| Missing { rank, what: format!("{} {what}", part.name) };
        missing.extend(part.document.missing.iter().map(|what| report(rank, what)));
        if part.document.events == 0 {
            if part.document.missing.is_empty() {
                missing.push(report(rank, "has no events"));
            }
            continue;
        }
        let rank = match rank {
            Some(rank) => rank,
            None if is_single => {
                missing.push(report(None, "does not name its rank: rank 0 is assumed"));
                0
            }
            None => {
                missing.push(report(None, "does not name its rank and is not used: put rankN into its name"));
                continue;
            }
        };
        if let Some(first) = ranks.get(&rank) {
            let what =
                format!("has rank {rank}, as {} has, and is not used: keep the files of one run only", first.name);
            missing.push(report(Some(rank), &what));
            continue;
        }
        ranks.insert(rank, part);
    }
    missing.extend(absent(&ranks));
    (ranks, missing)
}

/// Largest number of absent ranks that a sentence lists.
const ABSENT_LISTED: usize = 8;

/// Returns a sentence about the ranks of the job that have no file.
fn absent<T>(ranks: &BTreeMap<u32, Part<T>>) -> Option<Missing> {
    let world = ranks.values().filter_map(|part| part.document.header.distributed.world_size).max()?;
    let count = usize::try_from(world).ok()?.saturating_sub(ranks.range(..world).count());
    if count == 0 {
        return None;
    }
    let listed: Vec<String> =
        (0..world).filter(|rank| !ranks.contains_key(rank)).take(ABSENT_LISTED).map(|rank| rank.to_string()).collect();
    let more = if count > listed.len() { ", ..." } else { "" };
    let what = format!("{count} of {world} ranks have no trace file: {}{more}", listed.join(", "));
    Some(Missing { rank: None, what })
}

/// Returns the number after `rank` in the name of a file; if it has none, in that of a directory, the innermost first.
fn rank_in_name(name: &str) -> Option<u32> {
    name.rsplit('/').find_map(rank_in_part)
}

fn rank_in_part(name: &str) -> Option<u32> {
    let lower = name.to_ascii_lowercase();
    let after = lower.match_indices("rank").filter_map(|(at, word)| lower.get(at + word.len()..));
    after
        .filter_map(|rest| {
            let rest = rest.strip_prefix(['_', '-', '=', '.']).unwrap_or(rest);
            let digits = rest.len() - rest.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
            rest.get(..digits)?.parse().ok()
        })
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_is_read_from_common_file_names() {
        let cases = [
            ("rank0.json", Some(0)),
            ("trace_rank_12.json.gz", Some(12)),
            ("Rank-3.1795100000.pt.trace.json", Some(3)),
            ("rank_7/host.json", Some(7)),
            ("rank0/profile/x.json", Some(0)),
            ("node_rank1/trace_rank8.json", Some(8)),
            ("ranks/host.json", None),
            ("host_4711.1795100000.pt.trace.json", None),
            ("rank99999999999.json", None),
        ];
        for (name, rank) in cases {
            assert_eq!(rank_in_name(name), rank, "{name}");
        }
    }
}

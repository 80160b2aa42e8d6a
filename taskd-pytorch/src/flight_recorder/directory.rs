//! Reads the dumps of all ranks from a directory.

use super::{DUMP_BYTES_MAX, Dump, DumpError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum number of files that are read: the number of ranks of a large job.
const FILES_MAX: usize = 131_072;
/// Endings of dump files that may follow the rank.
const ENDINGS: [&str; 4] = [".json", ".pickle", ".pkl", ".pt"];

/// The dumps in a directory, and the files that could not be used.
#[derive(Debug, Default)]
pub struct Dumps {
    /// One dump for each rank, by rank.
    pub dumps: Vec<Dump>,
    /// Files that were not used, with the reason, by name.
    pub problems: Vec<DirectoryProblem>,
}

/// A file in a directory of dumps that was not used. Its `Display` names the file and the reason.
#[derive(Debug)]
#[non_exhaustive]
pub enum DirectoryProblem {
    /// The name of the file does not end in a rank.
    NoRank {
        /// Name of the file.
        file: String,
    },
    /// Another file has the same rank. That one was read.
    Duplicate {
        /// Name of the file.
        file: String,
        /// Rank of both files.
        rank: u32,
    },
    /// The content of the file is not readable.
    Unreadable {
        /// Name of the file.
        file: String,
        /// Rank of the file.
        rank: u32,
        /// Reason.
        error: DumpError,
    },
    /// Another directory has dumps of the same ranks: it is of another run.
    OtherRun {
        /// Path of the directory.
        directory: String,
    },
    /// The directories contain more files than are read.
    TooMany {
        /// Number of files that were not read.
        count: usize,
    },
}

impl fmt::Display for DirectoryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryProblem::NoRank { file } => write!(f, "{file} was not read: its name does not end in a rank"),
            DirectoryProblem::Duplicate { file, rank } => {
                write!(f, "{file} was not read: another file is the dump of rank {rank}, too")
            }
            DirectoryProblem::Unreadable { file, rank, error } => {
                write!(f, "{file}, the dump of rank {rank}, is not readable: {error}")
            }
            DirectoryProblem::OtherRun { directory } => {
                write!(
                    f,
                    "{directory} was not read: it has dumps of the same ranks, so it is of another run; give it alone"
                )
            }
            DirectoryProblem::TooMany { count } => write!(f, "{count} files were not read: the limit is {FILES_MAX}"),
        }
    }
}

/// Reads the dumps in a directory, one file for each rank, with any prefix: the name ends in the rank, such as
/// `comm_lib_trace_rank_12` or `dump_12.json`.
///
/// A file that cannot be used is reported in [`Dumps::problems`]. If two files have the same rank, the first by name
/// is read.
///
/// # Errors
/// If the directory cannot be listed.
pub fn read_directory(path: &Path) -> std::io::Result<Dumps> {
    Ok(read_files(files(path)?))
}

/// Reads the dumps in several directories, such as one for each host, as [`read_directory`] reads those of one. Names of
/// files have their directory before them.
///
/// If a rank has a dump in two directories, these are of different runs: the first one by name is read, and the other is
/// reported.
///
/// # Errors
/// If a directory cannot be listed; the error names it.
pub fn read_directories<'a>(paths: impl IntoIterator<Item = &'a Path>) -> std::io::Result<Dumps> {
    let mut found: Vec<(&Path, Vec<(String, PathBuf)>)> = Vec::new();
    for path in paths {
        let failed = |error: std::io::Error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        found.push((path, files(path).map_err(failed)?));
    }
    found.sort();
    if let [(_, only)] = &mut *found {
        return Ok(read_files(std::mem::take(only)));
    }
    let (mut ranks, mut named, mut others) = (BTreeSet::new(), Vec::new(), Vec::new());
    for (path, files) in found {
        let is_dump = |(file, path): &&(String, PathBuf)| rank_of(file).is_some_and(|rank| read(path, rank).is_ok());
        let of_directory: BTreeSet<u32> = files.iter().filter(is_dump).filter_map(|(file, _)| rank_of(file)).collect();
        if !ranks.is_disjoint(&of_directory) {
            others.push(DirectoryProblem::OtherRun { directory: path.display().to_string() });
            continue;
        }
        ranks.extend(of_directory);
        let directory = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        named.extend(files.into_iter().map(|(file, path)| (format!("{directory}/{file}"), path)));
    }
    let mut dumps = read_files(named);
    dumps.problems.extend(others);
    Ok(dumps)
}

/// Returns the names and paths of the files in a directory.
fn files(path: &Path) -> std::io::Result<Vec<(String, PathBuf)>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.path().is_file() {
            names.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
    }
    Ok(names)
}

fn read_files(mut names: Vec<(String, PathBuf)>) -> Dumps {
    names.sort();
    let mut problems = Vec::new();
    if let Some(count) = names.len().checked_sub(FILES_MAX).filter(|count| *count > 0) {
        problems.push(DirectoryProblem::TooMany { count });
        names.truncate(FILES_MAX);
    }
    let mut dumps = BTreeMap::new();
    for (file, path) in names {
        let Some(rank) = rank_of(&file) else {
            problems.push(DirectoryProblem::NoRank { file });
            continue;
        };
        if dumps.contains_key(&rank) {
            problems.push(DirectoryProblem::Duplicate { file, rank });
            continue;
        }
        match read(&path, rank) {
            Ok(dump) => drop(dumps.insert(rank, dump)),
            Err(error) => problems.push(DirectoryProblem::Unreadable { file, rank, error }),
        }
    }
    Dumps { dumps: dumps.into_values().collect(), problems }
}

fn read(path: &Path, rank: u32) -> Result<Dump, DumpError> {
    let mut bytes = Vec::new();
    File::open(path)?.take(DUMP_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Dump::parse(rank, &bytes)
}

/// Returns the digits at the end of a file's name, as a rank.
fn rank_of(file: &str) -> Option<u32> {
    let stem = ENDINGS.iter().find_map(|ending| file.strip_suffix(ending)).unwrap_or(file);
    let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    stem.get(stem.len() - digits..)?.parse().ok()
}

#[cfg(test)]
mod tests;

//! Finds the profiles of all ranks below a directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use taskd_core::analysis::model::Missing;

/// Name of the folder with the analyzed files of one rank.
pub(super) const OUTPUT: &str = "ASCEND_PROFILER_OUTPUT";
/// Maximum depth below the given directory at which profiles are looked for.
const DEPTH_MAX: u32 = 4;
/// Maximum number of directories that are listed; more are reported as missing.
const DIRS_MAX: usize = 200_000;

/// The profile of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankDir {
    /// Global rank, from the name of `profiler_info_{rank}.json`.
    pub rank: u32,
    /// Directory of the profile, which contains `ASCEND_PROFILER_OUTPUT`.
    pub path: PathBuf,
}

/// Finds the profile of each rank below `dir`, or `dir` itself, sorted by rank; and what is missing, each as a sentence.
///
/// A profile is a directory that contains `ASCEND_PROFILER_OUTPUT` and one `profiler_info_{rank}.json`. If a rank has
/// several, the one with the greatest time in its name counts, as in msprof-analyze; the name is
/// `{host}_{pid}_{time}_ascend_pt` or `_ascend_ms`. Symbolic links are not followed.
///
/// # Errors
/// Returns an error if `dir` cannot be listed.
pub fn find(dir: &Path) -> io::Result<(Vec<RankDir>, Vec<Missing>)> {
    let mut missing = Vec::new();
    let mut found: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
    let mut queue = vec![(dir.to_path_buf(), 0)];
    let mut listed = 0;
    while let Some((path, depth)) = queue.pop() {
        listed += 1;
        if listed > DIRS_MAX {
            let what = format!("only {DIRS_MAX} directories below {} were searched", dir.display());
            missing.push(Missing { rank: None, what });
            break;
        }
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if depth == 0 => return Err(error),
            Err(error) => {
                let what = format!("{} was not searched: {error}", path.display());
                missing.push(Missing { rank: None, what });
                continue;
            }
        };
        let (mut ranks, mut has_output, mut below) = (Vec::new(), false, Vec::new());
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                has_output |= name == OUTPUT;
                below.push((entry.path(), depth + 1));
            } else if let Some(rank) = info_rank(&name) {
                ranks.push(rank);
            }
        }
        match (has_output, ranks[..].split_first()) {
            (true, Some((rank, []))) => found.entry(*rank).or_default().push(path),
            (true, _) => {
                let why = if ranks.is_empty() { "no" } else { "more than one" };
                let what = format!("{} has {why} profiler_info_RANK.json: its rank is unknown", path.display());
                missing.push(Missing { rank: None, what });
            }
            (false, _) if depth < DEPTH_MAX => queue.append(&mut below),
            (false, _) => (),
        }
    }
    let mut dirs = Vec::new();
    for (rank, mut paths) in found {
        paths.sort_by_cached_key(|path| (time_of(path), path.clone()));
        let Some(path) = paths.pop() else { continue };
        for older in paths {
            let what = format!("rank {rank}: {} was not read, because {} is newer", older.display(), path.display());
            missing.push(Missing { rank: Some(rank), what });
        }
        dirs.push(RankDir { rank, path });
    }
    missing.sort();
    Ok((dirs, missing))
}

/// Returns the rank in the name of a `profiler_info` file.
fn info_rank(name: &str) -> Option<u32> {
    name.strip_prefix("profiler_info_")?.strip_suffix(".json")?.parse().ok()
}

/// Returns the time in a profile's name: the third part from its end.
fn time_of(path: &Path) -> u64 {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.rsplit('_').nth(2).and_then(|time| time.parse().ok()).unwrap_or(0)
}

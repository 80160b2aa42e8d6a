//! Finds which kinds of traces a directory has, from the names and first bytes of its files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use taskd_core::live::{incidents, stores};

/// Maximum depth below the directory.
const DEPTH_MAX: u32 = 5;
/// Maximum number of directories that are searched.
const DIRS_MAX: usize = 100_000;
/// Endings that may follow the rank in the name of a dump.
const DUMP_ENDINGS: [&str; 4] = [".json", ".pickle", ".pkl", ".pt"];
/// Bytes of a file by which its kind is recognized.
const HEAD: usize = 4096;

/// What a directory has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Directories of trace stores of taskd, by rank.
    pub stores: BTreeMap<u32, Vec<PathBuf>>,
    /// Kineto's files by directory.
    pub kineto: BTreeMap<PathBuf, Vec<PathBuf>>,
    /// Directories of single ranks that Ascend's profilers wrote.
    pub ascend: BTreeSet<PathBuf>,
    /// Directories with dumps of PyTorch's flight recorder.
    pub flight_recorder: BTreeSet<PathBuf>,
    /// Directories with the logs of a supervisor.
    pub journals: BTreeSet<PathBuf>,
    /// True if the search stopped at a limit.
    pub is_cut: bool,
}

impl Kinds {
    /// Returns true if no known kind was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let dirs = [&self.ascend, &self.flight_recorder, &self.journals];
        self.stores.is_empty() && self.kineto.is_empty() && dirs.iter().all(|dirs| dirs.is_empty())
    }

    /// Searches a directory. Symbolic links below it are not followed.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn find(dir: &Path) -> io::Result<Kinds> {
        let mut found = Kinds::default();
        let mut queue = vec![(dir.to_path_buf(), 0)];
        let mut searched = 0;
        while let Some((path, depth)) = queue.pop() {
            searched += 1;
            if searched > DIRS_MAX {
                found.is_cut = true;
                break;
            }
            let entries = match std::fs::read_dir(&path) {
                Err(error) if depth == 0 => return Err(error),
                entries => entries.into_iter().flatten().filter_map(Result::ok),
            };
            if let Some(rank) = rank_of(&path).filter(|_| stores::has_files(&path)) {
                found.stores.entry(rank).or_default().push(path);
                continue;
            }
            let (mut below, mut is_ascend) = (Vec::new(), false);
            for entry in entries {
                let name = entry.file_name().to_string_lossy().into_owned();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => {
                        is_ascend |= name == "ASCEND_PROFILER_OUTPUT";
                        below.push((entry.path(), depth + 1));
                    }
                    Ok(kind) if kind.is_file() => found.file(&path, &entry.path(), &name),
                    _ => (),
                }
            }
            if is_ascend {
                found.ascend.insert(path);
            } else if depth < DEPTH_MAX {
                queue.append(&mut below);
            } else {
                found.is_cut |= !below.is_empty();
            }
        }
        found.stores.values_mut().chain(found.kineto.values_mut()).for_each(|paths| paths.sort());
        Ok(found)
    }

    /// Takes note of one file.
    fn file(&mut self, dir: &Path, path: &Path, name: &str) {
        if incidents::has_logs(name) {
            self.journals.insert(dir.to_path_buf());
            return;
        }
        let stem = DUMP_ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
        let is_json = name.ends_with(".json");
        let may_be_dump = stem.ends_with(|c: char| c.is_ascii_digit());
        let head = if is_json || may_be_dump { head(path).unwrap_or_default() } else { Vec::new() };
        if may_be_dump && is_dump(&head) {
            self.flight_recorder.insert(dir.to_path_buf());
        } else if name.ends_with(".json.gz") || (is_json && is_kineto(&head)) {
            self.kineto.entry(dir.to_path_buf()).or_default().push(path.to_path_buf());
        }
    }
}

/// Returns the rank that names a directory.
fn rank_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.parse().ok()
}

fn head(path: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD as u64).read_to_end(&mut head).ok()?;
    Some(head)
}

fn has(head: &[u8], word: &str) -> bool {
    head.windows(word.len()).any(|at| at == word.as_bytes())
}

/// Returns true for the beginning of a file in the trace event format.
fn is_kineto(head: &[u8]) -> bool {
    ["\"traceEvents\"", "\"schemaVersion\"", "\"ph\""].iter().any(|word| has(head, word))
}

/// Returns true for the beginning of a dump of the flight recorder: a pickle or JSON with its keys.
fn is_dump(head: &[u8]) -> bool {
    let keys = ["pg_config", "nccl_version", "comm_lib_version", "collective_seq_id"];
    matches!(head.first(), Some(b'\x80' | b'{')) && keys.iter().any(|key| has(head, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    #[test]
    fn each_kind_is_found_by_names_and_first_bytes() {
        let root = tempfile::tempdir().expect("a directory");
        let put = |path: &str, bytes: &[u8]| {
            let path = root.path().join(path);
            create_dir_all(path.parent().expect("it has one")).expect("a directory");
            write(path, bytes).expect("a file");
        };
        put("trace/job/3/1718000000.taskd", b"");
        put("profile/host_1.pt.trace.json", b"{\"schemaVersion\": 1, ");
        put("profile/settings.json", b"{\"lr\": 1}");
        put("npu/node_1_20260101_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json", b"[{\"ph\":\"X\"}]");
        put("dumps/comm_lib_trace_rank_0", b"\x80\x02}q\x00(X\x09\x00\x00\x00pg_config");
        put("dumps/notes_1", b"nothing");
        put("log/decisions-000001-00000000000000000001.log", b"");
        put("more/dump_0.json", b"{\"comm_lib_version\":\"\",\"entries\":[]}");
        let found = Kinds::find(root.path()).expect("it can be listed");
        let at = |path: &str| root.path().join(path);
        assert_eq!(found.stores, [(3, vec![at("trace/job/3")])].into());
        assert_eq!(found.kineto, [(at("profile"), vec![at("profile/host_1.pt.trace.json")])].into());
        assert_eq!(found.ascend, [at("npu/node_1_20260101_ascend_pt")].into());
        assert_eq!(found.flight_recorder, [at("dumps"), at("more")].into());
        assert_eq!(found.journals, [at("log")].into());
        assert!(!found.is_empty() && !found.is_cut);
    }
}

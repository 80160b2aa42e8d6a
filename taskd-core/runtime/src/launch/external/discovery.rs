//! Discovery of the ranks: a repeated scan of `/proc`.
//!
//! This module reads files and blocks, so it runs outside the async runtime's threads. It keeps only what saves reading
//! a file twice.

use super::exit::Key;
use super::streams::Stream;
use crate::job::Rank;
use crate::proc_fs::Stat;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum number of bytes read from an environment.
const ENVIRON_BYTES_MAX: u64 = 1 << 20;
/// The variable with the path of a rank's lifeline page, if it has one.
const LIFELINE: &str = "TASKD_LIFELINE";

/// The processes among which ranks are searched for.
#[derive(Clone, Debug)]
pub(super) enum Selection {
    /// Exactly these processes, by rank.
    Named(BTreeMap<Rank, Key>),
    /// The descendants of this process that carry a rank in their environment.
    Below(Key),
    /// The processes of this cgroup that carry a rank in their environment.
    Cgroup(PathBuf),
}

/// A process that is a rank.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) rank: Rank,
    pub(super) key: Key,
    /// True if its environment is readable; then Linux also shows its wait status.
    pub(super) may_read: bool,
    /// Path of its lifeline page, if its environment has one.
    pub(super) page: Option<PathBuf>,
    /// Its standard output and standard error, if they are files.
    pub(super) streams: [Option<Stream>; 2],
}

/// Result of one scan.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Processes that were not found before.
    pub(super) new: Vec<Found>,
    /// True if no process is left to watch, rank or not.
    pub(super) is_empty: bool,
    /// Processes skipped because of the bound.
    pub(super) passed_over: u64,
    /// Processes whose environment could not be read for lack of permission.
    pub(super) unreadable: u64,
}

/// Scanner for ranks.
#[derive(Debug)]
pub(super) struct Finder {
    pub(super) selection: Selection,
    pub(super) variable: String,
    pub(super) processes_max: usize,
    /// Processes found before, so that each is returned as new only once.
    known: BTreeMap<Key, Rank>,
}

/// A process whose environment carries a rank.
#[derive(Debug)]
struct Carrier {
    rank: Rank,
    may_read: bool,
    page: Option<PathBuf>,
}

/// The relevant content of an environment.
#[derive(Debug, Default, PartialEq)]
struct Environ {
    rank: Option<Rank>,
    page: Option<PathBuf>,
}

impl Finder {
    pub(super) const fn new(selection: Selection, variable: String, processes_max: usize) -> Finder {
        Finder { selection, variable, processes_max, known: BTreeMap::new() }
    }

    /// Scans the processes that exist now.
    ///
    /// # Errors
    /// Fails if the cgroup cannot be read.
    pub(super) fn look(&mut self) -> io::Result<Look> {
        let mut look = Look::default();
        let ranks = match self.selection.clone() {
            Selection::Named(keys) => named(&keys),
            Selection::Below(root) => self.below(root, &mut look),
            Selection::Cgroup(dir) => self.in_cgroup(&dir, &mut look)?,
        };
        self.known.retain(|key, _| ranks.contains_key(key));
        for (key, Carrier { rank, may_read, page }) in ranks {
            if self.known.insert(key, rank).is_none() {
                let streams = [1, 2].map(|fd| Stream::of(key.pid, fd));
                look.new.push(Found { rank, key, may_read, page, streams });
            }
        }
        Ok(look)
    }

    /// Returns the topmost processes below `root` that carry a rank; their children inherit the variable and are not
    /// ranks.
    fn below(&self, root: Key, look: &mut Look) -> BTreeMap<Key, Carrier> {
        let mut ranks = BTreeMap::new();
        let mut next = vec![root.pid];
        let mut seen: BTreeSet<i32> = next.iter().copied().collect();
        look.is_empty = root.stat().is_none_or(|stat| stat.is_zombie());
        if look.is_empty {
            return ranks;
        }
        let mut parents = None;
        while let Some(parent) = next.pop() {
            for child in children(parent, &mut parents) {
                if seen.len() >= self.processes_max {
                    look.passed_over += 1;
                } else if seen.insert(child)
                    && let Some((key, found)) = self.read(child, look)
                {
                    match found {
                        Some(carrier) => drop(ranks.insert(key, carrier)),
                        None => next.push(child),
                    }
                }
            }
        }
        ranks
    }

    /// Returns the processes of a cgroup that carry a rank, unless their parent carries the same one.
    fn in_cgroup(&self, dir: &Path, look: &mut Look) -> io::Result<BTreeMap<Key, Carrier>> {
        let text = fs::read_to_string(dir.join("cgroup.procs"))?;
        let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect();
        look.is_empty = pids.is_empty();
        look.passed_over += pids.len().saturating_sub(self.processes_max) as u64;
        let mut carriers = BTreeMap::new();
        for pid in pids.into_iter().take(self.processes_max) {
            if let Some((key, Some(carrier))) = self.read(pid, look)
                && let Some(stat) = key.stat()
            {
                carriers.insert(key, (stat.parent, carrier));
            }
        }
        let ranks: BTreeMap<i32, Rank> = carriers.iter().map(|(key, (_, carrier))| (key.pid, carrier.rank)).collect();
        let topmost = carriers.into_iter().filter(|(_, (parent, carrier))| ranks.get(parent) != Some(&carrier.rank));
        Ok(topmost.map(|(key, (_, carrier))| (key, carrier)).collect())
    }

    /// Returns a process that has not ended, with its rank if it carries one. The environment of a known process is not
    /// read again.
    fn read(&self, pid: i32, look: &mut Look) -> Option<(Key, Option<Carrier>)> {
        let key = Key::of(pid)?;
        if key.stat()?.is_zombie() {
            return None;
        }
        if let Some(rank) = self.known.get(&key) {
            return Some((key, Some(Carrier { rank: *rank, may_read: true, page: None })));
        }
        match environ(pid, &self.variable) {
            Ok(Environ { rank, page }) => Some((key, rank.map(|rank| Carrier { rank, may_read: true, page }))),
            Err(error) => {
                look.unreadable += u64::from(error.kind() == io::ErrorKind::PermissionDenied);
                Some((key, None))
            }
        }
    }
}

/// Returns the processes that the user named; their environments are searched only for the path of a lifeline page.
fn named(keys: &BTreeMap<Rank, Key>) -> BTreeMap<Key, Carrier> {
    let carrier = |(rank, key): (&Rank, &Key)| {
        let environ = environ(key.pid, "");
        let may_read = environ.is_ok();
        (*key, Carrier { rank: *rank, may_read, page: environ.unwrap_or_default().page })
    };
    keys.iter().map(carrier).collect()
}

/// Returns the children of a process. If the kernel does not list them (`CONFIG_PROC_CHILDREN`), the parents of all
/// processes are read, once per scan.
fn children(pid: i32, parents: &mut Option<BTreeMap<i32, Vec<i32>>>) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found = Vec::new();
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(text) => found.extend(text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            Err(error) if error.kind() == io::ErrorKind::NotFound && thread.path().exists() => {
                return parents.get_or_insert_with(all_children).get(&pid).cloned().unwrap_or_default();
            }
            Err(_) => {} // the thread has ended
        }
    }
    found
}

fn all_children() -> BTreeMap<i32, Vec<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let Ok(listed) = fs::read_dir("/proc") else { return children };
    for pid in listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        if let Some(stat) = rustix::process::Pid::from_raw(pid).and_then(Stat::read) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    children
}

/// Reads the environment with which a process was started.
fn environ(pid: i32, variable: &str) -> io::Result<Environ> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/environ"))?.take(ENVIRON_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(parse(&bytes, variable))
}

fn parse(bytes: &[u8], variable: &str) -> Environ {
    let mut environ = Environ::default();
    for entry in bytes.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok()) {
        match entry.split_once('=') {
            Some((name, value)) if name == variable => environ.rank = value.parse().ok().map(Rank),
            Some((LIFELINE, path)) => environ.page = Some(PathBuf::from(path)),
            _ => {}
        }
    }
    environ
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_variable_is_the_rank_and_nothing_else_is() {
        let bytes = b"LOCAL_RANK=1\0RANK=17\0X\0\xff\xfe=3\0TASKD_LIFELINE=/proc/7/fd/9\0";
        let environ = parse(bytes, "RANK");
        assert_eq!(environ, Environ { rank: Some(Rank(17)), page: Some("/proc/7/fd/9".into()) });
        for none in [&b"RANK=\0"[..], b"RANK=-1\0", b"RANK=one\0", b"RANKS=1\0", b"RANK=4294967296\0", b""] {
            assert_eq!(parse(none, "RANK").rank, None);
        }
    }

    #[test]
    fn the_children_of_this_process_are_found_both_ways() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let (own, pid) = (std::process::id().try_into().unwrap(), i32::try_from(child.id()).unwrap());
        assert!(children(own, &mut None).contains(&pid));
        assert!(all_children()[&own].contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

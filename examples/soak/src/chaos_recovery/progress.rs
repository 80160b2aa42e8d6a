//! The progress of the ranks, from the lines that they write.

use crate::outside::notes::Tail;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use taskd_examples::recover::{StepLine, first_common};

/// Steps that are remembered of each rank.
const LINES_MAX: usize = 128;

/// The steps of all ranks up to now.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    tails: BTreeMap<PathBuf, (u32, i32, Tail)>,
    /// Files whose writers have ended.
    done: BTreeSet<PathBuf>,
    lines: BTreeMap<u32, VecDeque<StepLine>>,
    /// The newest step that each rank has completed.
    pub(crate) last: BTreeMap<u32, u64>,
    /// The newest step that any rank has ever completed.
    pub(crate) most: u64,
}

impl Progress {
    /// Reads the lines that have been written since the last call.
    pub(crate) fn look(&mut self, dir: &Path) {
        for file in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = file.path();
            if self.done.contains(&path) || self.tails.contains_key(&path) {
                continue;
            }
            let name = file.file_name().to_string_lossy().into_owned();
            let mut parts = name.strip_prefix("steps.").unwrap_or_default().split('.');
            let mut number = || parts.next()?.parse::<u32>().ok();
            let (Some(rank), Some(pid)) = (number(), number()) else { continue };
            self.tails.insert(path.clone(), (rank, pid.cast_signed(), Tail::new(path)));
        }
        let mut gone = Vec::new();
        for (path, (rank, pid, tail)) in &mut self.tails {
            let is_gone = !Path::new(&format!("/proc/{pid}")).exists();
            for line in tail.lines().iter().filter_map(|line| serde_json::from_str::<StepLine>(line).ok()) {
                self.last.insert(*rank, line.step);
                self.most = self.most.max(line.step);
                let lines = self.lines.entry(*rank).or_default();
                lines.push_back(line);
                lines.drain(..lines.len().saturating_sub(LINES_MAX));
            }
            if is_gone {
                gone.push(path.clone());
            }
        }
        for path in gone {
            self.tails.remove(&path);
            self.done.insert(path);
        }
    }

    /// Returns the number of steps that each of these ranks has completed since `at`.
    pub(crate) fn since(&self, at: f64, ranks: &BTreeSet<u32>) -> usize {
        let since = |lines: &VecDeque<StepLine>| lines.iter().filter(|line| line.t > at).count();
        let counts = ranks.iter().map(|rank| self.lines.get(rank).map_or(0, since));
        counts.min().unwrap_or(0)
    }

    /// Returns the time at which all of these ranks had computed the same step after `at`.
    pub(crate) fn first_after(&self, at: f64, ranks: &BTreeSet<u32>) -> Option<f64> {
        let lines = self.lines.iter().filter(|(rank, _)| ranks.contains(rank));
        let lines = lines.flat_map(|(rank, lines)| lines.iter().map(|line| (*rank, line)));
        first_common(lines, at, ranks.len()).map(|(_, t)| t)
    }
}

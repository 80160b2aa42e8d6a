//! How far the ranks are, from the lines that they write as they go.

use crate::outside::notes::Tail;
use crate::recover::StepLine;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

/// Times of steps that are remembered for each rank.
const TIMES_MAX: usize = 128;

/// The steps of all ranks so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    tails: BTreeMap<PathBuf, (u32, i32, Tail)>,
    /// Files whose writers are gone.
    done: BTreeSet<PathBuf>,
    times: BTreeMap<u32, VecDeque<f64>>,
    /// The newest step that each rank has completed.
    pub(crate) last: BTreeMap<u32, u64>,
    /// The newest step that any rank has ever completed.
    pub(crate) most: u64,
}

impl Progress {
    /// Takes in what has been written since the last call.
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
                let times = self.times.entry(*rank).or_default();
                times.push_back(line.t);
                times.drain(..times.len().saturating_sub(TIMES_MAX));
                self.last.insert(*rank, line.step);
                self.most = self.most.max(line.step);
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

    /// How many steps every one of so many ranks has completed since then.
    pub(crate) fn since(&self, at: f64, ranks: u32) -> usize {
        let counts = (0..ranks).map(|rank| self.times.get(&rank).map_or(0, |t| t.iter().filter(|t| **t > at).count()));
        counts.min().unwrap_or(0)
    }

    /// When every one of so many ranks had completed its first step after that.
    pub(crate) fn first_after(&self, at: f64, ranks: u32) -> Option<f64> {
        let first = |rank| self.times.get(&rank)?.iter().copied().filter(|t| *t > at).reduce(f64::min);
        (0..ranks).map(first).try_fold(at, |last, first| Some(last.max(first?)))
    }
}

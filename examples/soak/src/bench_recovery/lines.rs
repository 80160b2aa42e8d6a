//! The script's record of its steps, and what follows from it: when a job has recovered from a fault, and the steps
//! that it lost.

use super::candidates::Recovered;
use crate::outside::notes::Tail;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A step that a rank has completed.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    /// When, on the machine's monotonic clock, in seconds.
    pub(crate) t: f64,
    pub(crate) step: u64,
    pub(crate) rank: u32,
    pub(crate) pid: i32,
    /// Number of ranks that trained in it.
    pub(crate) world: u32,
    /// Number of the loop in this process.
    pub(crate) life: u64,
    /// SHA-256 of the state after it.
    pub(crate) sha256: String,
}

/// All lines of a job up to now.
#[derive(Debug)]
pub(crate) struct Lines {
    dir: PathBuf,
    tails: BTreeMap<PathBuf, Tail>,
    pub(crate) all: Vec<Line>,
}

/// The state of the job when the fault occurred.
#[derive(Debug)]
pub(crate) struct Before {
    /// Time of the fault.
    pub(crate) at: f64,
    /// The newest step that all ranks had completed.
    step: u64,
    /// The loops that existed: process and number.
    loops: BTreeSet<(i32, u64)>,
}

/// The recovery of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Recovery {
    /// When all ranks had completed the first step after the fault.
    pub(crate) at: f64,
    /// That step.
    pub(crate) step: u64,
    /// Steps that had been completed before the fault and are repeated.
    pub(crate) steps_lost: u64,
}

impl Lines {
    pub(crate) fn of(dir: &Path) -> Lines {
        Lines { dir: dir.to_owned(), tails: BTreeMap::new(), all: Vec::new() }
    }

    /// Reads the lines that have been written since the last call.
    pub(crate) fn look(&mut self) {
        for file in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with("steps.") {
                let path = file.path();
                self.tails.entry(path.clone()).or_insert_with(|| Tail::new(path));
            }
        }
        let new = self.tails.values_mut().flat_map(Tail::lines);
        self.all.extend(new.filter_map(|line| serde_json::from_str::<Line>(&line).ok()));
    }

    /// Returns true if `ranks` ranks train together.
    pub(crate) fn has_world(&self, ranks: u32) -> bool {
        let together = self.all.iter().filter(|line| line.world == ranks);
        together.map(|line| line.rank).collect::<BTreeSet<u32>>().len() == ranks as usize
    }

    /// Returns the process of a rank: the one that wrote its newest line.
    pub(crate) fn process_of(&self, rank: u32) -> Option<i32> {
        let of_rank = self.all.iter().filter(|line| line.rank == rank);
        of_rank.max_by(|a, b| a.t.total_cmp(&b.t)).map(|line| line.pid)
    }

    /// Returns the state of the job at the time `at`.
    pub(crate) fn before(&self, at: f64) -> Before {
        let mut newest: BTreeMap<u32, u64> = BTreeMap::new();
        for line in self.all.iter().filter(|line| line.t <= at) {
            let step = newest.entry(line.rank).or_default();
            *step = line.step.max(*step);
        }
        let loops = self.all.iter().filter(|line| line.t <= at).map(|line| (line.pid, line.life)).collect();
        Before { at, step: newest.into_values().min().unwrap_or(0), loops }
    }

    /// Returns the first step that `wanted.world` ranks have completed after the fault. If a rank has completed it
    /// twice, the later time counts.
    pub(crate) fn recovery(&self, before: &Before, wanted: Recovered) -> Option<Recovery> {
        let mut steps: BTreeMap<u64, BTreeMap<u32, f64>> = BTreeMap::new();
        let is_after = |line: &&Line| line.t > before.at && line.world == wanted.world;
        let counts = |line: &&Line| !(wanted.anew && before.loops.contains(&(line.pid, line.life)));
        for line in self.all.iter().filter(is_after).filter(counts) {
            let t = steps.entry(line.step).or_default().entry(line.rank).or_insert(line.t);
            *t = line.t.max(*t);
        }
        let whole = steps.into_iter().filter(|(_, ranks)| ranks.len() >= wanted.world as usize);
        let ends = whole.filter_map(|(step, ranks)| Some((step, ranks.into_values().reduce(f64::max)?)));
        let (step, at) = ends.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        Some(Recovery { at, step, steps_lost: (before.step + 1).saturating_sub(step) })
    }

    /// Returns the state after each step, from the lines of any rank.
    pub(crate) fn states(&self) -> BTreeMap<u64, String> {
        self.all.iter().map(|line| (line.step, line.sha256.clone())).collect()
    }

    /// Returns true if every step of every rank ended in the state of the same step in `reference`; `None` if no step
    /// after `since` can be compared.
    pub(crate) fn has_states_of(&self, reference: &BTreeMap<u64, String>, since: f64) -> Option<bool> {
        let compare = |line: &Line| Some((line.t > since, *reference.get(&line.step)? == line.sha256));
        let compared: Vec<(bool, bool)> = self.all.iter().filter_map(compare).collect();
        let any_since = compared.iter().any(|(is_since, _)| *is_since);
        any_since.then(|| compared.iter().all(|(_, is_equal)| *is_equal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(t: f64, step: u64, rank: u32, pid: i32) -> Line {
        Line { t, step, rank, pid, world: 2, life: 0, sha256: format!("of {step}") }
    }

    fn lines(all: Vec<Line>) -> Lines {
        Lines { all, ..Lines::of(Path::new("/nonexistent")) }
    }

    const KEPT: Recovered = Recovered { world: 2, anew: false };
    const ANEW: Recovered = Recovered { world: 2, anew: true };

    #[test]
    fn a_job_has_recovered_when_the_last_of_its_ranks_has_completed_a_step() {
        let mut seen = lines(vec![line(1.0, 7, 0, 10), line(1.1, 7, 1, 11), line(1.31, 8, 0, 10)]);
        let before = seen.before(1.3);
        assert_eq!(seen.recovery(&before, KEPT), None, "a survivor completed the step that was under way");
        seen.all.push(line(1.5, 9, 0, 10));
        assert_eq!(seen.recovery(&before, KEPT), None);
        seen.all.push(line(1.6, 9, 1, 12));
        assert_eq!(seen.recovery(&before, KEPT), Some(Recovery { at: 1.6, step: 9, steps_lost: 0 }));
    }

    #[test]
    fn recovery_by_restart_counts_new_loops_only_and_the_lost_steps() {
        let mut seen = lines(vec![line(1.0, 12, 0, 10), line(1.0, 12, 1, 11)]);
        let before = seen.before(1.1);
        seen.all.extend([line(1.2, 10, 0, 10), line(3.0, 10, 1, 13)]);
        assert_eq!(seen.recovery(&before, ANEW), None);
        seen.all.push(line(3.1, 10, 0, 12));
        assert_eq!(seen.recovery(&before, ANEW), Some(Recovery { at: 3.1, step: 10, steps_lost: 3 }));

        let mut inside = lines(vec![line(1.0, 12, 0, 10), line(1.0, 12, 1, 11)]);
        inside.all.push(Line { world: 1, life: 1, ..line(1.4, 10, 0, 10) });
        let shrunk = Recovered { world: 1, anew: true };
        assert_eq!(inside.recovery(&before, shrunk), Some(Recovery { at: 1.4, step: 10, steps_lost: 3 }));
        assert_eq!(inside.recovery(&before, ANEW), None, "its world is smaller");
    }

    #[test]
    fn state_comparison_fails_on_one_mismatch_and_needs_a_line() {
        let reference = lines(vec![line(0.0, 1, 0, 1), line(0.0, 2, 0, 1)]).states();
        let seen = lines(vec![line(5.0, 1, 0, 9), line(6.0, 2, 1, 8)]);
        assert_eq!(seen.has_states_of(&reference, 5.5), Some(true));
        assert_eq!(seen.has_states_of(&reference, 6.0), None, "nothing after the fault");
        let wrong = Line { sha256: "other".into(), ..line(5.0, 1, 0, 9) };
        assert_eq!(lines(vec![wrong, line(6.0, 2, 1, 8)]).has_states_of(&reference, 5.5), Some(false));
    }

    #[test]
    fn lines_of_ranks_are_read_and_a_world_needs_a_line_of_each_rank() {
        let dir = tempfile::tempdir().unwrap();
        let mut seen = Lines::of(dir.path());
        let written = r#"{"t": 2.5, "step": 3, "rank": 1, "pid": 77, "world": 2, "life": 0, "sha256": "ab"}"#;
        fs::write(dir.path().join("steps.1.77.jsonl"), format!("{written}\n{{\"t\": 2.6, ")).unwrap();
        seen.look();
        assert_eq!((seen.all.len(), seen.process_of(1), seen.has_world(2)), (1, Some(77), false));
        fs::write(dir.path().join("steps.0.78.jsonl"), written.replace("\"rank\": 1", "\"rank\": 0") + "\n").unwrap();
        seen.look();
        assert!(seen.has_world(2));
    }
}

//! The step files of a training: which process completed which step of which rank, and when.

use super::observer::Lives;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use taskd_examples::recover::{StepLine, first_common};

/// The completed steps of one process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Rank that the process trains.
    pub rank: u32,
    /// Its process id on this machine, which all hosts share.
    pub pid: i32,
    /// Its steps, in the order of their times.
    pub lines: Vec<StepLine>,
}

/// The steps of all processes.
#[derive(Clone, Debug, Default)]
pub struct Steps(pub Vec<Process>);

impl Process {
    /// Returns the steps that this process has computed; it has copied the others.
    fn computed(&self) -> impl DoubleEndedIterator<Item = &StepLine> {
        self.lines.iter().filter(|line| line.loss.is_some())
    }
}

impl Steps {
    /// Reads the files `steps.RANK.PID.jsonl` of a directory.
    #[must_use]
    pub fn read(dir: &Path) -> Steps {
        let mut processes = Vec::new();
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((rank, pid)) = process_of(&name) else { continue };
            let Ok(text) = fs::read_to_string(entry.path()) else { continue };
            let mut lines: Vec<StepLine> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            lines.sort_by(|a, b| a.t.total_cmp(&b.t));
            processes.push(Process { rank, pid, lines });
        }
        Steps(processes)
    }

    /// Returns the process of each rank that has completed a step last.
    #[must_use]
    pub fn pids(&self) -> BTreeMap<u32, i32> {
        let mut newest: BTreeMap<u32, (f64, i32)> = BTreeMap::new();
        for process in &self.0 {
            let Some(last) = process.lines.last() else { continue };
            let known = newest.entry(process.rank).or_insert((last.t, process.pid));
            if last.t > known.0 {
                *known = (last.t, process.pid);
            }
        }
        newest.into_iter().map(|(rank, (_, pid))| (rank, pid)).collect()
    }

    /// Returns the last step that a rank has completed.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.0.iter().flat_map(|process| &process.lines).map(|line| line.step).max()
    }

    /// Returns the last step that a process had computed at this time.
    #[must_use]
    pub fn last_before(&self, time: f64) -> Option<u64> {
        self.0.iter().flat_map(Process::computed).filter(|line| line.t <= time).map(|line| line.step).max()
    }

    /// Returns true if each of the ranks has computed this number of steps since `since`.
    #[must_use]
    pub fn all_have(&self, ranks: &[u32], since: f64, number: usize) -> bool {
        let of = |rank| self.0.iter().filter(move |process| process.rank == rank);
        ranks.iter().all(|rank| of(*rank).flat_map(Process::computed).filter(|line| line.t > since).count() >= number)
    }

    /// Returns the first step that all ranks have computed since `since`, and when the last of them had. Ignores steps
    /// of the processes that `ignored` names.
    #[must_use]
    pub fn first_common(&self, since: f64, ranks: u32, ignored: &[i32]) -> Option<(u64, f64)> {
        let counted = self.0.iter().filter(|process| !ignored.contains(&process.pid));
        let lines = counted.flat_map(|process| process.lines.iter().map(|line| (process.rank, line)));
        first_common(lines, since, ranks as usize)
    }

    /// Returns the longest part of the time from `since` to `until` in which no rank completed a step, in seconds. A pause
    /// that began before `since` counts from its beginning.
    #[must_use]
    pub fn longest_pause(&self, since: f64, until: f64) -> f64 {
        let mut times: Vec<f64> = self.0.iter().flat_map(Process::computed).map(|line| line.t).collect();
        times.sort_by(f64::total_cmp);
        let pauses = times.windows(2).filter(|pair| pair[1] > since && pair[0] < until);
        pauses.map(|pair| pair[1].min(until) - pair[0]).fold(0.0, f64::max)
    }
}

/// Returns the rank and the process id in the name of a step file.
pub(super) fn process_of(name: &str) -> Option<(u32, i32)> {
    let (rank, pid) = name.strip_prefix("steps.")?.strip_suffix(".jsonl")?.split_once('.')?;
    Some((rank.parse().ok()?, pid.parse().ok()?))
}

/// Returns which two processes trained the same rank at the same time, in one sentence; `None` if none did.
///
/// A process must have ended, and have computed its last step, before the process that follows it has computed its
/// first one. A process that was seen alive after that time might have trained.
#[must_use]
pub fn two_worlds(steps: &Steps, lives: &Lives) -> Option<String> {
    for one in &steps.0 {
        let Some(first) = one.computed().next() else { continue };
        let later = steps.0.iter().filter(|other| other.rank == one.rank && other.pid != one.pid);
        for (other, begun) in later.filter_map(|other| Some((other, other.computed().next()?.t))) {
            if begun < first.t {
                continue; // `one` follows `other`: checked the other way round
            }
            let worked = one.computed().next_back().map_or(first.t, |line| line.t);
            let alive = lives.get(&one.pid).map_or(worked, |life| life.last_alive);
            if worked.max(alive) > begun {
                let (what, by) = if worked > begun { ("trained", worked) } else { ("lived", alive) };
                return Some(format!(
                    "process {} of rank {} still {what} {:.3} s after process {} had computed step {} of this rank",
                    one.pid,
                    one.rank,
                    by - begun,
                    other.pid,
                    other.computed().next().map_or(0, |line| line.step),
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::observer::Life;
    use super::*;

    fn process(rank: u32, pid: i32, steps: &[(u64, f64)]) -> Process {
        let lines = steps.iter().map(|(step, t)| StepLine { t: *t, step: *step, loss: Some(0.1), sha256: None });
        Process { rank, pid, lines: lines.collect() }
    }

    fn alive_until(pid: i32, last_alive: f64) -> (i32, Life) {
        (pid, Life { host: Some("h1".into()), last_alive, ended: true })
    }

    #[test]
    fn one_process_after_the_other_is_one_world() {
        let steps =
            Steps(vec![process(0, 20, &[(3, 5.0)]), process(0, 10, &[(1, 1.0), (2, 2.0)]), process(1, 30, &[])]);
        let lives = Lives::from([alive_until(10, 4.9)]);
        assert_eq!(two_worlds(&steps, &lives), None);
        assert_eq!(steps.pids(), BTreeMap::from([(0, 20)]));
        assert_eq!((steps.last(), steps.last_before(4.0)), (Some(3), Some(2)));
    }

    #[test]
    fn a_process_that_outlives_its_replacement_is_found() {
        let steps = Steps(vec![process(0, 10, &[(1, 1.0), (2, 2.0)]), process(0, 20, &[(3, 5.0)])]);
        let found = two_worlds(&steps, &Lives::from([alive_until(10, 5.1)])).unwrap();
        assert!(found.contains("process 10 of rank 0 still lived 0.100 s after process 20"), "{found}");
        let steps = Steps(vec![process(0, 10, &[(1, 1.0), (4, 5.5)]), process(0, 20, &[(3, 5.0)])]);
        let found = two_worlds(&steps, &Lives::new()).unwrap();
        assert!(found.contains("still trained 0.500 s"), "{found}");
    }

    #[test]
    fn a_pause_counts_within_the_observed_time() {
        let steps =
            Steps(vec![process(0, 10, &[(1, 1.0), (2, 2.0), (3, 2.5), (4, 9.0)]), process(1, 11, &[(1, 1.25)])]);
        assert!((steps.longest_pause(1.5, f64::INFINITY) - 6.5).abs() < 1e-9);
        assert!((steps.longest_pause(1.5, 2.75) - 0.75).abs() < 1e-9, "it began at 1.25");
        assert!((steps.longest_pause(2.0, 3.25) - 0.75).abs() < 1e-9, "it is cut at the end");
    }

    #[test]
    fn names_of_step_files_are_read() {
        assert_eq!(process_of("steps.3.4711.jsonl"), Some((3, 4711)));
        assert_eq!((process_of("steps.3.jsonl"), process_of("result.3.json")), (None, None));
    }
}

//! Resources of processes that survive many recoveries: memory, descriptors and threads, from /proc.

use crate::outside::census::{Part, Process, parent};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;

/// Recoveries that a process must have survived, not counting the first, for its growth to be reported: a guard's
/// standbys and ranks start in the first of them.
const LIFE_MIN: usize = 15;
/// Samples at the start of a life that are not counted: what is allocated in the first recovery is kept.
const FIRST_LEFT_OUT: usize = 1;

/// Resources of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Holds {
    rss_kib: i64,
    fds: i64,
    threads: i64,
    /// Children of the process, ranks and standbys: a guard holds descriptors for each.
    children: usize,
}

impl Holds {
    fn of(pid: i32, children: usize) -> Option<Holds> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        Some(Holds { rss_kib: field("VmRSS:")?, fds: fds.try_into().ok()?, threads: field("Threads:")?, children })
    }
}

/// The samples of all processes.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    lives: BTreeMap<(i32, &'static str), Vec<Holds>>,
}

/// The maximum growth of any process, from the first third of its recoveries to the last, and which process that was.
/// The minimum of each third counts: what is freed again is no growth, and what leaks is in the minimum as well. A
/// guard is compared at equal numbers of children: when hosts are lost, it temporarily has all ranks of a job, and
/// standbys for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Grown {
    pub(crate) rss_growth_kib: i64,
    pub(crate) fd_growth: i64,
    pub(crate) thread_growth: i64,
    /// The process with each of these maxima.
    pub(crate) by: [String; 3],
    /// Maximum number of recoveries that a process has survived, by its kind.
    pub(crate) lived: BTreeMap<&'static str, usize>,
}

impl Growth {
    /// Takes a sample of each process after a recovery.
    pub(crate) fn sample(&mut self, processes: &[Process], supervisor: Option<i32>) {
        let parents: Vec<i32> = processes.iter().filter_map(|process| parent(process.pid)).collect();
        for process in processes.iter().filter(|process| process.state != 'Z') {
            let what = match process.part {
                Part::Rank { .. } => "rank",
                Part::Guard => "guard",
                Part::Store => "store",
                Part::Other if Some(process.pid) == supervisor => "supervisor",
                Part::Standby | Part::Other => continue,
            };
            let children = parents.iter().filter(|parent| **parent == process.pid).count();
            if let Some(holds) = Holds::of(process.pid, children) {
                self.lives.entry((process.pid, what)).or_default().push(holds);
            }
        }
    }

    /// Returns the present resources of the rank that holds most, as text.
    pub(crate) fn newest(&self) -> String {
        let last = self
            .lives
            .iter()
            .filter(|((pid, what), _)| *what == "rank" && is_there(*pid))
            .filter_map(|(_, life)| life.last());
        let most = last.fold(Holds::default(), |most, one| Holds {
            rss_kib: most.rss_kib.max(one.rss_kib),
            fds: most.fds.max(one.fds),
            threads: most.threads.max(one.threads),
            children: most.children.max(one.children),
        });
        let Holds { rss_kib, fds, threads, .. } = most;
        format!("a rank holds at most {} MiB, {fds} descriptors, {threads} threads", rss_kib >> 10)
    }

    /// Returns the maximum growth. Processes that have survived too few recoveries are left out.
    pub(crate) fn grown(&self) -> Grown {
        let mut grown = Grown::default();
        for ((pid, what), life) in &self.lives {
            let lived = grown.lived.entry(what).or_default();
            *lived = (*lived).max(life.len());
            let life = life.get(FIRST_LEFT_OUT..).unwrap_or_default();
            if life.len() < LIFE_MIN {
                continue;
            }
            let third = life.len() / 3;
            let by = |field: fn(&Holds) -> i64| {
                let (first, last) = (least(&life[..third], field), least(&life[life.len() - third..], field));
                first.iter().filter_map(|(children, first)| Some(last.get(children)? - first)).max().unwrap_or_default()
            };
            let found = [by(|holds| holds.rss_kib), by(|holds| holds.fds), by(|holds| holds.threads)];
            let most = [&mut grown.rss_growth_kib, &mut grown.fd_growth, &mut grown.thread_growth];
            for ((found, most), process) in found.into_iter().zip(most).zip(&mut grown.by) {
                if found > *most {
                    *most = found;
                    *process = format!("{what}, process {pid}, over {} recoveries", life.len());
                }
            }
        }
        grown
    }
}

fn is_there(pid: i32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// Returns the minimum of a resource for each number of children.
fn least(life: &[Holds], field: fn(&Holds) -> i64) -> BTreeMap<usize, i64> {
    let mut least = BTreeMap::new();
    for holds in life {
        let known = least.entry(holds.children).or_insert(i64::MAX);
        *known = field(holds).min(*known);
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_measured_between_thirds_of_the_process_that_grew_most() {
        let life = |rss: &[i64]| {
            rss.iter().map(|rss_kib| Holds { rss_kib: *rss_kib, fds: 9, threads: 4, children: 0 }).collect()
        };
        let mut growth = Growth::default();
        growth
            .lives
            .insert((1, "rank"), life(&[10, 90, 100, 100, 100, 100, 100, 100, 500, 500, 500, 500, 140, 900, 150, 160]));
        growth.lives.insert((2, "rank"), life(&[10, 10, 10, 10, 10, 10, 10, 9000, 9000, 9000, 9000, 9000, 9000, 9000]));
        let grown = growth.grown();
        assert_eq!((grown.rss_growth_kib, grown.fd_growth, grown.thread_growth), (50, 0, 0));
        assert_eq!(grown.by[0], "rank, process 1, over 15 recoveries");
        assert_eq!(grown.lived["rank"], 16);
    }

    #[test]
    fn growth_of_a_guard_is_compared_at_equal_numbers_of_ranks() {
        let life = |leaks: i64| {
            let holds = |at: i64, ranks: i64| Holds {
                rss_kib: 1,
                fds: 20 + 6 * ranks + at * leaks,
                threads: 4,
                children: usize::try_from(ranks).unwrap_or_default(),
            };
            (0..25).map(|at| holds(at, if at < 12 { at % 3 } else { 1 + at % 4 })).collect()
        };
        for leaks in [0, 1] {
            let growth = Growth { lives: [((1, "guard"), life(leaks))].into() };
            let grown = growth.grown().fd_growth;
            assert!((16 * leaks..=20 * leaks).contains(&grown), "{grown} where it leaks {leaks} in each recovery");
        }
    }
}

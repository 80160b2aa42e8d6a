//! Identification of the processes that belong to a rank, and killing exactly those.
//!
//! A process is identified by pid *and* start time. It belongs to a rank if it is in the rank's session, process group
//! or control group, descends from it, or carries the marker (job id and name of the rank) in its initial environment.
//! No other process is ever signalled.

use super::wire::JobId;
use crate::proc_fs::Stat;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

/// Number of further scans that have to find nothing, after something was found.
const LOOKS_AGAIN: u32 = 2;

/// The environment variables that mark a process.
pub(crate) const JOB_MARK: &str = "TASKD_JOB";
/// See [`JOB_MARK`].
pub(crate) const PROC_MARK: &str = "TASKD_PROC";

/// All processes of the machine (of this PID namespace) that have not ended, at one moment.
#[derive(Debug)]
pub(crate) struct Census(BTreeMap<i32, Stat>);

/// Permanent identity of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) pid: i32,
    start_time: u64,
}

/// Criteria of a search for processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// The root of the tree, while it has not been reaped; later its pid may be another process's.
    pub(crate) root: Option<Pid>,
    /// Number of its session and group, while it is certain that the number was not reused.
    pub(crate) session: Option<Pid>,
    /// The process that adopts orphans. An ending child of it has no environment any more, and is therefore always
    /// included.
    pub(crate) adopter: Option<Pid>,
    pub(crate) job: &'a JobId,
    /// The rank; all processes of the job if `None`.
    pub(crate) proc: Option<&'a str>,
    /// Leaders of sessions, which may have ended.
    pub(crate) leaders: &'a [Member],
    /// The processes in the control group of the rank.
    pub(crate) grouped: &'a [Pid],
}

impl Census {
    /// Reads the state of every process.
    pub(crate) fn take() -> Census {
        let Ok(listed) = fs::read_dir("/proc") else { return Census(BTreeMap::new()) };
        let pids = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
        let alive = pids.filter_map(|pid| Some((pid.as_raw_nonzero().get(), Stat::read(pid)?)));
        Census(alive.filter(|(_, stat)| !stat.is_zombie()).collect())
    }

    /// Takes a census and, during it, kills each process with the job's marker as soon as it is found, the youngest
    /// first: a process that lives only to fork the next one would be gone by the end of the census.
    fn take_and_kill(job: &JobId) -> (Census, Vec<Member>) {
        let mut pids: Vec<i32> = fs::read_dir("/proc").map_or_else(
            |_| Vec::new(),
            |listed| listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect(),
        );
        pids.sort_unstable_by(|one, other| other.cmp(one));
        let (mut census, mut killed) = (BTreeMap::new(), Vec::new());
        for pid in pids {
            let Some(stat) = Pid::from_raw(pid).and_then(Stat::read).filter(|stat| !stat.is_zombie()) else { continue };
            if is_marked(pid, job, None) {
                let member = Member { pid, start_time: stat.start_time };
                member.kill();
                killed.push(member);
            }
            census.insert(pid, stat);
        }
        (Census(census), killed)
    }

    /// Takes a census of these processes only.
    pub(crate) fn of(pids: impl IntoIterator<Item = i32>) -> Census {
        let alive = pids.into_iter().filter_map(|pid| Some((pid, Stat::read(Pid::from_raw(pid)?)?)));
        Census(alive.filter(|(_, stat)| !stat.is_zombie()).collect())
    }

    /// Leaves out the processes that are ending.
    pub(crate) fn without_dying(mut self) -> Census {
        self.0.retain(|_, stat| !stat.is_exiting());
        self
    }

    /// Returns all descendants of `root`, without `root`.
    pub(crate) fn descendants(&self, root: Pid) -> BTreeSet<i32> {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (pid, stat) in &self.0 {
            children.entry(stat.parent).or_default().push(*pid);
        }
        let mut found = BTreeSet::new();
        let mut next = vec![root.as_raw_nonzero().get()];
        while let Some(parent) = next.pop() {
            for child in children.get(&parent).into_iter().flatten() {
                if found.insert(*child) {
                    next.push(*child);
                }
            }
        }
        found
    }

    /// Returns the processes of `among` (of all if `None`) that match `wanted`, including its root, and those of
    /// `earlier` that still exist: an ending process has no environment any more by which it could be found again.
    pub(crate) fn members(
        &self,
        wanted: &Wanted<'_>,
        among: Option<&BTreeSet<i32>>,
        earlier: &[Member],
    ) -> Vec<Member> {
        let below = wanted.root.map(|root| self.descendants(root)).unwrap_or_default();
        let root = wanted.root.map(|pid| pid.as_raw_nonzero().get());
        let session = wanted.session.map(|pid| pid.as_raw_nonzero().get());
        let adopter = wanted.adopter.map(|pid| pid.as_raw_nonzero().get());
        let belongs = |member: Member, stat: &Stat| {
            root == Some(member.pid)
                || session.is_some_and(|number| stat.session == number || stat.group == number)
                || below.contains(&member.pid)
                || wanted.grouped.iter().any(|pid| pid.as_raw_nonzero().get() == member.pid)
                || earlier.contains(&member)
                || (stat.is_exiting() && adopter == Some(stat.parent))
                || wanted.leaders.iter().any(|leader| self.is_in_session(stat, *leader))
                || is_marked(member.pid, wanted.job, wanted.proc)
        };
        let candidates = self.0.iter().filter(|(pid, _)| among.is_none_or(|among| among.contains(pid)));
        let named = candidates.map(|(pid, stat)| (Member { pid: *pid, start_time: stat.start_time }, stat));
        named.filter(|(member, stat)| belongs(*member, stat)).map(|(member, _)| member).collect()
    }

    /// Returns true if a process is in the session or group of this leader. The number of a session is not reused as
    /// long as a process is in it.
    fn is_in_session(&self, stat: &Stat, leader: Member) -> bool {
        let is_of_it = stat.session == leader.pid || stat.group == leader.pid;
        let is_same = || self.0.get(&leader.pid).is_none_or(|now| now.start_time == leader.start_time);
        is_of_it && stat.start_time >= leader.start_time && is_same()
    }

    /// Adds the descendants of the given processes.
    fn with_descendants(&self, mut members: Vec<Member>) -> Vec<Member> {
        let known: BTreeSet<i32> = members.iter().map(|member| member.pid).collect();
        let roots = members.iter().filter_map(|member| Pid::from_raw(member.pid));
        let below: BTreeSet<i32> = roots.flat_map(|root| self.descendants(root)).collect();
        let new = below
            .difference(&known)
            .filter_map(|pid| Some(Member { pid: *pid, start_time: self.0.get(pid)?.start_time }));
        members.extend(new);
        members
    }

    /// Kills all descendants of `root`, and returns their number.
    pub(crate) fn kill_below(&self, root: Pid) -> usize {
        let below = self.descendants(root);
        for pid in &below {
            if let Some(stat) = self.0.get(pid) {
                Member { pid: *pid, start_time: stat.start_time }.kill();
            }
        }
        below.len()
    }
}

impl Member {
    pub(crate) const fn new((pid, start_time): (i32, u64)) -> Member {
        Member { pid, start_time }
    }

    /// Returns true if the process has not ended.
    fn is_there(self) -> bool {
        let stat = Pid::from_raw(self.pid).and_then(Stat::read);
        stat.is_some_and(|stat| stat.start_time == self.start_time && !stat.is_zombie())
    }

    /// Kills it if it still exists, but never another process that has got its pid.
    pub(crate) fn kill(self) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        if Stat::read(pid).is_none_or(|now| now.start_time != self.start_time) {
            return;
        }
        let _ = match handle {
            Ok(handle) => rustix::process::pidfd_send_signal(handle, Signal::KILL), // the checked process
            Err(_) => rustix::process::kill_process(pid, Signal::KILL),             // Linux before 5.3
        };
    }
}

/// Returns true if a process was started with the job's marker.
fn is_marked(pid: i32, job: &JobId, proc: Option<&str>) -> bool {
    let environment = environment(pid);
    let has = |name: &str, value: &str| {
        let entry =
            |e: &[u8]| e.strip_prefix(name.as_bytes()).and_then(|e| e.strip_prefix(b"=")) == Some(value.as_bytes());
        environment.split(|b| *b == 0).any(entry)
    };
    has(JOB_MARK, &job.0) && proc.is_none_or(|proc| has(PROC_MARK, proc))
}

/// Returns true if any process carries the job's marker, or is in a session of these leaders.
pub(crate) fn has_processes_left(job: &JobId, leaders: &[Member]) -> bool {
    let wanted = Wanted { root: None, session: None, adopter: None, job, proc: None, leaders, grouped: &[] };
    !Census::take().members(&wanted, None, &[]).is_empty()
}

/// Returns the initial environment of a process; if its first thread has ended, the environment is read through another
/// thread. Empty if it cannot be read.
fn environment(pid: i32) -> Vec<u8> {
    let own = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let is_headless = || {
        Pid::from_raw(pid).and_then(Stat::read).is_some_and(|stat| stat.first_thread_has_ended() && !stat.is_zombie())
    };
    if !own.is_empty() || !is_headless() {
        return own;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_threads = threads.filter_map(|thread| fs::read(thread.path().join("environ")).ok());
    of_threads.into_iter().find(|environment| !environment.is_empty()).unwrap_or_default()
}

/// Kills all processes that carry a job's marker or are in a session of these leaders, with their descendants, and
/// waits until they are gone, at most for `limit`. Blocks.
pub(crate) fn remove_all(job: &JobId, leaders: &[Member], limit: Duration) {
    let until = Instant::now() + limit;
    let mut pause = Duration::from_millis(2);
    let wanted = Wanted { root: None, session: None, adopter: None, job, proc: None, leaders, grouped: &[] };
    let (mut left, mut looks_again) = (Vec::new(), 0);
    loop {
        let (census, killed) = Census::take_and_kill(job);
        left.extend(killed);
        left = census.with_descendants(census.members(&wanted, None, &left));
        left.iter().copied().for_each(Member::kill);
        if left.is_empty() {
            // If processes fork continuously, one scan may see neither the parent nor the child.
            if looks_again == 0 {
                return;
            }
            looks_again -= 1;
            continue;
        }
        looks_again = LOOKS_AGAIN;
        // Only these are polled until they are gone: a full scan takes time from cores that are releasing their memory.
        while Instant::now() < until && left.iter().any(|member| member.is_there()) {
            std::thread::park_timeout(pause); // the end of a process that is not a child is not reported
            pause = (pause * 5 / 4).min(Duration::from_millis(100));
        }
        if Instant::now() >= until {
            return; // even if new ones have appeared
        }
    }
}

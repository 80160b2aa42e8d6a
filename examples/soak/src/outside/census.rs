//! The job's processes as any process can observe them from outside: in /proc, by a mark in their environment.
//!
//! It sends no requests to supervisor or guard, and signals only processes that it has listed.

use super::notes::Victim;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// The environment variable that marks all processes of a soak run: supervisors, guards, ranks, and their descendants.
pub(crate) const MARK: &str = "CHAOS_RUN";

/// The role of a process in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Guard,
    /// The job's store.
    Store,
    /// A standby, or the template process that forks standbys.
    Standby,
    /// The root process of a rank.
    Rank {
        victim: Victim,
        generation: u64,
        /// Port at which rank 0 hosts the store.
        port: u16,
    },
    /// A supervisor, a descendant of a rank, or a process that is ending and has lost its environment.
    Other,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    start_time: u64,
    pub(crate) state: char,
    pub(crate) part: Part,
}

impl Process {
    /// Sends a signal to this process, and never to another one with the same id.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_raw(self.pid).ok_or(io::ErrorKind::InvalidInput)?;
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        if Stat::read(self.pid).is_none_or(|now| now.start_time != self.start_time) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(pidfd_send_signal(handle, signal)?)
    }

    pub(crate) fn rank(&self) -> Option<(Victim, u64)> {
        match self.part {
            Part::Rank { victim, generation, .. } => Some((victim, generation)),
            _ => None,
        }
    }
}

/// Lists processes, and remembers all that it has ever listed: one that is ending has no environment any more by which
/// it could be found again.
#[derive(Debug)]
pub(crate) struct Census {
    mark: String,
    seen: BTreeMap<i32, u64>,
}

impl Census {
    pub(crate) fn new(mark: String) -> Census {
        Census { mark, seen: BTreeMap::new() }
    }

    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns the ids of all processes that ever belonged to the job.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.seen.keys().copied()
    }

    /// Returns all marked processes, and those listed earlier that still exist; zombies included.
    pub(crate) fn take(&mut self) -> Vec<Process> {
        let listed = fs::read_dir("/proc").into_iter().flatten();
        let pids = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let processes: Vec<Process> = pids.filter_map(|pid| self.look(pid)).collect();
        self.seen.extend(processes.iter().map(|p| (p.pid, p.start_time)));
        processes
    }

    fn look(&self, pid: i32) -> Option<Process> {
        let Stat { state, start_time, .. } = Stat::read(pid)?;
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environ: BTreeMap<&[u8], &[u8]> = environ.split(|b| *b == 0).filter_map(split).collect();
        let marked = environ.get(MARK.as_bytes()) == Some(&self.mark.as_bytes());
        let known = self.seen.get(&pid) == Some(&start_time);
        let part = if marked { part(pid, &environ) } else { Part::Other };
        (marked || known).then_some(Process { pid, start_time, state, part })
    }
}

fn split(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = entry.iter().position(|b| *b == b'=')?;
    Some((&entry[..at], &entry[at + 1..]))
}

fn part(pid: i32, environ: &BTreeMap<&[u8], &[u8]>) -> Part {
    let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if argv.starts_with(b"taskd-guard\0") {
        return Part::Guard;
    }
    if argv.split(|b| *b == 0).nth(1) == Some(b"taskd-store/1") {
        return Part::Store;
    }
    let number = |name: &str| -> Option<u64> { std::str::from_utf8(environ.get(name.as_bytes())?).ok()?.parse().ok() };
    let rank = || {
        let rank = number("TASKD_RANK")?.try_into().ok()?;
        let victim = Victim { rank, incarnation: number("TASKD_INCARNATION")? };
        let port = number("MASTER_PORT")?.try_into().ok()?;
        // A rank's root process leads a session; its descendants do not.
        (Stat::read(pid)?.session == pid).then_some(Part::Rank {
            victim,
            generation: number("TASKD_GENERATION")?,
            port,
        })
    };
    let other = || if environ.contains_key(&b"TASKD_STANDBY_FD"[..]) { Part::Standby } else { Part::Other };
    rank().unwrap_or_else(other)
}

/// The fields of `/proc/PID/stat` that are needed.
struct Stat {
    state: char,
    parent: i32,
    session: i32,
    start_time: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect(); // from field 3 on
        let field = |number: usize| fields.get(number - 3);
        Some(Stat {
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            start_time: field(22)?.parse().ok()?,
        })
    }
}

/// Returns the parent of a process.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    Stat::read(pid).map(|stat| stat.parent)
}

/// Returns true if a process has mapped one of torch's libraries.
pub(crate) fn imports_torch(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("libtorch"))
}

/// Returns true if a process listens at a port of this machine.
pub(crate) fn is_listened_at(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let at = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        let mut rows = text.lines().skip(1).map(|line| line.split_whitespace());
        rows.any(|mut row| row.nth(1).is_some_and(|local| local.ends_with(&at)) && row.nth(1) == Some(LISTEN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_marked_process_is_found_until_it_is_reaped() {
        let mark = format!("census-test-{}", std::process::id());
        let mut census = Census::new(mark.clone());
        assert_eq!(census.take(), []);
        let mut child = Command::new("sleep").arg("600").env(MARK, &mark).spawn().unwrap();
        let found = loop {
            let found = census.take(); // before its exec the child has our environment
            if !found.is_empty() {
                break found;
            }
        };
        assert_eq!((found.len(), found[0].pid), (1, child.id().cast_signed()));
        found[0].signal(Signal::KILL).unwrap();
        while census.take().iter().any(|process| process.state != 'Z') {
            std::thread::yield_now();
        }
        assert_eq!(census.take().len(), 1, "a zombie has no environment and is found all the same");
        child.wait().unwrap();
        assert_eq!(census.take(), []);
        assert!(found[0].signal(Signal::KILL).is_err());
    }
}

//! The job's processes as any process can see them from outside: in /proc, by a mark in their environment.
//!
//! It asks neither supervisor nor guard, and signals only processes that it has looked at.

use super::notes::Victim;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// The variable that marks everything a soak run starts: supervisors, guards, ranks, and whatever they start.
pub(crate) const MARK: &str = "CHAOS_RUN";

/// What a process is in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Guard,
    /// The job's store.
    Store,
    /// Waits to be a rank, or makes processes that do.
    Standby,
    /// The root process of a rank.
    Rank {
        victim: Victim,
        generation: u64,
        /// Where rank 0 hosts the store.
        port: u16,
    },
    /// A supervisor, something that a rank started, or a process that is ending and has no environment any more.
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
    /// Sends a signal to exactly this process.
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

/// Looks for processes, and remembers all that it has ever seen: one that is ending has no environment by which it
/// could be found again.
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

    /// All process ids that were ever the job's.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.seen.keys().copied()
    }

    /// All marked processes, and those seen earlier that are not gone yet; zombies included.
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
        // Its root leads a session; what it has started does not.
        (Stat::read(pid)?.session == pid).then_some(Part::Rank {
            victim,
            generation: number("TASKD_GENERATION")?,
            port,
        })
    };
    let other = || if environ.contains_key(&b"TASKD_STANDBY_FD"[..]) { Part::Standby } else { Part::Other };
    rank().unwrap_or_else(other)
}

/// The few fields of `/proc/PID/stat` that are needed.
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

/// Whose child a process is.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    Stat::read(pid).map(|stat| stat.parent)
}

/// Whether a process has begun to load torch's libraries.
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
            let found = census.take(); // until the child has become another program it has our environment
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

//! Reader of `/proc`: one process's `stat` line, and the identity of a process and its ancestors.
//!
//! This module only reads. Nothing that a process can choose (its name, its environment) can mislead the parser.

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

/// Upper bound of the length of a `/proc/PID/stat` line.
pub(crate) const STAT_BYTES_MAX: usize = 1024;

/// The relevant fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X` and so on.
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// `PF_*` flags of the main thread.
    pub(crate) flags: u64,
    /// Number of threads that have not ended, plus the first one, which stays until all have.
    pub(crate) threads: i64,
    /// Clock ticks after boot; together with the pid it identifies a process permanently.
    pub(crate) start_time: u64,
    /// Wait status of the main thread; 0 if it may not be read or is not shown, as by an emulator.
    pub(crate) exit_code: i32,
}

impl Stat {
    /// The main thread is in `do_exit`.
    const EXITING: u64 = 0x4;

    pub(crate) fn is_exiting(&self) -> bool {
        self.flags & Stat::EXITING != 0
    }

    /// Returns true if the process has ended but was not reaped: it holds neither memory nor ports. A process whose
    /// first thread has ended while others run is not a zombie.
    pub(crate) fn is_zombie(&self) -> bool {
        self.first_thread_has_ended() && self.threads <= 1
    }

    /// Returns true if the first thread has ended. The memory-related fields are then shown by the other threads only,
    /// if there are any.
    pub(crate) fn first_thread_has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Parses a line. Does not allocate, since it also runs between fork and exec.
    pub(crate) fn parse(line: &[u8]) -> Option<Stat> {
        // The program's name, in parentheses, may contain any character, parentheses and spaces included: the last `)`
        // ends it.
        let after_name = line.iter().rposition(|b| *b == b')')? + 1;
        let mut fields = line.get(after_name..)?.split(|b| b.is_ascii_whitespace()).filter(|f| !f.is_empty());
        let state = char::from(*fields.next()?.first()?);
        let mut number = |skipped: usize| std::str::from_utf8(fields.nth(skipped)?).ok();
        let (parent, group, session) = (number(0)?.parse().ok()?, number(0)?.parse().ok()?, number(0)?.parse().ok()?);
        let flags = number(2)?.parse().ok()?; // field 9
        let threads = number(10)?.parse().ok()?; // field 20
        let start_time = number(1)?.parse().ok()?; // field 22
        let exit_code = number(29).map_or(Some(0), |code| code.parse().ok())?; // field 52
        Some(Stat { state, parent, group, session, flags, threads, start_time, exit_code })
    }

    /// Reads the line of a process, if it still exists.
    pub(crate) fn read(pid: Pid) -> Option<Stat> {
        let mut line = [0u8; STAT_BYTES_MAX];
        let mut path = [0u8; 32];
        let file =
            rustix::fs::open(stat_path(pid, &mut path)?, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let n = rustix::io::read(file, &mut line).ok()?;
        Stat::parse(&line[..n])
    }
}

/// Maximum number of ancestors examined; nested wrappers are few.
const ANCESTORS_MAX: usize = 64;

/// Iterates over a process and its ancestors, upwards, each with its start time.
pub(crate) fn lineage(pid: u32) -> impl Iterator<Item = (u32, u64)> {
    let read = |pid: u32| Some((pid, Stat::read(Pid::from_raw(i32::try_from(pid).ok()?)?)?));
    let above = move |(_, stat): &(u32, Stat)| read(u32::try_from(stat.parent).ok()?);
    std::iter::successors(read(pid), above).take(ANCESTORS_MAX).map(|(pid, stat)| (pid, stat.start_time))
}

/// Returns true if the process with this pid and start time has not ended.
pub(crate) fn is_running((pid, start_time): (u32, u64)) -> bool {
    let stat = i32::try_from(pid).ok().and_then(Pid::from_raw).and_then(Stat::read);
    stat.is_some_and(|stat| stat.start_time == start_time && !stat.is_zombie())
}

/// Writes the path `/proc/PID/stat` into `buffer` and returns it. Threads of the lifeline have small stacks and do not
/// allocate.
fn stat_path(pid: Pid, buffer: &mut [u8; 32]) -> Option<&std::ffi::CStr> {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    write!(rest, "/proc/{}/stat\0", pid.as_raw_nonzero()).ok()?;
    std::ffi::CStr::from_bytes_until_nul(buffer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitId, WaitIdOptions};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_name_with_brackets_and_spaces_is_parsed() {
        let line =
            b"4242 (a) S 1 (b) T 7 8 9 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3 4 5 6 7 8 9 10 11 12 13 \
                     14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 9\n";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.group, stat.session), ('T', 7, 8, 9));
        assert_eq!((stat.start_time, stat.is_exiting(), stat.exit_code), (987_654, true, 9));
    }

    /// The `stat` line of a child process can be read as the system writes it, at the child's start and as a zombie.
    #[test]
    fn a_child_can_be_read_in_life_and_death() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let alive = Stat::read(pid).unwrap();
        assert_eq!(alive.parent, rustix::process::getpid().as_raw_nonzero().get());
        assert!(!alive.is_exiting() && !alive.is_zombie() && alive.start_time > 0);
        child.kill().unwrap();
        rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let dead = Stat::read(pid).unwrap();
        assert!(dead.is_exiting() && dead.is_zombie());
        assert_eq!((dead.start_time, dead.exit_code), (alive.start_time, 9));
        child.wait().unwrap();
        assert_eq!(Stat::read(pid), None);
    }

    #[test]
    fn stat_of_the_current_process_is_readable() {
        assert!(Stat::read(rustix::process::getpid()).is_some_and(|stat| stat.start_time > 0));
    }

    #[test]
    fn garbage_is_no_line() {
        for line in [&b""[..], b")", b"1 (x)", b"1 (x) S a b c", b"1 (x) S 1 1 1 0 -1"] {
            assert_eq!(Stat::parse(line), None);
        }
    }
}

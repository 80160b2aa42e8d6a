//! Learning of the end of a process on every kernel that we support: a pidfd, and before Linux 5.3, which has none, what
//! comes closest to it.
//!
//! It reaps nobody and signals nobody.

use super::poll::{Poll, Token};
use super::proc_fs::Stat;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How often a process that is no child is looked at, where there is no pidfd.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Stack of a thread that waits for a child in bytes.
const STACK_BYTES: usize = 32 << 10;

/// A descriptor that becomes readable when this child ends. The child must not have been reaped yet.
///
/// # Errors
/// No descriptor is left, or no thread can be started.
pub(super) fn child(pid: Pid) -> io::Result<OwnedFd> {
    match pidfd(pid)? {
        Some(handle) => Ok(handle),
        None => child_by_thread(pid),
    }
}

/// `None`: this kernel has no pidfds, or a sandbox that does not know them forbids them.
fn pidfd(pid: Pid) -> io::Result<Option<OwnedFd>> {
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => Ok(Some(handle)),
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A thread waits, without reaping, and tells.
fn child_by_thread(pid: Pid) -> io::Result<OwnedFd> {
    let ended = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let tell = ended.try_clone()?;
    std::thread::Builder::new().name("taskd-child".into()).stack_size(STACK_BYTES).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(rustix::process::waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
        let _ = rustix::io::write(&tell, &1u64.to_ne_bytes()); // the first write to an eventfd cannot fail
    })?;
    Ok(ended)
}

/// Waits for the end of a process that is no child of this one.
#[derive(Debug)]
pub(super) enum Other {
    /// It becomes readable.
    ByHandle(OwnedFd),
    /// It has to be looked at.
    ByLooking { pid: Pid, start_time: u64, next_at: Instant },
}

impl Other {
    /// Begins to wait; its end comes as `token`, or is seen by [`Other::look`]. `None`: there is no such process, or
    /// nothing to wait with.
    pub(super) fn watch(pid: Pid, poll: &Poll, token: Token, now: Instant) -> Option<Other> {
        match pidfd(pid) {
            Ok(Some(handle)) => poll.add(&handle, token).is_ok().then_some(Other::ByHandle(handle)),
            Ok(None) => {
                let start_time = Stat::read(pid)?.start_time;
                Some(Other::ByLooking { pid, start_time, next_at: now + LOOK_EVERY })
            }
            Err(_) => None,
        }
    }

    /// Ends it.
    pub(super) fn forget(self, poll: &Poll) {
        match self {
            Other::ByHandle(handle) => poll.remove(handle),
            Other::ByLooking { .. } => (),
        }
    }

    /// When to look.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self {
            Other::ByHandle(_) => None,
            Other::ByLooking { next_at, .. } => Some(*next_at),
        }
    }

    /// Whether it is time to look, and the process has ended.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        let Other::ByLooking { pid, start_time, next_at } = self else { return false };
        if *next_at > now {
            return false;
        }
        *next_at = now + LOOK_EVERY;
        Stat::read(*pid).is_none_or(|stat| stat.is_zombie() || stat.start_time != *start_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec};
    use std::process::{Child, Command, Stdio};

    /// Ends when its standard input does.
    fn start() -> (Child, Pid) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    /// Whether the end is told, within the time.
    fn is_told(end: &OwnedFd, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap();
        rustix::event::poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }

    #[test]
    fn a_childs_end_is_told_and_the_child_is_left_to_be_reaped() {
        for wait_for in [child, child_by_thread] {
            let (mut process, pid) = start();
            let end = wait_for(pid).unwrap();
            assert!(!is_told(&end, Duration::ZERO));
            drop(process.stdin.take());
            assert!(is_told(&end, Duration::from_secs(20)));
            assert!(process.wait().unwrap().success());
        }
    }

    #[test]
    fn without_a_handle_a_process_is_looked_at_from_time_to_time() {
        let (mut process, pid) = start();
        let (now, start_time) = (Instant::now(), Stat::read(pid).unwrap().start_time);
        let mut other = Other::ByLooking { pid, start_time, next_at: now + LOOK_EVERY };
        assert!(!other.look(now + LOOK_EVERY));
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(!other.look(now + LOOK_EVERY), "it is not time yet");
        assert_eq!(other.deadline(), Some(now + 2 * LOOK_EVERY));
        assert!(other.look(now + 2 * LOOK_EVERY));
        let mut stranger = Other::ByLooking { pid: rustix::process::getpid(), start_time: 1, next_at: now };
        assert!(stranger.look(now), "another process with its number");
    }
}

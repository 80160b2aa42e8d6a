//! Notification of the end of a process on every supported kernel: a pidfd, or before Linux 5.3, which has none, the
//! closest substitute.
//!
//! This module reaps and signals no process.

use super::poll::{Poll, Token};
use crate::proc_fs::Stat;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Polling interval for a process that is not a child, on a kernel without pidfds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Stack size in bytes of a thread that waits for a child.
const STACK_BYTES: usize = 32 << 10;

/// Returns a descriptor that becomes readable when this child ends. The child must not have been reaped yet.
///
/// # Errors
/// Fails if no descriptor is left, or no thread can be started.
pub(super) fn child(pid: Pid) -> io::Result<OwnedFd> {
    match pidfd(pid)? {
        Some(handle) => Ok(handle),
        None => child_by_thread(pid),
    }
}

/// Returns a pidfd of a process. `None` if this Linux has no pidfds, or if a sandbox that does not know them forbids
/// them.
fn pidfd(pid: Pid) -> io::Result<Option<OwnedFd>> {
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => Ok(Some(handle)),
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Starts a thread that waits for the child without reaping it, and then writes to the returned eventfd.
fn child_by_thread(pid: Pid) -> io::Result<OwnedFd> {
    let ended = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let signal = ended.try_clone()?;
    std::thread::Builder::new().name("taskd-child".into()).stack_size(STACK_BYTES).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(rustix::process::waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
        let _ = rustix::io::write(&signal, &1u64.to_ne_bytes()); // the first write to an eventfd cannot fail
    })?;
    Ok(ended)
}

/// Watch on the end of a process that is not a child of this one.
#[derive(Debug)]
pub(super) enum Other {
    /// Descriptor that becomes readable when the process ends.
    ByHandle(OwnedFd),
    /// The process has to be polled, the next time at `next_at`.
    ByLooking { pid: Pid, start_time: u64, next_at: Instant },
}

impl Other {
    /// Starts the watch. The end is reported as `token`, or found by [`Other::look`]. Returns `None` if there is no
    /// such process, or no means to watch it.
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

    /// Ends the watch.
    pub(super) fn forget(self, poll: &Poll) {
        match self {
            Other::ByHandle(handle) => poll.remove(handle),
            Other::ByLooking { .. } => (),
        }
    }

    /// Time of the next poll, if the process has to be polled.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self {
            Other::ByHandle(_) => None,
            Other::ByLooking { next_at, .. } => Some(*next_at),
        }
    }

    /// Returns true if a poll is due and the process has ended.
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

    /// Starts a process that ends when its standard input is closed.
    fn start() -> (Child, Pid) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    /// Returns true if the end is reported within the time.
    fn is_signalled(end: &OwnedFd, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap();
        rustix::event::poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }

    #[test]
    fn the_end_of_a_child_is_reported_without_reaping_it() {
        for wait_for in [child, child_by_thread] {
            let (mut process, pid) = start();
            let end = wait_for(pid).unwrap();
            assert!(!is_signalled(&end, Duration::ZERO));
            drop(process.stdin.take());
            assert!(is_signalled(&end, Duration::from_secs(20)));
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

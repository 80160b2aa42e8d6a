//! End of a process that is not a child of this one: that it ended, and its exit status if Linux shows it.
//!
//! This module waits and reads. It never guesses: an unknown status is [`Termination::Unknown`].

use super::sys;
use crate::job::Termination;
use crate::proc_fs::Stat;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// Time limit for the parent to reap the process, if the exit status is known only after that.
const REAPED_WITHIN: Duration = Duration::from_secs(1);
/// Polling interval while waiting for that.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Identity of one process: a later process with the same pid has a different start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) pid: i32,
    pub(super) start_time: u64,
}

impl Key {
    /// Returns the process that has this pid now.
    pub(super) fn of(pid: i32) -> Option<Key> {
        let stat = Stat::read(Pid::from_raw(pid)?)?;
        Some(Key { pid, start_time: stat.start_time })
    }

    /// Reads its `stat` line in `/proc`, while the process exists.
    pub(super) fn stat(self) -> Option<Stat> {
        Stat::read(Pid::from_raw(self.pid)?).filter(|stat| stat.start_time == self.start_time)
    }

    /// Returns true if the whole process has ended; it is not enough that its main thread has.
    pub(super) fn is_over(self) -> bool {
        let threads = || std::fs::read_dir(format!("/proc/{}/task", self.pid)).map_or(0, Iterator::count);
        self.stat().is_none_or(|stat| stat.is_zombie() && threads() <= 1)
    }
}

/// Watch on the end of one process.
#[derive(Debug)]
pub(super) struct EndWatch {
    key: Key,
    /// Descriptor (pidfd) of the process. `None` before Linux 5.3, or if no descriptor is available; then `/proc` is
    /// polled.
    pidfd: Option<AsyncFd<OwnedFd>>,
    /// True if `/proc` shows the wait status of this process to this program; otherwise it shows 0.
    may_read: bool,
}

impl EndWatch {
    /// Starts the watch.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with I/O enabled.
    pub(super) fn new(key: Key, may_read: bool) -> EndWatch {
        let opened = Pid::from_raw(key.pid).ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK));
        let opened = opened.ok().filter(|_| key.stat().is_some()); // otherwise the pid may be another process's
        EndWatch { key, pidfd: opened.and_then(sys::awaitable), may_read }
    }

    /// Makes a watch without a pidfd, as on an old Linux.
    #[cfg(test)]
    fn polled(key: Key) -> EndWatch {
        EndWatch { key, pidfd: None, may_read: true }
    }

    /// Returns true if the kernel reports the end; otherwise the process is polled.
    pub(super) const fn is_reported(&self) -> bool {
        self.pidfd.is_some()
    }

    /// Waits until the process has ended. If the kernel does not report it, the process is polled at the interval
    /// `every`.
    pub(super) async fn ended(&self, every: Duration) {
        if let Some(pidfd) = &self.pidfd
            && pidfd.readable().await.is_ok()
        {
            return;
        }
        while !self.key.is_over() {
            tokio::time::sleep(every).await;
        }
    }

    /// Returns how the process ended: from the kernel's record after it was reaped, and from `/proc` before.
    pub(super) async fn how(&self) -> Termination {
        let give_up = tokio::time::Instant::now() + REAPED_WITHIN;
        loop {
            let is_there = self.key.stat();
            let visible = is_there.filter(|stat| self.may_read && stat.is_zombie()).map(|stat| stat.exit_code);
            // In this order: a process that is gone from `/proc` has been reaped, so its record is complete.
            if let Some(status) = visible.or_else(|| sys::wait_status(self.pidfd.as_ref()?.as_fd())) {
                return Termination::of_wait_status(status);
            }
            let may_come = self.pidfd.is_some() && is_there.is_some();
            if !may_come || tokio::time::Instant::now() >= give_up {
                return Termination::Unknown;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sh(script: &str) -> (Child, Key) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let key = Key::of(child.id().try_into().unwrap()).unwrap();
        (child, key)
    }

    const EVERY: Duration = Duration::from_millis(5);
    const KILLED: Termination = Termination::Signal { number: 9, core_dumped: false };

    #[tokio::test]
    async fn a_termination_is_reported_before_the_process_is_reaped() {
        let (mut child, key) = sh("exec sleep 600");
        let watch = EndWatch::new(key, true);
        assert!(watch.is_reported());
        child.kill().unwrap();
        watch.ended(EVERY).await;
        assert_eq!(watch.how().await, KILLED);
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn reaped_process_has_its_exit_from_the_kernels_record_if_any() {
        let (mut child, key) = sh("exit 7");
        let watch = EndWatch::new(key, true);
        child.wait().unwrap();
        watch.ended(EVERY).await;
        let recorded = sys::wait_status(watch.pidfd.as_ref().unwrap().as_fd()).is_some();
        assert_eq!(watch.how().await, if recorded { Termination::Code(7) } else { Termination::Unknown });
        assert!(recorded || !kernel_is_from(6, 15), "Linux 6.15 and later keeps it");
    }

    #[tokio::test]
    async fn a_termination_without_a_pidfd_is_read_until_the_process_is_reaped() {
        let (mut child, key) = sh("exit 3");
        let watch = EndWatch::polled(key);
        watch.ended(EVERY).await;
        assert_eq!(watch.how().await, Termination::Code(3));
        child.wait().unwrap();
        watch.ended(EVERY).await;
        assert_eq!(watch.how().await, Termination::Unknown, "gone, and no process kept it");
    }

    #[tokio::test]
    async fn an_unreadable_exit_status_is_unknown_and_not_a_success() {
        let (mut child, key) = sh("exit 0");
        let watch = EndWatch { may_read: false, ..EndWatch::polled(key) };
        watch.ended(EVERY).await;
        assert_eq!(watch.how().await, Termination::Unknown);
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_later_process_with_the_number_is_not_it() {
        let (mut child, key) = sh("exec sleep 600");
        let earlier = EndWatch::new(Key { start_time: key.start_time - 1, ..key }, true);
        assert!(!earlier.is_reported());
        earlier.ended(EVERY).await;
        assert_eq!(earlier.how().await, Termination::Unknown);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn kernel_is_from(major: u32, minor: u32) -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
    }
}

//! The fence: a time at which the guard kills all processes with their descendants, whatever has become of its owner.
//!
//! An owner that holds a lease for its host moves the time as long as the lease is renewed. An owner that is stopped,
//! starved of processor time or killed cannot end its processes when the lease ends; the guard does it, because other
//! hosts may replace them. The time is one of `CLOCK_BOOTTIME`, so that it also passes while the machine is suspended.

use super::Engine;
use crate::job::{ErrorReport, Termination};
use crate::launch::LaunchError;
use crate::launch::fence::since_boot;
use crate::launch::guard::A_CENTURY;
use crate::launch::guard::poll::{Poll, Token};
use crate::launch::guard::procs::{Key, Tree};
use crate::launch::guard::wire::Answer;
use rustix::process::Signal;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Text of the error report of a process that the fence has killed. It is the same for all processes.
const WHY: &str = "killed by this host's guard: the time until which the host may run processes was over, and other \
                   hosts may replace them";

/// The fence of a guard.
#[derive(Debug, Default)]
pub(super) struct Fence {
    /// Time since the machine's start at which all processes are killed.
    at: Option<Duration>,
    /// The connection that has set this time, or that had set the last one.
    owner: Option<Key>,
    /// True from the moment at which the processes were killed to the owner's next request for a fence.
    is_over: bool,
    /// Wakes the guard also at the end of a suspension, during which the clock of the guard's wait stands still. `None`
    /// if no descriptor was free.
    timer: Option<OwnedFd>,
}

impl Fence {
    /// Returns the time at which the guard must wake up, as far as the machine is not suspended until then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.at.map(|at| Instant::now() + at.saturating_sub(since_boot()))
    }

    fn set_timer(&mut self, poll: &Poll) -> io::Result<()> {
        if self.timer.is_none() {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
            poll.add(&timer, Token::Fence)?;
            self.timer = Some(timer);
        }
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A time of 0 would disarm the timer.
        let at = self.at.map(|at| Timespec::try_from(at.max(Duration::from_nanos(1))).unwrap_or(never));
        let setting = Itimerspec { it_interval: never, it_value: at.unwrap_or(never) };
        if let Some(timer) = &self.timer {
            timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &setting)?; // also forgets an expiration
        }
        Ok(())
    }
}

impl Engine {
    /// Kills all processes if their time is over. The guard calls this before it handles anything else, so that after
    /// it was stopped itself, no request comes first.
    pub(super) fn enforce_fence(&mut self) {
        let Some(late) = self.fence.at.and_then(|at| since_boot().checked_sub(at)) else { return };
        let (now, is_process) = (Instant::now(), self.signals.is_some());
        let mut killed = Vec::new();
        for (key, proc) in self.procs.iter_mut().filter(|(_, proc)| proc.tree == Tree::Wanted && !proc.has_exited()) {
            if is_process {
                // It is not reaped yet, so its pid is still that of its group. The sweep kills the rest of its tree.
                let _ = rustix::process::kill_process_group(proc.pid, Signal::KILL);
            }
            (proc.is_fenced, proc.kill_at) = (true, Some(now));
            killed.push(key);
        }
        (self.fence.at, self.fence.is_over) = (None, true);
        self.arm_fence();
        self.kill_overdue(now);
        self.sweep(now);
        self.withdraw_fenced_starts();
        self.counters.fenced += killed.len() as u64;
        for key in &killed {
            // Before the rest of its output is read: the end of the output closes the log.
            if let Some(stderr) = self.procs.get(*key).and_then(|proc| proc.stderr.as_ref()) {
                stderr.say(&self.logs, &format!("taskd: {WHY}\n"));
            }
        }
        self.notice(&format!(
            "the time until which this host may run processes ended {late:?} ago: {} processes were killed, because \
             other hosts may replace them",
            killed.len()
        ));
    }

    /// Sets the time at which all processes are killed, as the owner requests; `None`: they are kept.
    pub(super) fn set_fence(&mut self, owner: Key, at: Option<Duration>) -> Result<Answer, LaunchError> {
        let (at, timer) = (at.map(|at| at.min(A_CENTURY)), self.fence.timer.take());
        self.fence = Fence { at, owner: Some(owner), is_over: false, timer };
        self.arm_fence();
        self.enforce_fence(); // the time may have passed on the way here
        Ok(Answer::Done)
    }

    /// Returns true if the owner must set a fence before this connection's processes start: the time that it had set
    /// is over. A request to start that was sent before then may be received only now.
    pub(super) fn is_fenced(&self, conn: Key) -> bool {
        self.fence.is_over && self.fence.owner == Some(conn)
    }

    fn arm_fence(&mut self) {
        if let Err(error) = self.fence.set_timer(&self.poll) {
            self.note(&format!("no timer for the fence ({error}): after a suspension of the machine it may be late"));
        }
    }
}

/// Returns the reason for the exit of a process that the fence has killed. `None` if it was quicker to end by itself.
pub(super) fn reason(how: Termination) -> Option<ErrorReport> {
    let killed = matches!(how, Termination::Signal { number, .. } if number == Signal::KILL.as_raw());
    killed.then(|| ErrorReport::fenced(WHY))
}

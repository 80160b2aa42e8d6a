//! Scheduling of threads: nice value and time slice.
//!
//! This module only sets them; the caller chooses the thread.
#![allow(unsafe_code)]

use rustix::process::Pid;
use std::io;

/// Default time slice, in nanoseconds: the kernel's choice.
pub(super) const USUAL_TURN_NS: u64 = 0;
/// Shortest time slice that the kernel accepts.
const SHORTEST_TURN_NS: u64 = 100_000;

/// Requests short scheduler slices for this thread and the threads that it starts later, so that they run as soon as
/// they have work instead of waiting for a computing thread's slice (Linux 6.12 and later; earlier kernels ignore the
/// request). Needs no privilege and gives no larger share. Returns false if nothing was changed.
pub(in crate::launch::guard) fn hurry(nice: i32) -> bool {
    // SAFETY: a system call without pointers.
    let is_ordinary = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    is_ordinary && schedule(None, nice, SHORTEST_TURN_NS).is_ok()
}

/// Stack size in bytes of a thread that tries one system call.
const TRIAL_STACK_BYTES: usize = 32 << 10;

/// Gives the main thread of a process the ordinary policy and this nice value.
pub(in crate::launch::guard) fn schedule_process(pid: Pid, nice: i32) -> io::Result<()> {
    schedule(Some(pid), nice, USUAL_TURN_NS)
}

/// Nice value of a thread that runs before all others.
const FIRST: i32 = -20;

/// Lets the threads of a dying process run before all others on busy cores: they only release its memory, and until
/// then no replacement can start. Does nothing without the privilege for it.
pub(in crate::launch::guard) fn hurry_end(pid: Pid) {
    let threads = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten();
    for thread in threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)) {
        let _ = rustix::process::setpriority_process(Some(thread), FIRST); // one may be gone by now
    }
}

/// Returns true if a process that is slowed down can be restored to its nice value later, which may need a privilege.
pub(in crate::launch::guard) fn may_undo_nice(nice: i32, slow: i32) -> bool {
    let trial = move || {
        rustix::process::setpriority_process(None, slow)?; // of this thread alone
        rustix::process::setpriority_process(None, nice)
    };
    let tried =
        std::thread::Builder::new().stack_size(TRIAL_STACK_BYTES).spawn(trial).map(std::thread::JoinHandle::join);
    matches!(tried, Ok(Ok(Ok(()))))
}

/// Gives a thread (this one if `None`) the ordinary policy, this nice value and this slice. Async-signal-safe.
pub(super) fn schedule(thread: Option<Pid>, nice: i32, turn_ns: u64) -> io::Result<()> {
    let thread = thread.map_or(0, |thread| thread.as_raw_nonzero().get());
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0),
        sched_policy: libc::SCHED_OTHER.unsigned_abs(),
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: turn_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `attributes`, which contains its own size.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_dying_process_gets_priority_where_the_system_permits_it() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let usual = rustix::process::getpriority_process(Some(pid)).unwrap();
        hurry_end(pid);
        let expected = if may_undo_nice(FIRST, usual) { FIRST } else { usual };
        assert_eq!(rustix::process::getpriority_process(Some(pid)).unwrap(), expected);
        child.kill().unwrap();
        child.wait().unwrap();
        hurry_end(pid); // no process has that pid
    }

    #[test]
    fn a_structure_is_as_the_kernel_reads_it() {
        assert_eq!(size_of::<libc::sched_attr>(), 48); // the first version, which later kernels accept as well
    }
}

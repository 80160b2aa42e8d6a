//! When the scheduler runs a thread: its nice value, and how long its turns are.
//!
//! It never chooses whose.
#![allow(unsafe_code)]

use rustix::process::Pid;
use std::io;

/// The length of a thread's turns on a core in nanoseconds: as the kernel likes.
pub(super) const USUAL_TURN_NS: u64 = 0;
/// The shortest that can be asked for.
const SHORTEST_TURN_NS: u64 = 100_000;

/// Asks the scheduler to run this thread, and those that it starts later, at once when they have something to do: it
/// works in very short turns, and so need not wait until a computing thread has had its turn (Linux 6.12 and later; older
/// ones do not mind). Needs no privilege and gives no larger share. False: everything stays as it was.
pub(in crate::launch::guard) fn hurry(nice: i32) -> bool {
    // SAFETY: a system call without pointers.
    let is_ordinary = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    is_ordinary && schedule(None, nice, SHORTEST_TURN_NS).is_ok()
}

/// Stack of a thread that tries one system call in bytes.
const TRIAL_STACK_BYTES: usize = 32 << 10;

/// Makes the main thread of a process an ordinary one with this nice value.
pub(in crate::launch::guard) fn schedule_process(pid: Pid, nice: i32) -> io::Result<()> {
    schedule(Some(pid), nice, USUAL_TURN_NS)
}

/// The nice value of whoever is to run ahead of all others.
const FIRST: i32 = -20;

/// Has the threads of a process that is dying run ahead of all others on busy cores: they only give its memory back, and until then
/// nobody can take its place. Without the privilege for that everything stays as it was.
pub(in crate::launch::guard) fn hurry_end(pid: Pid) {
    let threads = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten();
    for thread in threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)) {
        let _ = rustix::process::setpriority_process(Some(thread), FIRST); // one may be gone by now
    }
}

/// Whether a process that we slow down can have its turns back: not without the privilege for that.
pub(in crate::launch::guard) fn may_undo_nice(nice: i32, slow: i32) -> bool {
    let trial = move || {
        rustix::process::setpriority_process(None, slow)?; // of this thread alone
        rustix::process::setpriority_process(None, nice)
    };
    let tried =
        std::thread::Builder::new().stack_size(TRIAL_STACK_BYTES).spawn(trial).map(std::thread::JoinHandle::join);
    matches!(tried, Ok(Ok(Ok(()))))
}

/// Makes a thread, this one when `None`, an ordinary one with this nice value and length of turns. Async-signal-safe.
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
    // SAFETY: the kernel reads `attributes`, whose size stands in it.
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
    fn whoever_dies_runs_ahead_of_others_where_that_is_allowed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let usual = rustix::process::getpriority_process(Some(pid)).unwrap();
        hurry_end(pid);
        let expected = if may_undo_nice(FIRST, usual) { FIRST } else { usual };
        assert_eq!(rustix::process::getpriority_process(Some(pid)).unwrap(), expected);
        child.kill().unwrap();
        child.wait().unwrap();
        hurry_end(pid); // nobody has that number
    }

    #[test]
    fn a_structure_is_as_the_kernel_reads_it() {
        assert_eq!(size_of::<libc::sched_attr>(), 48); // the first version: later kernels take it, too
    }
}

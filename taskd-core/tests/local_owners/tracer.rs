//! Holds back the end of a process: a thread that is traced is not gone before its tracer has taken leave of it.
//!
//! The kernel notifies a process's parent of its end only when its last thread is gone. So the exit of a killed rank
//! cannot overtake its death here, however small the rank and however busy the machine.

#![allow(unsafe_code, reason = "no safe function traces a thread")]

use std::io;

/// A thread of a process, held by this one.
pub(crate) struct HeldThread(libc::pid_t);

impl HeldThread {
    /// Holds a thread other than the main thread of process `pid`, which must have one. It runs on.
    pub(crate) fn of(pid: u32) -> HeldThread {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let threads = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
        let thread: libc::pid_t = threads.into_iter().find(|thread| *thread != pid as libc::pid_t).unwrap();
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the request reads and writes no memory; the thread belongs to a process of this test.
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, nothing, nothing) };
        let error = io::Error::last_os_error();
        assert_eq!(result, 0, "these tests trace their own ranks, which is refused here: {error}");
        HeldThread(thread)
    }

    /// Lets a thread go that has ended, or ends now.
    pub(crate) fn let_go(self) {
        // SAFETY: a null pointer means that the status is not wanted.
        let reaped = unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL) };
        assert_eq!(reaped, self.0, "{}", io::Error::last_os_error());
    }
}

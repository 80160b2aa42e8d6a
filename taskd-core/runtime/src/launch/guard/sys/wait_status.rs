//! Exit status of an ended child of this process.
//!
//! This module never reaps a child.
#![allow(unsafe_code)]

use crate::job::Termination;
use rustix::process::Pid;
use std::io;
use std::mem::MaybeUninit;

/// Exit status of a child before it is reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch::guard) struct Ended {
    pub(in crate::launch::guard) pid: Pid,
    /// Exit code of the child, or number of the signal that ended it.
    status: i32,
    by_signal: bool,
    core_dumped: bool,
}

/// Returns the next child that has ended, without reaping it.
pub(in crate::launch::guard) fn next_ended() -> Option<Ended> {
    ended(libc::P_ALL, 0).ok().flatten()
}

/// Returns the exit status of this child without reaping it; `None` while it runs.
///
/// # Errors
/// `ECHILD`: other code of this process has reaped the child.
pub(in crate::launch::guard) fn how_ended(pid: Pid) -> io::Result<Option<Ended>> {
    ended(libc::P_PID, pid.as_raw_nonzero().get().unsigned_abs())
}

fn ended(kind: libc::idtype_t, id: libc::id_t) -> io::Result<Option<Ended>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is valid for writing; zeroed it is a valid siginfo_t, and stays so if no child has ended; for an
    // ended child the kernel fills in the fields that `si_pid` and `si_status` read.
    let (code, child, status) = unsafe {
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(kind, id, info.as_mut_ptr(), options) == -1 {
            return Err(io::Error::last_os_error());
        }
        let info = info.assume_init();
        (info.si_code, info.si_pid(), info.si_status())
    };
    let core_dumped = code == libc::CLD_DUMPED;
    let by_signal = core_dumped || code == libc::CLD_KILLED;
    Ok(Pid::from_raw(child).map(|pid| Ended { pid, status, by_signal, core_dumped }))
}

impl Ended {
    pub(in crate::launch::guard) fn how(&self) -> Termination {
        match self.by_signal {
            true => Termination::Signal { number: self.status, core_dumped: self.core_dumped },
            false => Termination::Code(self.status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_termination_is_read_exactly_and_without_reaping_the_child() {
        for (script, status, by_signal) in [("exit 7", 7, false), ("kill -9 $$", 9, true)] {
            let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
            let pid = Pid::from_child(&child);
            let ended = loop {
                match how_ended(pid).unwrap() {
                    Some(ended) => break ended,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(ended, Ended { pid, status, by_signal, core_dumped: false });
            assert_eq!(how_ended(pid).unwrap(), Some(ended));
            child.wait().unwrap();
            assert_eq!(how_ended(pid).unwrap_err().raw_os_error(), Some(libc::ECHILD));
        }
    }
}

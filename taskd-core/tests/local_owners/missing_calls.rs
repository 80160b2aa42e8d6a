//! System calls that are not there: a filter takes them away from this process and all that it will start.

#![allow(unsafe_code, reason = "no safe function installs a filter for system calls")]

use rustix::io::Errno;
use std::ops::{Bound, RangeBounds};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// The first role of a rank whose system keeps no list of robust locks, as under qemu-user.
pub(crate) const NO_ROBUST_LOCKS: &str = "without-robust-locks";

/// Becomes this program once more, with the other `arguments`.
pub(crate) fn run_without_robust_locks(arguments: &[&str]) -> ExitCode {
    let call = libc::SYS_set_robust_list as u32;
    take_away(call..=call);
    panic!("{}", Command::new(std::env::current_exe().unwrap()).args(arguments).exec())
}

/// From now on these system calls fail with `ENOSYS`, as on a kernel that does not have them.
pub(crate) fn take_away(calls: impl RangeBounds<u32>) {
    let (Bound::Included(first), last) = (calls.start_bound().cloned(), calls.end_bound().cloned()) else {
        panic!("a range with a first call")
    };
    let last = if let Bound::Included(last) = last { last } else { u32::MAX };
    let step = |code: u32, k: u32, (jt, jf): (u8, u8)| libc::sock_filter { code: code as u16, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | Errno::NOSYS.raw_os_error().unsigned_abs();
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, (0, 0)), // the number of the call
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, first, (0, 2)),
        step(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, last, (1, 0)),
        step(libc::BPF_RET | libc::BPF_K, refuse, (0, 0)),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, (0, 0)),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` names `filter`, which the kernel copies before the call returns.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(installed, "no filter can be installed: {}", std::io::Error::last_os_error());
}

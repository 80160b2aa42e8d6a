//! Proof that a process signals no other one and starts nothing: Linux kills it if it tries.
//!
//! This is the only file of the examples with `unsafe`.
#![allow(unsafe_code)]

use std::io;

/// Offsets of the system call's number, the architecture and the first argument in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

#[cfg(target_arch = "x86_64")]
const OURS: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OURS: u32 = 0xc000_00b7;

/// System calls that end the process: all that signal another process, attach to one, or start one.
const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Forbids this process to signal, trace or start another one: Linux ends it with SIGSYS at the first try. It may start
/// threads.
///
/// # Errors
/// Linux does not offer seccomp filters, or not in this environment.
pub fn seal() -> io::Result<()> {
    let mut filter = program();
    let program =
        libc::sock_fprog { len: u16::try_from(filter.len()).map_err(io::Error::other)?, filter: filter.as_mut_ptr() };
    // SAFETY: both calls read their arguments only; `program` points to `filter`, which outlives the call.
    let sealed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if sealed { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the filter as a BPF program.
fn program() -> Vec<libc::sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let no_such_call = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    let number = |call: libc::c_long| u32::try_from(call).unwrap_or(u32::MAX);
    let end = || step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0);

    let mut filter = vec![step(LOAD, ARCHITECTURE, 0, 0), step(IS, OURS, 1, 0), end(), step(LOAD, NUMBER, 0, 0)];
    for call in FORBIDDEN {
        filter.extend([step(IS, number(*call), 0, 1), end()]);
    }
    // A filter cannot see the flags of clone3; without clone3 libc uses clone, whose flags it can see.
    filter.extend([step(IS, number(libc::SYS_clone3), 0, 1), step(RETURN, no_such_call, 0, 0)]);
    filter.extend([step(IS, number(libc::SYS_clone), 0, 3), step(LOAD, FIRST_ARGUMENT, 0, 0)]);
    filter.extend([step(HAS, libc::CLONE_THREAD.unsigned_abs(), 1, 0), end()]);
    filter.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    filter
}

/// Returns one instruction; `yes` and `no` are the numbers of instructions to skip.
fn step(code: u32, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt: yes, jf: no, k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, Signal};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// The environment variable that names the action of the sealed process.
    const DEED: &str = "TASKD_TEST_DEED";

    #[test]
    fn linux_ends_a_process_that_signals_or_starts_and_keeps_threads() {
        if let Ok(deed) = std::env::var(DEED) {
            return sealed(&deed);
        }
        for (deed, ended_by) in [
            ("signal", Some(libc::SIGSYS)),
            ("pidfd", Some(libc::SIGSYS)),
            ("start", Some(libc::SIGSYS)),
            ("thread", None),
        ] {
            let test = "observe::sealed::tests::linux_ends_a_process_that_signals_or_starts_and_keeps_threads";
            let mut again = Command::new(std::env::current_exe().expect("a test has a program"));
            let output = again.args(["--exact", test, "--nocapture"]).env(DEED, deed).output().expect("it runs");
            assert_eq!(output.status.signal(), ended_by, "{deed}: {output:?}");
            assert_eq!(output.status.success(), ended_by.is_none(), "{deed}: {output:?}");
        }
    }

    /// The result of the action does not matter: the attempt ends the process.
    fn sealed(deed: &str) {
        let own = rustix::process::getpid();
        let handle = rustix::process::pidfd_open(own, PidfdFlags::empty()).expect("this process is there");
        seal().expect("a kernel with seccomp");
        match deed {
            "signal" => drop(rustix::process::kill_process(Pid::INIT, Signal::CONT)),
            "pidfd" => drop(rustix::process::pidfd_send_signal(&handle, Signal::CONT)),
            "start" => drop(Command::new("true").status()),
            _ => std::thread::spawn(|| ()).join().expect("a thread may be started"),
        }
    }
}

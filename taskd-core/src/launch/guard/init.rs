//! Being process 1 of a container: reaping orphans, passing signals on.
//!
//! A program that is process 1 inherits every orphan of its PID namespace, and the kernel gives it no default handling of
//! signals. A library must not touch either, so this is for the `main` of a program that wants it.

use super::sys::{self, InitSignal};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

/// To be called in a program's `main` right after [`init`](super::init), before threads are started.
///
/// Where this process is process 1, it forks: the parent stays as process 1, reaps whatever ends, passes SIGTERM, SIGINT,
/// SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 on, and ends as the program ends (128 and the number of a signal that ended it).
/// The child goes on as the program. Everywhere else it returns at once.
///
/// # Errors
/// When the process cannot be forked, or has threads already.
pub fn run_as_init() -> std::io::Result<()> {
    if rustix::process::getpid() != Pid::INIT {
        return Ok(());
    }
    match sys::fork_program()? {
        None => Ok(()),
        Some(program) => std::process::exit(reap_until_ended(program)),
    }
}

/// Reaps everybody until the program has ended; returns its exit code.
fn reap_until_ended(program: Pid) -> i32 {
    loop {
        match sys::next_init_signal() {
            InitSignal::ToForward(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    let _ = rustix::process::kill_process(program, signal); // it may have ended meanwhile
                }
            }
            InitSignal::Child => {
                while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
                    if pid == program && (status.exited() || status.signaled()) {
                        return exit_code(status);
                    }
                }
            }
        }
    }
}

fn exit_code(status: WaitStatus) -> i32 {
    status.exit_status().or(status.terminating_signal().map(|number| 128 + number)).unwrap_or(1)
}

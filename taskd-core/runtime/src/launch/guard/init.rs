//! Duties of process 1 of a container: reaping orphans and forwarding signals.
//!
//! A program that is process 1 inherits every orphan of its PID namespace, and the kernel gives it no default signal
//! handling. A library must not change either, so the `main` of a program has to call this function explicitly.

use super::sys::{self, InitSignal};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

/// Runs the rest of the program in a child if this process is process 1, as in a container. To be called in `main`
/// right after [`init`](super::init), before threads are started.
///
/// In process 1 this function forks. The parent stays process 1: it reaps every process that ends, forwards SIGTERM,
/// SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2, and exits as the program exits (with 128 plus the signal number if a
/// signal ended it). The child continues as the program. In any other process this function returns at once.
///
/// # Errors
/// Fails if the process cannot be forked, or already has threads.
pub fn run_as_init() -> std::io::Result<()> {
    if rustix::process::getpid() != Pid::INIT {
        return Ok(());
    }
    match sys::fork_program()? {
        None => Ok(()),
        Some(program) => std::process::exit(reap_until_ended(program)),
    }
}

/// Reaps all processes until the program has ended; returns its exit code.
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

//! Signal handling of the guard, of a reaping parent, and of a started program.
//!
//! This module sends no signal.
#![allow(unsafe_code)]

use rustix::fd::{FromRawFd, OwnedFd};
use std::io;
use std::mem::MaybeUninit;

/// Blocks SIGCHLD and SIGTERM for this thread and the threads that it starts later, and returns a descriptor that reads
/// them. Also restores their defaults, since the parent may have set them to be ignored, which is inherited.
pub(in crate::launch::guard) fn take_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: SIG_DFL is a valid disposition for each of the two; `sigemptyset` initialises the set before it is read;
    // the other calls get valid pointers; the descriptor that `signalfd` returns is new and has no other owner.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in [libc::SIGCHLD, libc::SIGTERM] {
            libc::signal(number, libc::SIG_DFL);
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) {
            0 => (),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Reads all pending signals from `signals`. Returns the pid of the sender of SIGTERM, if there was one; 0 if the
/// sender is not visible here.
pub(in crate::launch::guard) fn read_signals(signals: &OwnedFd) -> Option<u32> {
    const RECORD_BYTES: usize = size_of::<libc::signalfd_siginfo>();
    let mut terminate = None;
    let mut records = [0u8; RECORD_BYTES * 8];
    while let Ok(n) = rustix::io::read(signals, &mut records) {
        for record in records[..n].chunks_exact(RECORD_BYTES) {
            let word = |at: usize| u32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
            if word(0) == libc::SIGTERM.unsigned_abs() {
                terminate = Some(word(12)); // ssi_signo comes first, ssi_pid after ssi_errno and ssi_code
            }
        }
        if n == 0 {
            break;
        }
    }
    terminate
}

/// Ignores the signals that a terminal or a broken connection causes, so that they never end this process.
pub(in crate::launch::guard) fn ignore_terminal_signals() {
    for number in
        [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTSTP, libc::SIGUSR1, libc::SIGUSR2]
    {
        // SAFETY: SIG_IGN is a valid disposition for each of these.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// Sets the default disposition for all signals and unblocks them, as for a program started from a shell.
pub(super) fn reset_signals() -> io::Result<()> {
    for number in 1..=64 {
        // SAFETY: async-signal-safe. It fails for numbers that cannot be set; those have their defaults.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set before it is read. Both calls are async-signal-safe.
    let result = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Event that a reaping parent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch::guard) enum InitSignal {
    /// A child has ended.
    Child,
    /// This signal was sent and has to be forwarded to the program.
    ToForward(i32),
}

/// Signals that are forwarded to the program; SIGCHLD is handled separately.
const FORWARDED: [i32; 6] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

pub(super) fn init_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set; the numbers are valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        set.assume_init()
    }
}

/// Waits for the next signal that a reaping parent has to handle. Signals from a terminal reach the program directly.
pub(in crate::launch::guard) fn next_init_signal() -> InitSignal {
    let signals = init_signals();
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: both pointers are valid; zeroed, `info` is a valid siginfo_t.
        let (number, info) = unsafe { (libc::sigwaitinfo(&raw const signals, info.as_mut_ptr()), info.assume_init()) };
        match number {
            libc::SIGCHLD => return InitSignal::Child,
            number if number > 0 && info.si_code != libc::SI_KERNEL => return InitSignal::ToForward(number),
            _ => (), // interrupted, or from the terminal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_as_the_kernel_writes_it() {
        assert_eq!(size_of::<libc::signalfd_siginfo>(), 128);
        assert_eq!(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo), 0);
        assert_eq!(std::mem::offset_of!(libc::signalfd_siginfo, ssi_pid), 12);
    }

    #[test]
    fn signals_are_read_where_they_would_have_ended_the_process() {
        let reader = std::thread::spawn(|| {
            let signals = take_signals().unwrap();
            let before = read_signals(&signals);
            // SAFETY: both signals go to this thread, which blocks them.
            unsafe { assert_eq!((libc::raise(libc::SIGCHLD), libc::raise(libc::SIGTERM)), (0, 0)) };
            (before, read_signals(&signals), read_signals(&signals))
        });
        assert_eq!(reader.join().unwrap(), (None, Some(std::process::id()), None));
    }
}
